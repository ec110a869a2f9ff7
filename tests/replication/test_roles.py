"""The state of a replica's connection, and the address that a replica announces."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest

from millstream.clock import Now
from millstream.node.primary import Primary
from millstream.persistence.log import Log
from millstream.replication.followers import Follower
from millstream.server.leading import making
from millstream.server.listener import ListenError
from millstream.server.thread import ServerThread
from replication.test_following_redis import wait_level
from replication.test_redis_follows import info, port_of
from support.ports import free_port
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire


def test_who_listened_and_becomes_a_replica_hears_the_stream_alone() -> None:
    """A subscribed connection that becomes a replica gets the stream alone: a push would falsify its offsets."""
    with ServerThread() as server, Wire(server.url) as other, Wire(server.url, resp=3) as wire:
        wire.ask("SUBSCRIBE", "channel")
        wire.ask("PSUBSCRIBE", "*")
        wire.send("PSYNC", "?", "-1")
        eventually(lambda: info(other)["connected_slaves"] == "1", what="it is a replica")
        assert other.ask("PUBLISH", "channel", "hello") == 0
        other.ask("SET", "last", "v")
        data = b""
        while b"last" not in data:
            data += wire.socket.recv(65536)
        assert b"FULLRESYNC" in data
        assert b"message" not in data
        assert b"$7\r\nPUBLISH\r\n$7\r\nchannel\r\n$5\r\nhello\r\n" in data


def test_a_replica_says_where_it_is_reached(tmp_path: Path) -> None:
    """A primary, and so Sentinel, lists a replica under the address and port that it announces."""
    words = ["--replica-announce-ip", "127.0.0.9", "--replica-announce-port", "7777", "--set", "replica-announced=no"]
    with ServerThread() as primary, Wire(primary.url) as theirs:
        place = f"127.0.0.1:{port_of(primary)}"
        with millstream_server(tmp_path, "--replicaof", place, *words) as replica, Wire(replica.url) as ours:
            wait_level(ours, theirs)
            assert info(theirs)["slave0"].startswith("ip=127.0.0.9,port=7777,state=online,")
            assert theirs.ask("ROLE")[2][0][:2] == [b"127.0.0.9", b"7777"]
            assert info(ours)["replica_announced"] == "0"
            assert ours.ask("CONFIG", "GET", "slave-announce-port") == [b"slave-announce-port", b"7777"]


def test_a_defect_does_not_end_the_looks_at_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error in a periodic check of replicas does not end the checks: PINGs and timeouts continue."""
    tick, calls = Primary.tick, []

    def broken(primary: Primary, now: Now) -> list[Follower]:
        calls.append(now)
        if len(calls) == 1:
            raise ZeroDivisionError
        return tick(primary, now)

    monkeypatch.setattr(Primary, "tick", broken)
    with ServerThread() as server, Wire(server.url) as wire:
        wire.send("PSYNC", "?", "-1")
        eventually(lambda: len(calls) > 1, what="another look")


def test_no_memory_for_a_copy_cuts_who_wants_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory ends on making a copy, only the requesting replica is disconnected, and the next copy is made."""
    begin, calls = making.write_in_child, []

    def short(*words: Any) -> None:
        calls.append(words)
        if len(calls) == 1:
            raise MemoryError
        begin(*words)

    monkeypatch.setattr(making, "write_in_child", short)
    with ServerThread() as server, Wire(server.url) as wire, Wire(server.url) as first, Wire(server.url) as second:
        first.send("PSYNC", "?", "-1")
        assert first.is_closed()
        second.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="the next one is served")


def test_a_copy_of_memory_is_told_as_a_fork() -> None:
    """INFO reports the time that a fork for a copy blocked, in Redis's field, and CONFIG RESETSTAT clears it."""
    with ServerThread() as server, Wire(server.url) as wire, Wire(server.url) as replica:
        assert info(wire, "stats")["total_forks"] == "0"
        replica.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="it has a copy")
        told = info(wire, "stats")
        assert (told["total_forks"], int(told["latest_fork_usec"]) > 0) == ("1", True)
        wire.ask("CONFIG", "RESETSTAT")
        told = info(wire, "stats")
        assert (told["total_forks"], told["latest_fork_usec"]) == ("0", "0")


def test_a_replica_that_came_by_ipv6_can_be_reached(tmp_path: Path) -> None:
    """A replica connected over IPv6 is listed by its address without brackets, so Sentinel and FAILOVER reach it."""
    primary = ServerThread(tmp_path / "a", host="::1")
    try:
        primary.start()
    except ListenError:
        pytest.skip("this machine has no IPv6 loopback")
    with ExitStack() as stack:
        stack.callback(primary.stop)
        replica = stack.enter_context(ServerThread(tmp_path / "b", host="::1"))
        with Wire(primary.url) as theirs, Wire(replica.url) as ours:
            assert ours.ask("REPLICAOF", "::1", port_of(primary)) == b"OK"
            wait_level(ours, theirs)
            assert info(theirs)["slave0"].startswith("ip=::1,port=")
            assert theirs.ask("FAILOVER", "TO", "::1", port_of(replica)) == b"OK"
            eventually(lambda: info(ours)["role"] == "master", what="it leads")
            wait_level(theirs, ours)


