"""The places of a subscriber's lanes: how many entries may run, or with ``ack="each"`` have run and are not stored.

There are as many as lanes. With ``ack="each"`` an entry keeps its place until the server has confirmed its outcome, so
that a crash repeats at most one finished entry for each of them. The lane that ran it need not wait for that: it takes
another place while there is one. Outcomes of several handlers in one turn of the event loop are sent together.
"""

from typing import TYPE_CHECKING

from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.isolation import IsolationGate

if TYPE_CHECKING:
    from collections.abc import Callable


class LanePlaces:
    """Counts the free ones."""

    def __init__(self, number: int, gate: IsolationGate) -> None:
        self.free = number  # Number of free places
        self.freed: Callable[[], None] = lambda: None  # Called when there is one again after there was none
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
