"""The places of a subscriber's lanes: how many entries may run, or with ``ack="each"`` have run and are not stored.

There are as many as lanes. With ``ack="each"`` an entry keeps its place until the server has confirmed its outcome, so
that a crash repeats at most one finished entry for each of them. The lane that ran it need not wait for that: it takes
another place while there is one. Outcomes of several handlers in one turn of the event loop are sent together.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.client.line import Line
from millstream.client.partitions.lease import PartitionLease
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.read_fence import ReadFence
from millstream.worker.subscriber.isolation import IsolationGate


class LanePlaces:
    """Counts the free ones."""

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number  # Number of free places
        # Called when there is one again after there was none; False if nobody needs it
        self.freed: Callable[[], bool] = lambda: False
        # Asks for one where several loops share them; None where these are one loop's own
        self.turn: Callable[[], bool] | None = None
        self._gate = gate

    def keep(self, held: Held) -> None:
        """An entry that has run keeps its place, and counts as running, until its outcome is stored or it is lost."""
        self.free -= 1
        held.then(self._leave)

    def _leave(self) -> None:
        self.free += 1
        self._gate.ended()
        if self.free == 1:
            self.freed()


class CommonPlaces:
    """Places that the loops of several partitions share: the loop that has waited for one the longest gets it.

    Without turns a busy partition would keep every place that its own runs free.
    """

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number
        self.gate = gate
        self.waiting: deque[SharedPlaces] = deque()  # Loops that have entries and found no place

    def offer(self) -> None:
        """Wake the first loop that waits, if there is a place for it."""
        while self.waiting and self.free > 0 and not self.waiting[0].freed():
            self.waiting.popleft()  # Its entries were handed back meanwhile


class SharedPlaces(LanePlaces):
    """The places of one of these loops."""

    def __init__(self, common: CommonPlaces) -> None:
        self._common = common
        self._gate = common.gate
        self.freed = lambda: False
        self.turn = self._turn

    @property
    def free(self) -> int:
        """Number of free places of all loops."""
        return self._common.free

    @free.setter
    def free(self, number: int) -> None:
        common = self._common
        taken = number < common.free
        common.free = number
        if taken and common.waiting and common.waiting[0] is self:
            common.waiting.popleft()
        common.offer()

    def _turn(self) -> bool:
        common = self._common
        if common.free > 0:
            common.offer()
            if not common.waiting or common.waiting[0] is self:
                return True
        if self not in common.waiting:
            common.waiting.append(self)
        return False


class Owned(NamedTuple):
    """The part that one loop has in a partitioned stream; the loops of one handler share most of it."""

    lease: PartitionLease
    member: Membership  # Member of the whole stream, with the name and the counters of every loop
    places: LanePlaces
    threads: ThreadPoolExecutor | None
    reads: Callable[[Line], ReadFence]
    renew: Callable[[], Awaitable[None]]  # Renews the lease now
