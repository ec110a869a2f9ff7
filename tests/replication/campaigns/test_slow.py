"""A replica that reads nothing is disconnected at its limits, costs no more memory, and reconnects as it can."""

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.campaigns.load import all_of, assert_same
from replication.test_following_redis import follow
from replication.test_redis_follows import info
from support import needs
from support.between import Between
from support.campaign import LIMIT, run
from support.resident import forget_most, memory, most_memory
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

KB, MB = 1 << 10, 1 << 20
BACKLOGS = (16 * KB, 256 * KB, MB, 16 * MB, 64 * MB)
LIMITS = (MB, 4 * MB, 24 * MB)
VALUE = "x" * 20_000
# Sent bytes that sockets, the one between and the system hold
ON_THE_WAY = 16 * MB
# Memory of the process besides those: pieces on their way, a log's buffer, the allocator's rest
BESIDE = 48 * MB


class Slow:
    """A primary with a replica behind a link that can be stopped.

    Args:
        stack: ends both.
        folder: for their data.
        seed: the random seed, for the sizes and the kind of replica.
        is_soft: whether the soft limit is to cut.
    """

    def __init__(self, stack: ExitStack, folder: Path, seed: int, *, is_soft: bool) -> None:
        chance = random.Random(seed)
        self.backlog, self.limit = BACKLOGS[seed % len(BACKLOGS)], chance.choice(LIMITS)
        self.bound = max(self.backlog, self.limit)
        limits = f"replica 0 {self.limit} 1" if is_soft else f"replica {self.limit} 0 0"
        store = ("--memory",) if chance.random() < 0.3 else ("--fsync", "no")
        sizes = f"repl-backlog-size={self.backlog}", f"client-output-buffer-limit={limits}"
        options = (*store, *(word for size in sizes for word in ("--set", size)))
        self.server = stack.enter_context(millstream_server(folder / "primary", *options))
        self.link = stack.enter_context(Between(self.server.port, seed))
        self.replica = stack.enter_context(self._follower(folder / "replica", chance))
        self.mine = stack.enter_context(Wire(self.server.url))
        self.its = stack.enter_context(Wire(self.replica.url))
        self.written = 0

    @staticmethod
    def _follower(folder: Path, chance: random.Random) -> ServerProcess:
        kind = chance.choice(("ours", "redis", "redis8"))
        if kind == "ours":
            return millstream_server(folder, "--memory")
        return redis_server(folder, path=(needs.found(kind) if kind == "redis8" else None) or "")

    @property
    def pid(self) -> int:
        """Return the process id of the primary."""
        assert self.server.process is not None
        return self.server.process.pid

    def write(self, size: int) -> None:
        """Change the same few keys until ``size`` more bytes were written."""
        goal = self.written + size
        while self.written < goal:
            some = [("XADD", f"s{at}", "MAXLEN", 10, "*", "f", VALUE) for at in range(10)]
            assert all(isinstance(reply, bytes) for reply in self.mine.ask_together(some))
            self.written += 10 * len(VALUE)

    def begin(self) -> None:
        """Connect the replica, and write all keys."""
        self.write(3 * MB)
        follow(self.its, self.link.port)
        self.wait_up()
        self.write(MB)
        assert_same(self.its, self.mine, all_of)

    def wait_up(self) -> None:
        """Wait until the link is up."""
        eventually(lambda: info(self.its)["master_link_status"] == "up", 60, what="the replica follows")

    def stats(self) -> tuple[int, int]:
        """Return the numbers of full and partial syncs."""
        found = info(self.mine, "stats")
        return int(found["sync_full"]), int(found["sync_partial_ok"])


def stalls(seed: int, count: int = 3) -> int:
    """Stop a replica's reads for a while, ``count`` times; return the number of cuts."""
    is_soft = seed % 2 == 1
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        slow = Slow(stack, Path(folder), seed, is_soft=is_soft)
        slow.begin()
        for _ in range(count):
            before, base = slow.stats(), memory(slow.pid)
            forget_most(slow.pid)
            slow.link.stop()
            slow.write(slow.bound + 2 * ON_THE_WAY if is_soft else slow.bound // 2)
            if not is_soft:
                assert info(slow.mine)["connected_slaves"] == "1", "it is cut before its limit"
                slow.write(slow.bound + 2 * ON_THE_WAY)
            eventually(lambda: info(slow.mine)["connected_slaves"] == "0", what="it is cut")
            assert most_memory(slow.pid) - base < 2 * slow.bound + ON_THE_WAY + BESIDE
            slow.link.go_on()  # and what ended the old connection comes through: a cut here might hit the next one
            slow.wait_up()
            slow.write(MB)
            assert_same(slow.its, slow.mine, all_of)
            after = slow.stats()
            assert sum(after) == sum(before) + 1, "it came back by one sync"
        return count


def loops(seed: int) -> int:
    """Cut a replica again and again under writers; return the number of syncs, one for each limit."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        slow = Slow(stack, Path(folder), seed, is_soft=False)
        slow.begin()
        began, base, syncs = slow.written, memory(slow.pid), sum(slow.stats())
        forget_most(slow.pid)
        for turn in range(20):
            slow.link.stop()
            slow.write(slow.bound // 3 + MB)
            slow.link.go_on()
            slow.write(100 * KB * (turn % 3))
        slow.link.go_on()
        eventually(lambda: info(slow.its)["master_link_status"] == "up", 60, what="it follows in the end")
        assert_same(slow.its, slow.mine, all_of)
        made = sum(slow.stats()) - syncs
        assert made <= 1 + (slow.written - began) // slow.bound, "a sync costs a limit's bytes at least"
        assert most_memory(slow.pid) - base < 2 * slow.bound + ON_THE_WAY + BESIDE
        return made


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_many_replicas_that_take_nothing() -> None:
    """A replica that reads nothing is disconnected at its limits, and both servers have equal data in the end.

    The primary's memory is bounded. For backlogs from 16 kB to 64 MB.
    """
    run("repl-slow", stalls, range(30), unit="cuts by a limit")


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_replicas_that_stutter() -> None:
    """A replica that stops and continues under writes does not cause endless syncs."""
    run("repl-slow-loops", loops, range(30), unit="syncs")
