"""Events between a log copy's moment and its first byte: a replica leaves, the role changes, a rewriting, a stop."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from millstream.engine import transitions
from millstream.node.log.copied_log import MAGIC, payloads
from millstream.node.log.rebuilding import from_log
from millstream.persistence.log import Log
from millstream.server.thread import ServerThread
from node.test_copied_log import Whole
from replication.test_log_copy import Taker, ours
from replication.test_redis_follows import info
from server.disk.test_shown import Gate, gate, settle  # noqa: F401 - a fixture
from support.waiting import eventually
from support.wire import Wire

assert transitions.MODULES


def open_logs(directory: Path) -> list[str]:
    """Return the log files in the directory that this process is reading, if the system can list them."""
    found = []
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed since
            place = each.readlink()
            flags = int(Path("/proc/self/fdinfo", each.name).read_text().split()[3], 8)
            if directory in place.parents and place.name.startswith(("log-", "snapshot-")) and not flags & os.O_APPEND:
                found.append(place.name)
    return found


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[ServerThread]:  # noqa: F811 - as above
    with ServerThread(tmp_path / "data", fsync="always") as running:
        yield running
        gate.open()


def begin_to_wait(server: ServerThread, gate: Gate, stack: ExitStack, *takers: Taker) -> Wire:  # noqa: F811 - as above
    """Block a write of the disk, so that these replicas wait for their copy."""
    writer = stack.enter_context(Wire(server.url))
    with ours(server.url) as first:
        first.copy()  # a history
    gate.shut()
    writer.send("SET", "late", "v")
    assert gate.entered.wait(30)
    for taker in takers:
        taker.wire.send("PSYNC", "?", "-1")
        assert taker.lines.read(1) == b"\n", "it was ordered"
    return writer


def test_who_waits_goes(server: ServerThread, gate: Gate, tmp_path: Path) -> None:  # noqa: F811 - as above
    """If a replica leaves while it waits for a copy, no file stays open, and the next one gets its own copy."""
    with ExitStack() as stack:
        with ours(server.url) as taker:
            writer = begin_to_wait(server, gate, stack, taker)
        eventually(lambda: len(list(server.server.node.primary.followers)) == 0, what="it is gone")
        gate.open()
        assert writer.read() == b"OK"
        eventually(lambda: server.server.node.primary.copies_made == 2, what="it is made all the same")
        assert open_logs(tmp_path) == []
        with ours(server.url) as taker:
            assert b"late" in taker.copy()[2]
        eventually(lambda: open_logs(tmp_path) == [], what="it is closed")


def test_both_kinds_wait(server: ServerThread, gate: Gate) -> None:  # noqa: F811 - as above
    """Replicas that take log files and ones that take RDB files wait together, and each gets its kind of copy."""
    with ExitStack() as stack:
        takers = [stack.enter_context(each) for each in (Taker(server.url), ours(server.url), Taker(server.url))]
        writer = begin_to_wait(server, gate, stack, *takers)
        gate.open()
        assert writer.read() == b"OK"
        assert [each.rest()[2][:5] for each in takers] == [b"REDIS", MAGIC[:5], b"REDIS"]


@pytest.mark.parametrize("role", ["other", "back"])
def test_the_role_changes(server: ServerThread, gate: Gate, tmp_path: Path, role: str) -> None:  # noqa: F811 - as above
    """If the role changes meanwhile, no replica gets a copy of the old history. Later ones get the current one."""
    with ExitStack() as stack:
        taker = stack.enter_context(ours(server.url))
        begin_to_wait(server, gate, stack, taker)
        admin = stack.enter_context(Wire(server.url))
        admin.send("REPLICAOF", "127.0.0.1", "1")
        settle(server)
        if role == "back":
            admin.send("REPLICAOF", "NO", "ONE")
            settle(server)
        assert taker.wire.is_closed()
        gate.open()
        assert admin.read() == b"OK"
        if role == "back":
            assert admin.read() == b"OK"
            with ours(server.url) as again:
                replid, offset, data = again.copy()
            space = from_log(payloads(Whole(data).read_at))
            assert (space.history.replid, space.history.offset) == (replid, offset)
            assert replid == info(admin)["master_replid"]
        eventually(lambda: open_logs(tmp_path) == [], what="nothing stays open")


def test_the_server_stops(tmp_path: Path, gate: Gate) -> None:  # noqa: F811 - as above
    """If the server stops while a copy waits for the disk, the files opened for it are closed."""
    with ExitStack() as stack:
        server = ServerThread(tmp_path / "data", fsync="always")
        server.start()
        taker = stack.enter_context(ours(server.url))
        begin_to_wait(server, gate, stack, taker)
        server.server.loop.call_soon_threadsafe(server.server.request_stop)
        gate.open()
        server.stop()
        assert open_logs(tmp_path) == []


@pytest.mark.parametrize("more", [False, True])
def test_the_log_is_rewritten_before_its_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, more: bool
) -> None:
    """A copy whose log is rewritten before its files are opened is right, with and without later records."""
    real = Log.files
    tries: list[int] = []
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:

        def files(log: Log, last: int, having: object = None) -> Any:
            tries.append(last)
            if len(tries) == 1:
                if more:
                    assert wire.ask("SET", "more", "v") == b"OK"
                wire.ask("BGREWRITEAOF")
                eventually(lambda: info(wire, "persistence")["aof_rewrite_in_progress"] == "0", what="it is rewritten")
            return real(log, last, having)  # type: ignore[arg-type]  # what it was given

        monkeypatch.setattr(Log, "files", files)
        wire.ask("SET", "k", "v")
        with ours(server.url) as taker:
            replid, offset, data = taker.copy()
        space = from_log(payloads(Whole(data).read_at))
        assert (space.history.replid, space.history.offset) == (replid, offset)
        assert (b"more" in space.databases[0].keys) == more
        assert len(tries) == 1 + more
        eventually(lambda: open_logs(tmp_path) == [], what="nothing stays open")


def test_what_is_sent_is_open_until_then(tmp_path: Path) -> None:
    """The log's files are open while a copy is sent, and closed when its receiver leaves."""
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        for number in range(32):
            wire.ask("SET", b"k%d" % number, b"v" * (1 << 20))
        with ours(server.url) as taker:
            taker.wire.send("PSYNC", "?", "-1")
            assert taker.line().startswith(b"+FULLRESYNC")
            if Path("/proc/self/fd").exists():
                assert open_logs(tmp_path) != []
        eventually(lambda: open_logs(tmp_path) == [], what="it is closed")
