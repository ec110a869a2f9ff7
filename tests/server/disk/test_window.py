"""Loss at a power cut under ``everysec``: the last second and one sync, with simulated time.

The committer, the log and the event loop are the real ones. The disk is simulated, and so is time. The loop's clock
stops while anything runs, and jumps to the next timer when nothing does. A sync takes a random time.
"""

import asyncio
import random
import selectors
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.clock import SystemClock
from millstream.commands.context.config import Config
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import SYNC_SECONDS
from millstream.node.node import Node
from millstream.persistence.log import Log
from millstream.server.committer import Committer
from support import campaign
from support.simdisk import Crash, PowerCut, SimDisk

HOME = Path("/data")


class JumpingSelector(selectors.DefaultSelector):
    """Selector that jumps the clock to the loop's next timer, unless a thread is working."""

    loop: "JumpingLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if self.loop.works():
            return super().select(30)
        assert timeout is not None, "the loop waits for nothing"
        self.loop.now += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """Event loop with a clock of its own.

    Attributes:
        now: the time in seconds.
        committer: the committer whose thread may work.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.committer: Committer | None = None
        selector = JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def works(self) -> bool:
        """Return True if the committer's thread has a job."""
        return self.committer is not None and not self.committer.is_idle


class SlowDisk(SimDisk):
    """Disk on which some syncs take long; a power cut records its time.

    Attributes:
        loop: the loop whose time passes.
        longest: seconds of the longest sync so far.
        cut_at: time of the power cut.
    """

    def __init__(self, loop: JumpingLoop, seed: int, crash_after: int) -> None:
        super().__init__(seed, crash_after=crash_after)
        self.loop = loop
        self.chance = random.Random(seed)
        self.longest = 0.0
        self.cut_at: float | None = None

    def begin(self, what: str, path: Path) -> object:
        try:
            fault = super().begin(what, path)
        except PowerCut:
            self.cut_at = self.loop.now if self.cut_at is None else self.cut_at
            raise
        if what == "datasync":
            took = self.chance.choice((0.001, 0.01, 0.3, 2.0))
            self.longest = max(self.longest, took)
            self.loop.now += took
        return fault


@dataclass(eq=False)
class Writer:
    """Appends records and notes when each was acknowledged."""

    loop: JumpingLoop
    log: Log
    committer: Committer
    chance: random.Random
    acknowledged: list[float] = field(default_factory=list)

    def release(self) -> None:
        """Release replies for the committer."""
        while len(self.acknowledged) < self.committer.gate.released:
            self.acknowledged.append(self.loop.now)

    async def write(self, over: asyncio.Event) -> None:
        """Write until ``over``."""
        self.committer.gate.holders[self] = None
        while not over.is_set():
            for _ in range(self.chance.choice((1, 1, 1, 5))):
                self.log.append(b"%d" % (self.log.appended + 1))
            self.committer.poke()
            due = self.loop.create_future()
            self.loop.call_later(self.chance.choice((0, 0.01, 0.2, 0.7, 3.0)), due.set_result, None)
            await due  # on a clock that jumps there: without a wait


async def until_power_is_lost(loop: JumpingLoop, disk: SlowDisk, seed: int) -> Writer:
    """Serve on this disk until it stops; return the writer with acknowledged entries and times."""
    over = asyncio.Event()

    def ends(_: object, context: dict[str, object]) -> None:
        assert isinstance(context["exception"], PowerCut), context
        over.set()

    loop.set_exception_handler(ends)
    log, _ = Log.open(HOME, disk, segment_bytes=2000)
    guard = DiskGuard(log, Node(Config()).journal, lambda: 0, SystemClock())
    committer = loop.committer = Committer(log, "everysec", guard, lambda error: over.set())
    writer = Writer(loop, log, committer, random.Random(seed))
    writing = asyncio.create_task(writer.write(over))
    await over.wait()
    writing.cancel()
    await committer.close()  # its disk is gone: nothing more comes of it
    return writer


def lose_power(seed: int) -> int:
    """Run one life of a server and its recovery; return the number of lost acknowledged writes."""
    chance = random.Random(seed)
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, JumpingLoop)
        disk = SlowDisk(loop, seed, crash_after=25 + chance.randrange(120))
        writer = runner.run(until_power_is_lost(loop, disk, seed))
    crash = chance.choice([crash for crash in Crash if crash is not Crash.PROCESS])
    _, recovery = Log.open(HOME, disk.reboot(crash, seed))
    recovered = list(recovery.payloads())
    assert recovered == [b"%d" % number for number in range(1, len(recovered) + 1)], "not a prefix of what was written"
    assert disk.cut_at is not None
    lost = writer.acknowledged[len(recovered) :]
    window = SYNC_SECONDS + disk.longest
    assert all(disk.cut_at - moment <= window for moment in lost), f"lost {lost}, cut at {disk.cut_at}, {window=}"
    return len(lost)


def test_everysec_loses_at_most_its_window() -> None:
    """Under ``everysec`` a power cut loses at most the entries of the last second and one sync.

    The test also sees that some are lost.
    """
    losses = [lose_power(seed) for seed in range(500)]
    assert sum(lost > 0 for lost in losses) > 100, "the crashes came when everything was synced"


def five_hundred(seed: int) -> int:
    """Run a piece of the campaign."""
    for number in range(seed * 500, seed * 500 + 500):
        lose_power(number)
    return 500


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_everysec_loses_at_most_its_window_in_many_lives() -> None:
    """10,000 power cuts under ``everysec`` lose at most the entries of the last second and one sync."""
    campaign.run("window", five_hundred, range(1, 21), unit="crashes")
