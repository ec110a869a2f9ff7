"""The state of one entry in each group of its stream: not delivered yet, pending, or passed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.console.model.entries import EntryView
from millstream.console.model.names import order
from millstream.console.model.pending import PendingEntry

Standing = Literal["undelivered", "pending", "passed"]
"""Where an entry stands in a group: not delivered yet; delivered and not acknowledged; or behind the group's position
and not pending, since it was acknowledged, or the position was set behind it, which a server does not tell apart."""


@dataclass(frozen=True, slots=True)
class EntryStanding:
    """The state of an entry in one group."""

    group: str  # Name of the group
    state: Standing  # See :data:`Standing`
    # Its holder, idle time and deliveries; None where it is not pending
    pending: PendingEntry | None = None


@dataclass(frozen=True, slots=True)
class EntryFound:
    """One entry and where it stands."""

    stream: str  # Key of the stream
    id: str  # That was asked for
    entry: EntryView | None  # Its content; None where the stream does not have that id (any more)
    standings: tuple[EntryStanding, ...] = ()  # By group
    refused: str | None = None  # Why the groups are not known; None where they are

    @property
    def pending(self) -> bool:
        """True if any group has it pending."""
        return any(one.state == "pending" for one in self.standings)


def standing_of(entry: str, group: str, delivered: str, rows: Sequence[PendingEntry]) -> EntryStanding:
    """The state of an entry in a group."""
    if rows:
        return EntryStanding(group, "pending", rows[0])
    return EntryStanding(group, "undelivered" if order(entry) > order(delivered) else "passed")
