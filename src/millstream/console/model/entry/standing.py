"""Where one entry stands in each group of its stream: not delivered yet, pending with somebody, or behind it. Pure."""

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
    """Where an entry stands in one group.

    Attributes:
        group: name of the group.
        state: see :data:`Standing`.
        pending: who holds it, since when, how often it was delivered; None where it is not pending.
    """

    group: str
    state: Standing
    pending: PendingEntry | None = None


@dataclass(frozen=True, slots=True)
class EntryFound:
    """One entry and where it stands.

    Attributes:
        stream: key of the stream.
        id: that was asked for.
        entry: what is in it; None where the stream has none of that id (any more).
        standings: by group.
        refused: why the groups are not known; None where they are.
    """

    stream: str
    id: str
    entry: EntryView | None
    standings: tuple[EntryStanding, ...] = ()
    refused: str | None = None

    @property
    def pending(self) -> bool:
        """Whether any group has it pending."""
        return any(one.state == "pending" for one in self.standings)


def standing_of(entry: str, group: str, delivered: str, rows: Sequence[PendingEntry]) -> EntryStanding:
    """Where an entry stands in a group.

    Args:
        entry: its id.
        group: name of the group.
        delivered: the group's last delivered id.
        rows: what is pending of this id: one or none. An entry may be pending ahead of the position, where that was
            set back.
    """
    if rows:
        return EntryStanding(group, "pending", rows[0])
    return EntryStanding(group, "undelivered" if order(entry) > order(delivered) else "passed")
