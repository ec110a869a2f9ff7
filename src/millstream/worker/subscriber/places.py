"""The places of a subscriber's lanes: how many entries may run, or with ``ack="each"`` have run and are not stored.

There are as many as lanes. With ``ack="each"`` an entry keeps its place until the server has confirmed its outcome, so
that a crash repeats at most one finished entry for each of them. The lane that ran it need not wait for that: it takes
another place while there is one. Outcomes of several handlers in one turn of the event loop are sent together.

A lane keeps its place from one entry to the next, since taking one for each entry costs more than a quick handler.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.client.line import Line
from millstream.client.partitions.lease import PartitionLease
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.read_fence import ReadFence
from millstream.worker.subscriber.isolation import IsolationGate


class LanePlaces:
    """Counts the free ones."""

    waiting: Sized = ()  # Other loops that wait for a place
    offered = 0  # Places that are given to this loop, and that its lanes have yet to take

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number  # Number of free places; below 0 where a lane has to give up its own
        # Called when there is one again after there was none: wakes a lane; False if none needs it
        self.freed: Callable[[], bool] = lambda: False
        self._gate = gate

    def take(self) -> bool:
        """Take a place for a lane; False if there is none."""
        if self.free < 1:
            return False
        self.free -= 1
        return True

    def give(self) -> None:
        """Give back the place of a lane, which needs no other lane to wake: it looks for the next entry itself."""
        self.free += 1

    def wait(self) -> None:
        """There are entries for which no place is free."""

    def decline(self) -> None:
        """Give back the places that were offered to lanes and that none has taken."""

    def keep(self, held: Held) -> None:
        """An entry that has run keeps its place, and counts as running, until its outcome is stored or it is lost."""
        self.free -= 1
        held.then(self._leave)

    def _leave(self) -> None:
        self.give()
        self._gate.ended()
        if self.free == 1:
            self.freed()


class CommonPlaces:
    """Places that the loops of several partitions share: the loop that has waited for one the longest gets it.

    Without turns a busy partition would keep every place that its own runs free. A place is offered to one loop at a
    time, and one lane is woken for it. If all loops could take it, all of their lanes would wake for one entry.
    """

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number
        self.gate = gate
        # Loops that have entries and found no place; none while one is free
        self.waiting: deque[SharedPlaces] = deque()

    def offer(self) -> None:
        """Give the free places to the loops that wait, in turn."""
        while self.waiting and self.free > 0:
            loop = self.waiting.popleft()
            if loop.freed():
                self.free -= 1
                loop.offered += 1
                self.waiting.append(loop)  # It may have more entries; else it is dropped here the next time


class SharedPlaces(LanePlaces):
    """The places of one of these loops."""

    def __init__(self, common: CommonPlaces) -> None:
        self._common = common
        self._gate = common.gate
        self.waiting = common.waiting
        self.freed = lambda: False

    @property
    def free(self) -> int:
        """Number of free places of all loops."""
        return self._common.free

    @free.setter
    def free(self, number: int) -> None:
        self._common.free = number

    def take(self) -> bool:
        """Take a place that was offered to this loop, or one that no other loop waits for."""
        if self.offered:
            self.offered -= 1
        elif self._common.free > 0:
            self._common.free -= 1
        else:
            self.wait()
            return False
        return True

    def wait(self) -> None:
        """Have a lane of this loop woken for a place, after those of the loops that wait already."""
        if self not in self._common.waiting:
            self._common.waiting.append(self)

    def give(self) -> None:
        """Give back the place of a lane; the next loop that waits gets it."""
        self._common.free += 1
        self._common.offer()

    def decline(self) -> None:
        """Give back the places that were offered to lanes and that none has taken."""
        if self.offered:
            self._common.free, self.offered = self._common.free + self.offered, 0
            self._common.offer()


class Owned(NamedTuple):
    """The part that one loop has in a partitioned stream; the loops of one handler share most of it."""

    lease: PartitionLease
    member: Membership  # Member of the whole stream, with the name and the counters of every loop
    places: LanePlaces
    threads: ThreadPoolExecutor | None
    reads: Callable[[Line], ReadFence]
    renew: Callable[[], Awaitable[None]]  # Renews the lease now