@pytest.mark.parametrize("keeps_log", [True, False], ids=["log", "memory"])
def test_who_never_reached_its_primary_and_leads_has_replicas(tmp_path: Path, *, keeps_log: bool) -> None:
    """A server promoted before it ever reached its primary has a named history, so replicas get copies."""
    with ServerThread(tmp_path if keeps_log else None) as server, Wire(server.url) as leader, ServerThread() as other:
        leader.ask("REPLICAOF", "127.0.0.1", free_port())
        eventually(lambda: info(leader)["millstream_link_error"], what="nobody answers")
        assert len(info(leader)["master_replid"]) == 40
        assert leader.ask("REPLICAOF", "NO", "ONE") == b"OK"
        leader.ask("SET", "k", "v")
        with Wire(other.url) as replica:
            replica.ask("REPLICAOF", "127.0.0.1", port_of(server))
            wait_level(replica, leader)
            assert replica.ask("GET", "k") == b"v"


@pytest.mark.parametrize("keeps_log", [True, False], ids=["log", "memory"])
def test_copies_that_cannot_be_made_are_made_ever_more_rarely_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, keeps_log: bool
) -> None:
    """A copy that fails again and again is made ever more rarely, and the log has the reason."""
    opened: list[str] = []

    def full(**_: object) -> IO[bytes]:
        opened.append("/dev/full")
        return Path("/dev/full").open("w+b")  # its user closes it

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(making, "copy_pause", lambda failed: 3600 if failed > 1 else 0)
    with ServerThread(tmp_path if keeps_log else None) as server, Wire(server.url) as wire, ExitStack() as stack:
        for _ in range(2):
            replica = stack.enter_context(Wire(server.url))
            replica.send("PSYNC", "?", "-1")
            assert replica.is_closed()
        last = stack.enter_context(Wire(server.url))
        last.send("PSYNC", "?", "-1")
        assert last.socket.recv(1) == b"\n"
        assert "state=wait_bgsave" in info(wire)["slave0"]
        assert len(opened) == 2
    said = [record.getMessage() for record in caplog.records if "closing replica" in record.getMessage()]
    assert len(said) == 2
    assert "No space left on device" in said[0]


def test_no_file_is_made_for_a_copy_while_the_log_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that comes during a rewriting waits for its end, and until then no file is made for its copy."""
    opened: list[IO[bytes]] = []
    make: Callable[..., IO[bytes]] = tempfile.TemporaryFile
    remove = Log.remove_obsolete
    ends, may_end = threading.Event(), threading.Event()

    def counted(**words: Any) -> IO[bytes]:
        opened.append(file := make(**words))
        return file

    def held(log: Log) -> None:
        ends.set()
        assert may_end.wait(60)
        remove(log)

    with ServerThread(tmp_path) as server, Wire(server.url) as wire, Wire(server.url) as replica:
        monkeypatch.setattr(tempfile, "TemporaryFile", counted)
        monkeypatch.setattr(Log, "remove_obsolete", held)
        wire.ask("SET", "k", "v")
        wire.ask("BGREWRITEAOF")
        assert ends.wait(60)
        replica.send("PSYNC", "?", "-1")
        assert replica.socket.recv(1) == b"\n"  # the check of each second, after the first attempt
        assert "state=wait_bgsave" in info(wire)["slave0"]
        found = len(opened)
        may_end.set()
        eventually(lambda: "state=online" in info(wire)["slave0"], what="it has its copy")
    assert (found, len(opened)) == (0, 1)


def test_a_killed_writer_of_a_copy_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the process that writes a copy is killed, the log reports that."""

    def endless(*_: object) -> Iterator[bytes]:
        yield b"REDIS"
        signal.pause()

    monkeypatch.setattr(making, "pieces", endless)
    with ServerThread() as server, Wire(server.url) as replica:
        replica.send("PSYNC", "?", "-1")
        eventually(_killed, what="the child is there, and is killed")
        assert replica.is_closed()
        assert "the process that wrote it was killed" in caplog.text


def _killed() -> bool:
    """Kill the forked child of this process."""
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
                return True
    return False


def test_a_program_that_ignores_its_children_has_copies_made() -> None:
    """In a program that ignores SIGCHLD every copy is made, though the system reports no child's end."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ServerThread() as server, Wire(server.url) as wire, Wire(server.url) as replica:
            replica.send("PSYNC", "?", "-1")
            eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="it has its copy")
    finally:
        signal.signal(signal.SIGCHLD, before)
