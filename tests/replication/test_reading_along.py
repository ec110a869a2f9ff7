"""A copy read while it arrives: its reader is killed, the link is lost, the copy is damaged. No data is lost."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from millstream.node.following.role import Following
from millstream.node.log.children import ChildProcess, GivenUpError
from millstream.node.log.rewriting import TAKING
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow
from replication.test_link import ID, MARK, Primary, copy
from replication.test_redis_follows import info
from support.waiting import eventually
from support.wire import Wire


class Slow(Primary):
    """Primary that sends the first half of its first copy, and the rest later.

    Attributes:
        rest: set to send the rest.
    """

    def __init__(self, *copies: bytes) -> None:
        self._is_first = True
        self.rest = threading.Event()
        super().__init__(*copies)

    def _answer(self, replica: socket.socket, lines: BinaryIO) -> None:
        while self._is_first and (words := self._command(lines)):
            if words[0] != b"PSYNC":
                replica.sendall({b"PING": b"+PONG\r\n", b"INFO": b"$0\r\n\r\n"}.get(words[0], b"+OK\r\n"))
                continue
            self.asked.append(words)
            self._is_first = False
            file = self._copies.pop(0)
            half = len(file) // 2
            replica.sendall(b"\n\n+FULLRESYNC %b 100\r\n$EOF:%b\r\n%b" % (ID.encode(), MARK, file[:half]))
            self.rest.wait()
            replica.sendall(file[half:] + MARK)
        super()._answer(replica, lines)


def readers() -> list[int]:
    """Return the child processes that read a copy."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread, or such a process, has ended
            pids = [int(pid) for pid in path.read_text().split()]
            found += [pid for pid in pids if b"log.taking" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def reader() -> int:
    """Return the one such process."""
    return eventually(readers, what="a process reads the copy")[0]


@pytest.fixture(params=["directory", "memory"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    with ServerThread(tmp_path if request.param == "directory" else None) as server, Wire(server.url) as wire:
        assert wire.ask("SET", "mine", "v") == b"OK"
        yield wire
    assert readers() == []


@pytest.fixture
def primary() -> Iterator[Slow]:
    one = Slow(copy(large="v" * 200_000, k="first"), copy(k="second"))
    try:
        yield one
    finally:
        one.rest.set()
        one.close()


def half_here(ours: Wire, primary: Primary) -> int:
    """Follow until half of the copy is here; return the process that reads it."""
    follow(ours, primary.port)
    eventually(lambda: int(info(ours)["slave_read_repl_offset"]) >= 0 and readers(), what="a process reads the copy")
    assert ours.ask("GET", "mine") == b"v"
    return reader()


def test_a_reader_that_is_killed_while_the_copy_comes(
    ours: Wire, primary: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """If the reader is killed while the copy arrives, the old data stays, the log has the reason, and it retries."""
    os.kill(half_here(ours, primary), signal.SIGKILL)
    primary.rest.set()
    eventually(lambda: ours.ask("GET", "k") == b"second", what="the next copy is taken")
    assert ours.ask("DBSIZE") == 1
    assert "ended with code -9" in caplog.text
    assert len(primary.asked) == 2


def test_a_reader_that_is_killed_while_it_writes(
    ours: Wire, primary: Slow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the reader is killed while it writes the snapshot of a complete copy, another copy is taken."""
    real: Callable[..., Any] = Following.prepared
    pid = half_here(ours, primary)
    os.kill(pid, signal.SIGSTOP)  # or it might have done all

    def amid(following: Following, *words: Any) -> Callable[[int], None]:
        monkeypatch.setattr(Following, "prepared", real)
        os.kill(pid, signal.SIGKILL)
        result: Callable[[int], None] = real(following, *words)
        return result

    monkeypatch.setattr(Following, "prepared", amid)
    primary.rest.set()
    eventually(lambda: ours.ask("GET", "k") == b"second", what="the next copy is taken")
    assert ours.ask("DBSIZE") == 1
    assert "ended with code -9" in caplog.text
    assert len(primary.asked) == 2


def test_a_link_that_is_lost_while_the_copy_comes(ours: Wire, primary: Slow) -> None:
    """If the link is lost while the copy arrives, its reader ends, the old data stays, and the next copy is taken."""
    pid = half_here(ours, primary)
    primary.cut()
    primary.rest.set()
    eventually(lambda: pid not in readers(), what="nobody reads what does not come")
    eventually(lambda: ours.ask("GET", "k") == b"second", what="the next copy is taken")
    assert ours.ask("DBSIZE") == 1


def test_a_role_that_is_given_while_the_copy_comes(ours: Wire, primary: Slow) -> None:
    """A server promoted while a copy arrives has its old data, and the reader of the copy ends."""
    pid = half_here(ours, primary)
    assert ours.ask("REPLICAOF", "NO", "ONE") == b"OK"
    primary.rest.set()
    eventually(lambda: pid not in readers(), what="nobody reads it")
    assert ours.ask("SET", "mine", "w") == b"OK"
    assert (ours.ask("GET", "mine"), ours.ask("DBSIZE")) == (b"w", 1)


def test_a_server_that_ends_while_the_copy_comes(tmp_path: Path, primary: Slow) -> None:
    """A server stopped while a copy arrives ends at once without a leftover process, and restarts with its old data."""
    with ServerThread(tmp_path) as server, Wire(server.url) as ours:
        assert ours.ask("SET", "mine", "v") == b"OK"
        half_here(ours, primary)
    assert readers() == []
    with ServerThread(tmp_path) as server, Wire(server.url) as ours:
        assert ours.ask("GET", "mine") == b"v"
        assert ours.ask("REPLICAOF", "NO", "ONE") == b"OK"


def test_damage_at_the_end_of_a_copy(ours: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A copy with damage at its end, found by the checksum, is refused as a whole."""
    whole = copy(k="first", other="1")
    primary = Primary(whole[:-1] + bytes([whole[-1] ^ 1]), copy(k="second"))
    try:
        follow(ours, primary.port)
        eventually(lambda: ours.ask("GET", "k") == b"second", what="the next copy is taken")
        assert ours.ask("DBSIZE") == 1
        assert "the primary's copy is damaged: the checksum is another" in caplog.text
        assert len(primary.asked) == 2
    finally:
        primary.close()


def test_damage_at_the_beginning_is_told_before_the_end(ours: Wire) -> None:
    """Damage at the beginning of a copy is reported at once, without waiting for the rest."""
    primary = Slow(b"REDIS0099" + copy(large="v" * 200_000)[9:], copy(k="second"))
    try:
        pid = half_here(ours, primary)
        eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), what="it has ended")
        primary.say("any")
        told = "REDIS0099 is a version that is not read"
        eventually(lambda: told in info(ours)["millstream_link_error"], what="it is told, though more is to come")
        assert ours.ask("GET", "mine") == b"v"
        primary.rest.set()
        eventually(lambda: ours.ask("GET", "k") == b"second", what="the next copy is taken")
    finally:
        primary.rest.set()
        primary.close()


class Unsteady(Primary):
    """Primary that sends empty lines before it continues the stream, which no Redis does."""

    def _answer(self, replica: socket.socket, lines: BinaryIO) -> None:
        while words := self._command(lines):
            if words[0] == b"PSYNC" and words[1] == ID.encode():
                self.asked.append(words)
                replica.sendall(b"\n\n")
                eventually(readers, what="a copy is awaited")
                replica.sendall(b"+CONTINUE\r\n" + b"*3\r\n$3\r\nSET\r\n$4\r\nmore\r\n$1\r\n1\r\n")
            elif words[0] == b"PSYNC":
                self.asked.append(words)
                file = self._copies.pop(0)
                replica.sendall(b"+FULLRESYNC %b 100\r\n$%d\r\n%b" % (ID.encode(), len(file), file))
            elif words[:2] != [b"REPLCONF", b"ACK"]:
                replica.sendall({b"PING": b"+PONG\r\n", b"INFO": b"$0\r\n\r\n"}.get(words[0], b"+OK\r\n"))
            else:
                self.acks.append(int(words[2]))


def test_a_copy_that_was_awaited_and_does_not_come(ours: Wire) -> None:
    """If the primary continues the stream where a copy was expected, the link goes on, and the reader ends."""
    primary = Unsteady(copy(k="first"))
    try:
        follow(ours, primary.port)
        eventually(lambda: primary.acks, what="the copy is taken")
        primary.cut()
        eventually(lambda: ours.ask("GET", "more") == b"1", what="the stream goes on")
        eventually(lambda: not readers(), what="nobody waits any more")
        assert info(ours)["master_link_status"] == "up"
        assert len(primary.asked) == 2
    finally:
        primary.close()


def test_a_reader_ends_with_its_server_whatever_it_waits_for(tmp_path: Path) -> None:
    """A reader ends silently with its server when its standard input closes, in the middle of a copy."""
    path = tmp_path / "copy"
    path.write_bytes(copy(k="v")[:20])
    with path.open("rb") as file:
        number = file.fileno()
        facts = tmp_path.stat()
        words = [
            str(tmp_path),
            "0",
            f"{facts.st_dev}:{facts.st_ino}",
            str(number),
            "token",
            "127.0.0.1",
            "1",
            "100",
            "100",
        ]
        reading = ChildProcess(TAKING, words, [number])
    try:
        assert reading.hint("20")
        reading.let_go()
        with pytest.raises(GivenUpError, match="ended with code 1"):
            list(reading.said())
    finally:
        reading.close()
