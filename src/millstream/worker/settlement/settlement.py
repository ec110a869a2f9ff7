"""The settlement of one entry: the value that carries a decision from the policy to the server. Pure.

The policy (``handlers/outcomes.py``) makes it from the handler's result. ``settlement/acks.py`` keeps it until the
server has confirmed it, and turns it into commands. It contains everything that these need, so no code in between uses
the handler, the error or the policy again.
"""

from dataclasses import dataclass

from millstream.client.dead_letter.letter import DeadLetter
from millstream.client.jobs.record import ResultRow
from millstream.worker.model.lifecycle import UNCONFIRMED, Event
from millstream.worker.settlement.consumer import Held


@dataclass(slots=True, eq=False)
class Settlement:
    """The decision about one entry."""

    held: Held  # The entry
    event: Event  # ``ACK``, ``RELEASE``, ``RETRY`` or ``DIE``
    # The handler ended this delivery itself, which the failure log counts: such a delivery is not a crash
    failed: bool = False
    error: str = ""  # Error of a failed delivery, one line
    charge: bool = True  # Keep this delivery counted; False takes it back, for an entry that never ran
    delay_ms: int = 0  # Milliseconds before a retry is due

    @property
    def id(self) -> bytes:
        """Id of the entry."""
        return self.held.id

    @property
    def deliveries(self) -> int:
        """The server's delivery count, by which the fence checks that this consumer still owns the entry."""
        return self.held.deliveries

    @property
    def unsettled(self) -> bool:
        """True while the server has not confirmed it; False also once the entry is lost."""
        return self.held.state in UNCONFIRMED


@dataclass(slots=True, eq=False, kw_only=True)
class DeadSettlement(Settlement):
    """The decision that an entry is dead; ``event`` is ``DIE``."""

    letter: DeadLetter  # Letter to write
    result: ResultRow | None = None  # Record of its end, if its publisher requested a result
