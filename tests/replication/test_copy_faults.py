"""One system call fails, or a process is killed at it, while a primary makes a copy and a replica takes it.

If the fault is in the process that makes an RDB file, the replica is a Redis: a Millstream takes such a file only of a
large log. In each case a replica shows all of the old data or all of the new. A start always succeeds, and in the end
both have the same data. Data that the replica alone had as a former primary is in its files before it is replaced.
"""

import contextlib
import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.persistence.check import check
from millstream.server.thread import ServerThread
from replication.test_following_redis import wait_level
from replication.test_redis_follows import info, port_of
from support import campaign
from support.callfaults import KILL, SHORT, Call, CallFault, calls, library, preloading
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import DEADLINE, eventually
from support.wire import Wire

# Keys of the replica before it has the copy, and behind it
OLD, NEW = {b"old", b"tail"}, {b"new:%d" % number for number in range(5)}
# The process whose calls fail, the replica's or the primary's, server or child; the kind; a bound on their number
KINDS: tuple[tuple[str, str, str, int, int], ...] = (
    ("replica", "taking", "write", KILL, 4),
    ("replica", "taking", "write", errno.ENOSPC, 4),
    ("replica", "taking", "write", SHORT, 4),
    ("replica", "taking", "open", errno.EIO, 4),
    ("replica", "taking", "open", KILL, 4),
    ("replica", "taking", "fsync", errno.EIO, 2),
    ("replica", "taking", "fsync", KILL, 2),
    ("replica", "diverged", "write", KILL, 3),
    ("replica", "diverged", "write", errno.ENOSPC, 3),
    ("replica", "diverged", "open", errno.EIO, 13),
    ("replica", "diverged", "fsync", errno.EIO, 4),
    ("replica", "diverged", "fsync", KILL, 4),
    ("replica", "diverged", "rename", errno.EIO, 3),
    ("replica", "diverged", "rename", KILL, 3),
    ("replica", "server", "write", KILL, 13),
    ("replica", "server", "write", errno.ENOSPC, 13),
    ("replica", "server", "write", errno.EIO, 13),
    ("replica", "server", "open", errno.EIO, 24),
    ("replica", "server", "open", KILL, 24),
    ("replica", "server", "open", errno.EMFILE, 24),
    ("replica", "server", "fsync", errno.EIO, 18),
    ("replica", "server", "fsync", KILL, 18),
    ("replica", "server", "rename", errno.EIO, 3),
    ("replica", "server", "rename", -errno.EIO, 3),
    ("replica", "server", "rename", errno.ENOSPC, 3),
    ("replica", "server", "rename", KILL, 3),
    ("replica", "server", "unlink", errno.EIO, 3),
    ("replica", "server", "unlink", KILL, 3),
    ("rdb", "child", "write", KILL, 5),
    ("rdb", "child", "write", errno.ENOSPC, 5),
    ("rdb", "child", "write", SHORT, 5),
    ("rdb", "child", "open", errno.EIO, 6),
    ("rdb", "child", "open", KILL, 6),
    ("rdb", "child", "fsync", errno.EIO, 2),
    ("primary", "server", "pread", errno.EIO, 8),
    ("primary", "server", "pread", KILL, 8),
    ("primary", "server", "write", KILL, 10),
    ("primary", "server", "write", errno.ENOSPC, 10),
    ("primary", "server", "write", errno.EIO, 10),
    ("primary", "server", "open", errno.EIO, 18),
    ("primary", "server", "fsync", errno.EIO, 14),
    ("primary", "server", "rename", errno.EIO, 3),
    ("primary", "server", "rename", KILL, 3),
)


