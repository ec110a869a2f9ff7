"""Each disk operation of a server's work fails in turn, in every way, in node, committer and log together.

For every fault four things hold. No reply is released for data that is not where its fsync mode promises, and no read
shows such data. The server ends clearly, or refuses writes and recovers. The next start finds a beginning of the work
that holds all acknowledged data.
"""

import asyncio
import random
import re
import resource
import sys
from pathlib import Path

import pytest

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.errors import DiskError, DiskFullError, StorageError
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.node import Node
from millstream.node.outcome import Outcome
from millstream.persistence.log import Log
from millstream.server.committer import Committer
from persistence.reference import HOME, entropy
from support.inprocess import to_words
from support.resp import decode
from support.servers import millstream_server
from support.simdisk import Crash, Fault, SimDisk
from support.wire import Wire

WORK = [
    "SET calm 1",
    "XGROUP CREATE s g 0 MKSTREAM",
    "XADD s 1-0 f v",
    "XREAD BLOCK 0 STREAMS s 1-0",
    "XADD s 2-0 f v",
    "XREADGROUP GROUP g c STREAMS s >",
    "XACK s g 1-0",
    "GET calm",
    "MULTI",
    "XADD s 3-0 f v",
    "SET word x",
    "EXEC",
    "XTRIM s MAXLEN 1",
    "XRANGE s - +",
    "DEL word",
]
LOOKS = ["GET calm", "GET word", "XRANGE s - +", "XPENDING s g", "EXISTS s", "XLEN other", "DBSIZE"]
FULL = {Fault.ENOSPC, Fault.EDQUOT, Fault.EMFILE}
# Names are lost, or data, only by a disk that lies; here it tells the truth until the power goes
CRASHES = [Crash.PROCESS, Crash.DROPPED, Crash.TORN, Crash.REORDERED]


class Life:
    """A server without its sockets: from the start on a disk to its end there.

    Args:
        disk: simulated.
        fsync: the mode.

    Attributes:
        given: payloads appended, in order.
        acknowledged: the highest position a released reply waited for.
        failure: the committer's report to the server.
        was_full: the disk was full, and had space again.
        owed: delayed replies.
        wrong: faults of the server; an exception would be lost in the event loop.
    """

    def __init__(self, disk: SimDisk, fsync: str) -> None:
        self.disk = disk
        self.fsync = fsync
        self.clock = ManualClock()
        self.given: list[bytes] = []
        self.acknowledged = 0
        self.failure: StorageError | None = None
        self.was_full = False
        self.owed: list[Outcome] = []
        self.ended = False
        self.wrong: list[str] = []

    async def live(self) -> None:
        """Start, work, stop; each of them may end the life early."""
        try:
            self.log, recovery = Log.open(HOME, self.disk, segment_bytes=250, entropy=entropy(1))
        except DiskError:
            self.ended = True
            return
        assert list(recovery.payloads()) == []
        append = self.log.append

        def noted(payload: bytes) -> int:
            position = append(payload)
            self.given.append(payload)
            return position

        self.log.append = noted  # type: ignore[method-assign] # what is appended is noted at the log's door
        self.node = Node(Config(), self.log)
        # the test says when it is tried again
        self.guard = DiskGuard(self.log, self.node.journal, lambda: 0, self.clock, tries=(1000.0, 1000.0))
        self.committer = Committer(self.log, self.fsync, self.guard, self.fail)  # type: ignore[arg-type] # parametrised
        self.committer.begin()
        self.sessions = [self.node.sessions.open(self.clock.now()) for _ in range(2)]
        for line in WORK:
            await self.step(line)
        if not self.ended:
            await self.committer.close()
        self.stop()

    def stop(self) -> None:
        """Run the last step of a server."""
        try:
            self.log.close()
        except DiskError as error:
            self.failure = error

    def fail(self, error: StorageError) -> None:
        """Handle a failure as the server does: show nothing any more."""
        if isinstance(error, DiskFullError) or "start again" not in str(error) or str(HOME) not in str(error):
            self.wrong.append(f"the end does not say where it failed and what to do: {error!r}")
        self.failure = error
        self.ended = True
        self.owed.clear()

    def release(self) -> None:
        """Release replies for the committer, and check that each is where the mode promises."""
        promised = self.log.durable if self.fsync == "always" else self.log.written
        while self.owed and self.owed[0].barrier <= self.committer.gate.released:
            barrier = self.owed.pop(0).barrier
            if barrier > promised:
                self.wrong.append(f"a reply for {barrier} was released when {promised} was safe")
            self.acknowledged = max(self.acknowledged, barrier)
        if not self.owed:
            self.committer.gate.holders.pop(self, None)

    async def step(self, line: str) -> None:
        """Run one command, and the committer's part of it."""
        if self.ended:
            return
        session = self.sessions["BLOCK" in line]
        try:
            outcome = self.node.execute(session, to_words(line.split()), self.clock.now())
        except StorageError as error:
            self.fail(error)
            return
        told, self.node.outbox[:] = [outcome for _, outcome in self.node.outbox], []
        for each in (outcome, *told):
            if each is not None:
                self.owed.append(each)
        self.committer.gate.holders[self] = None
        self.release()
        self.committer.poke()
        await self.settled()
        if self.guard.is_full and not self.ended:
            await self.while_full()

    async def settled(self) -> None:
        """Wait until the committer has nothing left to do."""
        while not self.committer.is_idle:  # noqa: ASYNC110 - each turn of the loop counts
            await asyncio.sleep(0)

    async def while_full(self) -> None:
        """Check that reads show only durable data and writes are refused until there is space."""
        self.was_full = True
        twin = Node(Config())
        twin.recover(self.given[: self.log.durable])
        other = twin.sessions.open(self.clock.now())
        fresh = self.node.sessions.open(self.clock.now())
        appended = self.log.appended
        for line in LOOKS:
            outcome = self.node.execute(fresh, to_words(line.split()), self.clock.now())
            assert outcome is not None
            answer = decode(b"".join(outcome.buffers))
            if "MISCONF" not in repr(answer):
                expected = twin.execute(other, to_words(line.split()), self.clock.now())
                assert expected is not None
                assert answer == decode(b"".join(expected.buffers)), line
                assert outcome.barrier == 0, "it waits for a full disk"
        for line in ("SET calm 2", "XADD s * f v", "PING"):
            outcome = self.node.execute(fresh, to_words(line.split()), self.clock.now())
            assert outcome is not None
            assert b"".join(outcome.buffers).startswith(b"-MISCONF")
        assert self.log.appended == appended
        self.node.sessions.close(fresh)
        self.committer.retry()
        await self.settled()
        if not self.ended:
            assert self.guard.state == "ok"
            assert not self.owed, "what was held is answered"


