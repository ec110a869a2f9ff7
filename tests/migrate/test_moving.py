"""Transfers that are killed, whose source or target changes meanwhile, or whose source or target is missing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from migrate.history import portrait, raw
from millstream.client.connect import sync_client
from millstream.migrate import copy_stream
from millstream.migrate import run as moving
from millstream.migrate.capabilities import VERSIONS, find_features
from millstream.migrate.connection import Link
from millstream.migrate.copy_stream import TEMPORARY, Copier
from millstream.migrate.errors import LinkError, MigrationError, RefusedError
from millstream.printable import without_password
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.waiting import eventually

HERE = Path(__file__).parent


@pytest.fixture
def source(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of a real server with two streams and other keys."""
    with real_redis.client() as client:
        pipe = client.pipeline(transaction=False)
        for at in range(1, 3001):
            pipe.xadd("a", {"n": at}, id=f"{at}-1")
        pipe.execute()
        client.xgroup_create("a", "g", "0")
        client.xreadgroup("g", "ann", {"a": ">"}, count=700)
        client.xdel("a", "3-1", "699-1")
        client.xadd("b", {"f": b"\x00"}, id="5-5")
        client.set("text", "1")
        client.rpush("list", "1")
        yield client


def run(
    source: str, target: str, tell: Callable[[str, int, int], None] | None = None, **choices: Any
) -> moving.MigrationReport:
    """Copy all streams."""
    with Link(source) as one, Link(target) as other:
        return moving.move(one, other, moving.MigrationOptions(**choices), tell or (lambda *_: None))


def states(report: moving.MigrationReport) -> dict[bytes, str]:
    """Return the outcome of each stream."""
    return {each.key: each.state for each in report.streams}


@pytest.mark.parametrize(("phase", "nth"), [("copied", 1), ("copied", 5), ("compared", 1), ("compared", 4)])
def test_killed_half_way_and_run_again(
    source: redis.Redis, real_redis: ServerProcess, tmp_path: Path, phase: str, nth: int
) -> None:
    """A killed migration leaves no incomplete stream, and a second run completes it without duplicates."""
    target = f"file://{tmp_path}/data"
    folders = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent)])
    words = [sys.executable, str(HERE / "killed.py"), real_redis.url, target, phase, str(nth)]
    ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": folders}, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL, "it did not get to the point"
    with sync_client(target) as client:
        assert client.exists(TEMPORARY + b"a") == 1, "it was killed in the midst of the first stream"
        assert not client.exists("a")
    report = run(real_redis.url, target)
    assert states(report) == {b"a": "copied", b"b": "copied"}
    with sync_client(target) as client:
        assert sorted(client.keys()) == [b"a", b"b"]
        assert portrait(client, b"a", all_times=False, memory=False) == portrait(
            source, b"a", all_times=False, memory=False
        )
    assert states(run(real_redis.url, target)) == {b"a": "equal", b"b": "equal"}


def test_leftovers_of_others_are_named_and_kept(source: redis.Redis, real_redis: ServerProcess) -> None:
    """A migration reports and keeps the unfinished copy of a stream that it does not migrate."""
    with sync_client("memory://left") as client:
        client.flushall()
        client.xadd(TEMPORARY + b"a", {"f": "half"})
        client.xadd(TEMPORARY + b"z", {"f": "half"})
        report = run(real_redis.url, "memory://left")
        assert report.leftovers == [TEMPORARY + b"z"]
        assert sorted(client.keys()) == [b"a", b"b", TEMPORARY + b"z"]
        assert client.xlen("a") == 2998
    assert report.others == {"string": 1, "list": 1}