@dataclass
class Life:
    """A server that makes or takes a copy, with a fault, and the other one without.

    Attributes:
        folder: for both.
        made: the library.
        side: the one with the fault, ``primary`` or ``replica``; ``rdb`` is the primary of a Redis.
        fault: the failing call; None for nothing.
        seen: the calls of that side.
        codes: exit codes of the process when it ended too early.
        said: its log.
    """

    folder: Path
    made: Path
    side: str
    fault: CallFault | None
    seen: list[Call] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    said: str = ""

    def live(self) -> "Life":
        """Copy from one to the other, with as many tries as it takes."""
        faulty = millstream_server(self.folder)
        with contextlib.ExitStack() as stack:
            redis = redis_server(self.folder / "redis") if self.side == "rdb" else ServerThread()
            other: ServerProcess | ServerThread = stack.enter_context(redis)
            stack.callback(faulty.__exit__)
            faulty.start()
            with Wire(faulty.url) as wire, Wire(other.url) as theirs:
                primary, replica = (theirs, wire) if self.side == "replica" else (wire, theirs)
                replica.ask("SET", "old", "v")
                if self.side == "replica":  # which has led the other, and took one change more
                    primary.ask("REPLICAOF", "127.0.0.1", faulty.port)
                    wait_level(primary, replica)
                    primary.ask("REPLICAOF", "NO", "ONE")
                primary.ask("FLUSHALL")
                primary.ask("MSET", *(word for key in sorted(NEW) for word in (key, "v")))
                replica.ask("SET", "tail", "v")
            faulty.stop()
            plain = list(faulty.command)
            data, trace, once = (self.folder / name for name in ("data", "trace", "once"))
            faulty.command[:0] = preloading(self.made, data, trace, self.fault, once)
            self._start(faulty, plain)
            ports = (port_of(other), faulty.url) if self.side == "replica" else (str(faulty.port), other.url)
            eventually(lambda: self._is_through(faulty, plain, *ports), 2 * DEADLINE, what="the copy is taken")
        self.seen = calls(self.folder / "trace")
        text = faulty.log.read_text(errors="replace")
        self.said = text
        assert "Traceback" not in text, text[-3000:]
        assert set(self.codes) <= {1, -9}, text[-3000:]
        if self.side == "replica":
            kept = "".join(path.read_text() for path in (self.folder / "data").glob("diverged-*.jsonl"))
            assert '"tail"' in kept
        return self

    def _start(self, faulty: ServerProcess, plain: list[str]) -> None:
        """Start; if the fault ends the process before it is ready, start it without."""
        try:
            faulty.start()
        except (RuntimeError, AssertionError):
            self._start_again(faulty, plain)

    def _start_again(self, faulty: ServerProcess, plain: list[str]) -> None:
        assert faulty.process is not None, faulty.log.read_text(errors="replace")[-3000:]
        self.codes.append(faulty.process.wait(DEADLINE))
        assert check(self.folder / "data").ok
        faulty.command[:] = plain
        faulty.start()

    def _is_through(self, faulty: ServerProcess, plain: list[str], primary: str, replica: str) -> bool:
        """Return True if the replica has the copy; start any process that ended again."""
        try:
            with Wire(faulty.url) as wire:
                wire.ask("PING")
            with Wire(replica) as wire:
                keys = wire.ask("KEYS", "*")
                if isinstance(keys, Exception):  # it keeps from readers what its disk has not taken yet
                    assert str(keys).startswith("MISCONF")
                    return False
                found = set(keys)
                assert found in (OLD, NEW), found
                facts = info(wire)
                if facts["role"] == "master":
                    wire.ask("REPLICAOF", "127.0.0.1", primary)
                return found == NEW and facts["master_link_status"] == "up"
        except (EOFError, ConnectionError):
            self._start_again(faulty, plain)
            return False


def survived(folder: Path, made: Path, side: str, fault: CallFault | None) -> Life:
    """Run one life."""
    try:
        return Life(folder, made, side, fault).live()
    except AssertionError as error:
        raise AssertionError(f"{side} {fault}: {error}") from error


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("callfaults"))


@pytest.mark.parametrize(
    ("side", "fault"),
    [
        ("replica", CallFault("taking", "fsync", 1, KILL)),
        ("rdb", CallFault("child", "write", 1, errno.ENOSPC)),
        ("replica", CallFault("taking", "write", 1, errno.ENOSPC)),
    ],
    ids=str,
)
def test_a_child_that_fails_at_a_copy_costs_another_try(
    tmp_path: Path, made: Path, side: str, fault: CallFault
) -> None:
    """A child that is killed while it takes a copy, or finds no space to make one, only costs another try."""
    life = survived(tmp_path / "life", made, side, fault)
    assert any(one.failed for one in life.seen), life.seen
    assert life.codes == []
    if side == "replica" and fault.how == errno.ENOSPC:  # whose disk it was, and where, nobody was told
        place = life.folder / "data"
        assert f"primary's copy in {place}: No space left on device; free some space there; tried again in" in life.said


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("side", ["replica", "primary", "rdb"])
def test_every_call_around_a_copy_fails_once(tmp_path: Path, made: Path, side: str) -> None:
    """Any failing call around a copy, in either server or its children, leaves old or new data.

    Both servers have equal data in the end.
    """
    kinds = [kind for kind in KINDS if kind[0] == side]

    def piece(seed: int) -> int:
        _, who, call, how, _ = kinds[seed // 100]
        life = survived(tmp_path / str(seed), made, side, CallFault(who, call, seed % 100, how))
        return any(one.failed for one in life.seen)

    seeds = [100 * number + at for number, kind in enumerate(kinds) for at in range(1, kind[4] + 1)]
    campaign.run(f"repl-copy-faults-{side}", piece, seeds, unit="faults")
