"""``stream-retention`` of running servers: set at the start or later, with replicas, and in an embedded store."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import millstream
from millstream.cli.main import main
from millstream.server.thread import ServerThread
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

RULES = {"stream-retention": "old* 1ms 0 * 0 20kb", "stream-node-max-entries": "10"}
ENTRIES = 500


def write(wire: Wire) -> None:
    """Write a stream for each of the two rules, and a dead letter that no rule applies to."""
    for key in ("old", "large", "large:dead"):
        wire.ask("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
        wire.ask_together([("XADD", key, "*", "f", "x" * 100)] * ENTRIES)


def is_kept_rightly(wire: Wire) -> bool:
    """Return True if the rules have removed everything that they apply to."""
    old, large, dead = (wire.ask("XLEN", key) for key in ("old", "large", "large:dead"))
    return bool(old == 0 and 0 < large < ENTRIES and dead == ENTRIES)


def shown(wire: Wire) -> object:
    """Return the entries and counters of the streams with rules."""
    found = []
    for key in ("old", "large"):
        info = wire.ask("XINFO", "STREAM", key)
        facts = dict(zip(info[::2], info[1::2], strict=True))
        counters = [
            facts[name] for name in (b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added")
        ]
        found.append([counters, wire.ask("XRANGE", key, "-", "+")])
    return found


@pytest.fixture
def followers(each_redis: ServerProcess, tmp_path: Path) -> Iterator[list[Wire]]:
    """Yield a primary with rules, and its replicas: a Redis, and one of ours."""
    with ExitStack() as stack:
        primary = stack.enter_context(ServerThread(tmp_path / "one", parameters=RULES))
        ours = stack.enter_context(ServerThread(tmp_path / "two", parameters={"stream-retention": "* 1ms 0"}))
        wires = [stack.enter_context(Wire(url)) for url in (primary.url, each_redis.url, ours.url)]
        for wire in wires[1:]:
            wire.ask("REPLICAOF", "127.0.0.1", primary.url.rpartition(":")[2])
        yield wires
        wires[1].ask("REPLICAOF", "NO", "ONE")


@pytest.mark.realserver
def test_replicas_hold_what_their_primary_holds(followers: list[Wire]) -> None:
    """Replicas, Redis's and ours, lose the entries that retention removes on the primary.

    A replica's own rules apply once it is promoted.
    """
    primary, *others = followers
    write(primary)
    eventually(lambda: is_kept_rightly(primary))
    primary.ask("XADD", "last", "1-1", "f", "v")
    eventually(lambda: [each.ask("EXISTS", "last") for each in others] == [1, 1])
    for each in others:
        assert shown(each) == shown(primary)
        assert each.ask("XLEN", "large:dead") == ENTRIES
    others[1].ask("REPLICAOF", "NO", "ONE")
    eventually(lambda: others[1].ask("XLEN", "large") == 0)


def test_a_start_holds_what_was_kept(tmp_path: Path) -> None:
    """Entries that retention removed do not return after SIGKILL, and rules given at the start continue."""
    rules = [word for name, value in RULES.items() for word in ("--set", f"{name}={value}")]
    with millstream_server(tmp_path, *rules) as server:
        with Wire(server.url) as wire:
            write(wire)
            eventually(lambda: is_kept_rightly(wire))
            before = shown(wire)
        server.kill()
        server.start()
        with Wire(server.url) as wire:
            assert shown(wire) == before
            wire.ask("XADD", "old", "*", "f", "v")
            eventually(lambda: wire.ask("XLEN", "old") == 0)


def test_rules_that_cannot_be_read_end_the_start() -> None:
    """An invalid retention rule ends the start with one sentence that has the right form."""
    done = CliRunner().invoke(main, ["serve", "--memory", "--set", "stream-retention=* 7x 0"])
    assert done.exit_code == 2
    assert "the age '7x' is invalid: it must be a length of time such as 500ms, 30s, 10m, 12h or 7d" in done.output


def test_an_embedded_store_has_rules_too(tmp_path: Path) -> None:
    """An embedded store applies retention by itself, without a command."""
    with millstream.open_store(f"file://{tmp_path}") as store:
        store.execute("CONFIG", "SET", "stream-retention", "* 1ms 0")
        store.xadd("s", {"f": "v"})
        eventually(lambda: b"retention_removed_entries:1" in store.execute("INFO", "stats"))
        assert store.execute("XLEN", "s") == 0