def test_what_is_at_the_target_is_not_touched_unless_asked(source: redis.Redis, real_redis: ServerProcess) -> None:
    """A migration refuses a different stream of the same name at the target, skips it or replaces it, by option."""
    with sync_client("memory://there") as client:
        client.flushall()
        client.xadd("b", {"f": "mine"}, id="5-5")
        report = run(real_redis.url, "memory://there")
        assert states(report) == {b"a": "copied", b"b": "failed"}
        assert report.streams[1].differences == [
            "entry '5-5': value of field 1 is '\\x00' at the source, 'mine' in the copy"
        ]
        assert states(run(real_redis.url, "memory://there", existing="skip")) == {b"a": "skipped", b"b": "skipped"}
        assert client.xrange("b") == [(b"5-5", {b"f": b"mine"})]
        assert states(run(real_redis.url, "memory://there", existing="replace", patterns=["b"])) == {b"b": "copied"}
        assert client.xrange("b") == [(b"5-5", {b"f": b"\x00"})]
        client.delete("b")
        client.set("b", "text")
        report = run(real_redis.url, "memory://there", patterns=["b"])
        assert states(report) == {b"b": "failed"}
        assert "WRONGTYPE" in report.streams[0].reason
        assert client.get("b") == b"text"


def at(nth: int, phase: str, act: Callable[[], object]) -> Callable[[str, int, int], None]:
    """Return a progress function that calls ``act`` at the nth report of a phase."""
    left = nth

    def tell(what: str, _done: int, _total: int) -> None:
        nonlocal left
        if what == phase:
            left -= 1
            if left == 0:
                act()

    return tell


def test_entries_added_meanwhile_are_fetched(source: redis.Redis, real_redis: ServerProcess) -> None:
    """Entries added during a migration's copy are copied too, without a new start."""
    with sync_client("memory://fetched") as client:
        client.flushall()
        added = at(2, "copied", lambda: source.xadd("a", {"late": "1"}, id="9000-1"))
        assert states(run(real_redis.url, "memory://fetched", added, way="commands")) == {
            b"a": "copied",
            b"b": "copied",
        }
        assert portrait(client, b"a", all_times=False, memory=False) == portrait(
            source, b"a", all_times=False, memory=False
        )


@pytest.mark.parametrize("way", ["commands", "dump"])
def test_entries_added_at_the_end_are_told(source: redis.Redis, real_redis: ServerProcess, way: str) -> None:
    """Entries added after a migration's copy are not in it, and the report gives their number."""
    with sync_client("memory://behind") as client:
        client.flushall()
        added = at(2, "compared", lambda: source.xadd("a", {"late": "1"}, id="9000-1"))
        report = run(real_redis.url, "memory://behind", added, way=way)
        assert states(report) == {b"a": "behind", b"b": "copied"}
        assert not report.ok
        assert "up to 3000-1; 1 entry was" in report.streams[0].reason
        assert client.xlen("a") == 2998


@pytest.mark.parametrize("way", ["dump", "commands"])
def test_a_time_to_live_is_carried(source: redis.Redis, real_redis: ServerProcess, way: str) -> None:
    """The copy of a stream has the expiry time of its source, or none."""
    with sync_client("memory://mortal") as client:
        client.flushall()
        source.pexpireat("b", 5_000_000_000_000)
        assert states(run(real_redis.url, "memory://mortal", way=way)) == {b"a": "copied", b"b": "copied"}
        assert [raw(client, "PEXPIRETIME", key) for key in ("a", "b")] == [-1, 5_000_000_000_000]


def test_a_key_made_at_the_target_meanwhile_stays(source: redis.Redis, real_redis: ServerProcess) -> None:
    """If another client creates a key at the target during its migration, that key stays and the copy fails."""
    with sync_client("memory://taken") as client:
        client.flushall()
        report = run(real_redis.url, "memory://taken", at(2, "compared", lambda: client.set("a", "mine")))
        assert states(report) == {b"a": "failed", b"b": "copied"}
        assert "another client created a key of this name" in report.streams[0].reason
        assert client.get("a") == b"mine"
        assert sorted(client.keys()) == [b"a", b"b"]


