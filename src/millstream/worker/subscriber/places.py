"""The places of a subscriber's lanes: each entry that runs takes one.

There are as many places as lanes. With ``ack="each"`` an entry keeps its place until the server has confirmed its
outcome. So a crash repeats at most one finished entry for each place. The lane that ran it does not wait for that: it
takes another place if one is free. Outcomes of several handlers in one turn of the event loop are sent together.

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
    """Counts the free places."""

    waiting: Sized = ()  # other loops that wait for a place
    offered = 0  # number of places given to this loop that its lanes have not yet taken
    taken = 0  # Places that its lanes and its entries have

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number  # Number of free places; below 0 if a lane must give up its own
        # Called when a place becomes free after none was: wakes a lane, or returns False if no lane needs it
        self.freed: Callable[[], bool] = lambda: False
        self._gate = gate

    def take(self) -> bool:
        """Take a place for a lane; return False if none is free."""
        if self.free < 1:
            return False
        self.free -= 1
        self.taken += 1
        return True

    def give(self) -> None:
        """Give back the place of a lane; no other lane is woken, since this lane looks for the next entry itself."""
        self.free += 1
        self.taken -= 1

    def wait(self) -> None:
        """Note that entries wait for a place."""

    def decline(self) -> None:
        """Give back places that were offered to lanes and that none has taken."""

    def keep(self, held: Held) -> None:
        """Keep the place of an entry that has run, and count it as running, until its outcome is stored or lost."""
        self.free -= 1
        self.taken += 1
        held.then(self._leave)

    def _leave(self) -> None:
        self.give()
        self._gate.ended()
        if self.free == 1:
            self.freed()


class CommonPlaces:
    """Places that the loops of several partitions share: the loop that has waited the longest gets a free one.

    Without turns a busy partition would keep every place that its own runs free. A place is offered to one loop at a
    time, and one lane is woken for it. If all loops could take it, all of their lanes would wake for one entry.
    """

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number
        self.gate = gate
        # Loops that have entries but no place; none while a place is free
        self.waiting: deque[SharedPlaces] = deque()

    def offer(self) -> None:
        """Give free places to waiting loops, in turn."""
        while self.waiting and self.free > 0:
            loop = self.waiting.popleft()
            if loop.freed():
                self.free -= 1
                loop.offered += 1
                self.waiting.append(loop)  # it may have more entries; otherwise it is dropped at its next turn


class SharedPlaces(LanePlaces):
    """The places of one loop among several that share them."""

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
        """Take a place that was offered to this loop, or a free one."""
        if self.offered:
            self.offered -= 1
        elif self._common.free > 0:
            self._common.free -= 1
        else:
            self.wait()
            return False
        self.taken += 1
        return True

    def wait(self) -> None:
        """Queue this loop for a place, after the loops that already wait."""
        if self not in self._common.waiting:
            self._common.waiting.append(self)

    def give(self) -> None:
        """Give back the place of a lane; the next waiting loop gets it."""
        self._common.free += 1
        self.taken -= 1
        self._common.offer()

    def decline(self) -> None:
        """Give back places that were offered to lanes and that none has taken."""
        if self.offered:
            self._common.free, self.offered = self._common.free + self.offered, 0
            self._common.offer()


class Owned(NamedTuple):
    """The settings of one partition's loop; the loops of one handler share most of them."""

    lease: PartitionLease
    member: Membership  # Member of the whole stream, with the name and counters of every loop
    places: LanePlaces
    threads: ThreadPoolExecutor | None
    reads: Callable[[Line], ReadFence]
    renew: Callable[[], Awaitable[None]]  # Renews the lease at once