def one(fsync: str, operation: int, fault: Fault, seed: int) -> Life:
    """Run one life with one failing operation, and the start after it."""
    disk = SimDisk(seed, faults={operation: fault})
    life = Life(disk, fsync)
    asyncio.run(life.live())
    count = disk.operations
    crash = random.Random(seed).choice(CRASHES)
    assert not life.wrong
    assert not disk.locked, "the directory is let go, however it ended"
    _, recovery = Log.open(HOME, disk.reboot(crash, seed))
    found = list(recovery.payloads())
    assert found == life.given[: len(found)], "something was invented or changed"
    # The weaker modes promise nothing of what a failed sync lost: the kernel had it, and the disk did not take it
    if fsync == "always" or (crash is Crash.PROCESS and life.failure is None):
        assert len(found) >= life.acknowledged, "something acknowledged was lost"
    if fault is Fault.SHORT:
        assert life.failure is None, "a short write is gone on with"
    if life.was_full:
        assert fault in FULL
    if operation > count:
        assert not life.ended
        assert not life.owed
        assert len(found) == len(life.given), "everything is on disk after a stop"
    return life


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_every_disk_operation_fails_once(fsync: str) -> None:
    """EIO, ENOSPC, EDQUOT, EINTR or a short write at any disk operation loses nothing acknowledged."""
    count = one(fsync, 10**9, Fault.EIO, 0).disk.operations
    assert count > 50
    full = 0
    for fault in Fault:
        for operation in range(1, count + 1):
            try:
                full += one(fsync, operation, fault, operation).was_full
            except AssertionError as error:
                raise AssertionError(f"{fault} at operation {operation}: {error}") from error
    assert full > 20, "it was gone on with after a full disk"


def test_failed_sync_ends_the_process_and_says_why(tmp_path: Path) -> None:
    """A failed sync ends a real server with exit code 1 and a last line with file, reason and advice.

    Everything acknowledged is there after the restart.
    """
    server = millstream_server(tmp_path)
    trigger = tmp_path / "broken"
    plain, at = server.command, server.command.index("serve")
    server.command = [sys.executable, str(Path(__file__).with_name("failing.py")), str(trigger), *plain[at:]]
    with server, Wire(server.url) as writer, Wire(server.url) as reader:
        assert writer.ask("XADD", "s", "1-1", "f", "v") == b"1-1"
        trigger.touch()
        writer.send("XADD", "s", "2-1", "f", "v")
        for wire in (writer, reader):
            assert wire.is_closed()
        assert server.process is not None
        assert server.process.wait(30) == 1
        last = server.log.read_text().splitlines()[-1]
        assert re.search(r"CRITICAL stopping: cannot sync \S+/data/log-\d+\.seg: Input/output error; records", last), (
            last
        )
        assert "start again" in last
    server.command = plain
    with server, Wire(server.url) as wire:
        assert wire.ask("XRANGE", "s", "1-1", "1-1") == [[b"1-1", [b"f", b"v"]]]


def test_write_that_the_system_refuses_ends_the_process_and_says_why(tmp_path: Path) -> None:
    """A write that the system refuses, here at the file size limit, ends a real server with code 1 and advice."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("this system sets no limit of another process")
    server = millstream_server(tmp_path)
    with server, Wire(server.url) as writer:
        assert writer.ask("SET", "small", "x") == b"OK"
        assert server.process is not None
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
        writer.send("SET", "large", "x" * 100_000)
        assert writer.is_closed()
        assert server.process.wait(30) == 1
        last = server.log.read_text().splitlines()[-1]
        assert re.search(r"CRITICAL stopping: cannot write to \S+/data/log-\d+\.seg: File too large; records", last), (
            last
        )
    with server, Wire(server.url) as wire:
        assert wire.ask("GET", "small") == b"x"
        assert wire.ask("GET", "large") is None