@pytest.mark.parametrize("phase", ["copied", "compared"])
@pytest.mark.parametrize(
    "change",
    [
        ("XDEL", "a", "2000-1"),
        ("XACK", "a", "g", "5-1"),
        ("XREADGROUP", "GROUP", "g", "bob", "STREAMS", "a", ">"),
        ("XTRIM", "a", "MAXLEN", 2000),
        ("XGROUP", "CREATE", "a", "h", "0"),
        ("XGROUP", "SETID", "a", "g", "0"),
    ],
)
def test_a_change_makes_the_copy_start_again(
    source: redis.Redis, real_redis: ServerProcess, phase: str, change: tuple[object, ...]
) -> None:
    """If a stream changes during its migration, the copy starts again and equals the final source."""
    with sync_client("memory://again") as client:
        client.flushall()
        report = run(
            real_redis.url, "memory://again", at(2, phase, lambda: source.execute_command(*change)), way="commands"
        )
        assert states(report) == {b"a": "copied", b"b": "copied"}
        assert portrait(client, b"a", all_times=False, memory=False) == portrait(
            source, b"a", all_times=False, memory=False
        )


def test_what_never_stands_still_is_not_copied(source: redis.Redis, real_redis: ServerProcess) -> None:
    """A migration leaves out a stream with a group that changes all the time, and copies the other streams."""
    with sync_client("memory://never") as client:
        client.flushall()

        def tell(what: str, done: int, _total: int) -> None:
            if what == "copied" and done <= 2998:
                source.xreadgroup("g", "ann", {"a": ">"}, count=1)

        report = run(real_redis.url, "memory://never", tell, way="commands")
        assert states(report) == {b"a": "failed", b"b": "copied"}
        assert "group b'g'" in report.streams[0].reason
        assert client.keys() == [b"b"]


