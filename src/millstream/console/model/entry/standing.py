"""The state of one entry in each group of its stream: not delivered yet, pending, or passed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.console.model.entries import EntryView
from millstream.console.model.names import order
from millstream.console.model.pending import PendingEntry

Standing = Literal["undelivered", "pending", "passed"]
"""The state of an entry in a group: not delivered yet; delivered and not acknowledged; or before the group's position
and not pending. In the last state, it was acknowledged, or the position was set past it, and a server does not
distinguish these.
"""


@dataclass(frozen=True, slots=True)
class EntryStanding:
    """The state of an entry in one group."""

    group: str  # Name of the group
    state: Standing  # See :data:`Standing`
    # Its holder, idle time and deliveries; None where it is not pending
    pending: PendingEntry | None = None


@dataclass(frozen=True, slots=True)
class EntryFound:
    """One entry and its state in each group."""

    stream: str  # Key of the stream
    id: str  # The id that was asked for
    entry: EntryView | None  # Its content; None where the stream does not have that id (any more)
    standings: tuple[EntryStanding, ...] = ()  # States by group
    refused: str | None = None  # The reason why the groups are not known; None where they are

    @property
    def pending(self) -> bool:
        """True if any group has it pending."""
        return any(one.state == "pending" for one in self.standings)


def standing_of(entry: str, group: str, delivered: str, rows: Sequence[PendingEntry]) -> EntryStanding:
    """The state of an entry in a group."""
    if rows:
        return EntryStanding(group, "pending", rows[0])
    return EntryStanding(group, "undelivered" if order(entry) > order(delivered) else "passed")