@pytest.mark.parametrize("way", ["dump", "commands"])
def test_a_wrong_copy_is_found_and_never_shown(
    source: redis.Redis, real_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A migrated copy that differs in an entry, a record or a counter is discovered and removed.

    By commands only the difference in a record may be visible. A dump is compared including the times of its consumers.
    """
    with sync_client("memory://wrong") as client:
        client.flushall()
        spoils: list[tuple[object, ...]] = [
            ("XDEL", TEMPORARY + b"a", "1000-1"),
            ("XACK", TEMPORARY + b"a", "g", "6-1"),
            ("XACK", TEMPORARY + b"a", "g", "3-1"),
            ("XCLAIM", TEMPORARY + b"a", "g", "ann", 0, "6-1", "RETRYCOUNT", 9, "JUSTID", "TIME", 5),
            ("XSETID", TEMPORARY + b"a", "3000-1", "ENTRIESADDED", 3001, "MAXDELETEDID", "699-1"),
            ("XGROUP", "SETID", TEMPORARY + b"a", "g", "700-1"),
            ("XGROUP", "CREATECONSUMER", TEMPORARY + b"a", "g", "eve"),
            ("XADD", TEMPORARY + b"a", "7000-1", "f", "v"),
        ]
        true = copy_stream.compare
        for spoil in spoils:

            def spoiled(*sides: Any, spoil: tuple[object, ...] = spoil, **rest: Any) -> Any:
                raw(client, *spoil)
                return true(*sides, **rest)

            monkeypatch.setattr(copy_stream, "compare", spoiled)
            report = run(real_redis.url, "memory://wrong", patterns=["a"], way=way)
            assert states(report) == {b"a": "failed"}, spoil
            assert report.streams[0].differences, spoil
            assert client.keys() == [], spoil


def test_losses_are_told_and_refused_when_strict() -> None:
    """Released entries cannot be copied to a server without XNACK: this is reported, and refused with ``strict``."""
    with sync_client("memory://rich") as mine, Link("memory://rich") as one, Link("memory://poor") as other:
        mine.flushall()
        mine.xadd("a", {"f": "v"}, id="1-1")
        mine.xadd("a", {"f": "v"}, id="2-1")
        mine.xgroup_create("a", "g", "0")
        mine.xreadgroup("g", "ann", {"a": ">"})
        mine.xdel("a", "2-1")
        raw(mine, "XNACK", "a", "g", "FAIL", "IDS", 1, "1-1")
        raw(mine, "XCFGSET", "a", "IDMP-DURATION", 7)
        copier = Copier(one, other, VERSIONS["6.2"], way="commands")
        lost = " ".join(copier.copy(b"a", replaces=True).losses)
        for word in ("entries-added", "entries-read", "1 released", "settings"):
            assert word in lost
        with sync_client("memory://poor") as made:
            assert made.xpending_range("a", "g", "-", "+", 9)[0]["consumer"] == b""
            copier.strict = True
            made.flushall()
            with pytest.raises(RefusedError, match="1 released entry"):
                copier.copy(b"a", replaces=True)
            assert made.keys() == []


def test_abilities_are_asked(real_redis: ServerProcess) -> None:
    """The features of a server are detected: Redis 7.0 has neither XNACK nor XCFGSET, Millstream has all."""
    with Link(real_redis.url) as link:
        assert find_features(link) == VERSIONS["7.0"]
    with Link("memory://") as link:
        assert find_features(link) == VERSIONS["8.8"]
        assert link.call("DBSIZE") == 0


def test_large_entries_travel_in_small_pages(real_redis: ServerProcess) -> None:
    """Entries of 1 MiB are copied one per page."""
    with sync_client("memory://large") as client:
        client.flushall()
        for _ in range(12):
            client.xadd("a", {"f": b"x" * (1 << 20)})
        counts: list[int] = []
        report = run(
            "memory://large", real_redis.url, lambda what, done, _: counts.append(done) if what == "copied" else None
        )
        assert states(report) == {b"a": "copied"}
        assert {late - early for early, late in pairwise(counts[2:])} <= {0, 1}


def test_missing_ends_are_said_without_their_passwords(real_redis: ServerProcess, tmp_path: Path) -> None:
    """An unreachable server and a refused login are named without the password."""
    with pytest.raises(LinkError, match="cannot be reached"):
        Link(f"redis://127.0.0.1:{free_port()}")
    with redis_server(tmp_path) as server:
        with server.client() as client:
            client.config_set("requirepass", "secret")
        with pytest.raises(LinkError, match="refused the login") as failed:
            Link(server.url.replace("127", "me:wrong@127", 1)).call("PING")
        assert "wrong" not in str(failed.value).replace("wrong number", "")
        with Link(server.url) as link, Link("memory://") as other, pytest.raises(MigrationError, match="password"):
            moving.move(link, other, moving.MigrationOptions(), lambda *_: None)
    assert without_password("rediss://me:secret@host:1/2") == "rediss://me:***@host:1/2"


def test_a_full_and_a_read_only_target_end_it(source: redis.Redis, real_redis: ServerProcess, tmp_path: Path) -> None:
    """An error that every stream would meet, as on a full or read-only target, ends the transfer with advice."""
    full = redis_server(tmp_path / "full", "--maxmemory", "1mb")
    with full, pytest.raises(MigrationError, match=r"(?s)OOM.*make room"):
        run(real_redis.url, full.url)
    replica = redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(free_port()))
    with replica, pytest.raises(MigrationError, match=r"(?s)READONLY.*master"):
        run(real_redis.url, replica.url)


def test_a_cluster_is_said_to_be_one(source: redis.Redis, real_redis: ServerProcess, tmp_path: Path) -> None:
    """A target that is a node of a cluster is refused with advice."""
    buses = free_port(), free_port()
    nodes = [redis_server(tmp_path / str(bus), "--cluster-enabled", "yes", "--cluster-port", str(bus)) for bus in buses]
    with nodes[0] as one, nodes[1] as other:
        with pytest.raises(MigrationError, match=r"(?s)CLUSTERDOWN.*cluster cannot be a target"):
            run(real_redis.url, one.url)
        with one.client() as here, other.client() as there:
            here.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
            there.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
            there.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
            here.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, buses[1])
            eventually(lambda: b"cluster_state:ok" in raw(here, "CLUSTER", "INFO"), what="they know each other")
        with pytest.raises(MigrationError, match=r"(?s)MOVED.*each master's URL"):
            run(real_redis.url, one.url)
