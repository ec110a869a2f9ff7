"""Entries that were delivered and not acknowledged: who holds them, since when, how often they were delivered. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from millstream.console.model.entries import EntryView

FATAL = 2**63 - 1
"""Deliveries of an entry that was released as fatal (``XNACK ... FATAL``): the most there can be."""


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """One pending entry of a group.

    Attributes:
        stream: key of the stream.
        group: the group it is pending in.
        id: of the entry.
        consumer: who holds it; None when nobody does, since it was given back (``XNACK``).
        idle_ms: since it was last delivered or claimed; None when nobody holds it.
        deliveries: how often it was delivered.
        entry: its payload, where it was asked for and is still in the stream.
        gone: the entry is no longer in the stream; None where neither that nor its payload was asked for.
        due_in_ms: until its delay is over and it may be delivered again; None where it waits for no time.
    """

    stream: str
    group: str
    id: str
    consumer: str | None
    idle_ms: int | None
    deliveries: int
    entry: EntryView | None = None
    gone: bool | None = None
    due_in_ms: int | None = None

    @property
    def fatal(self) -> bool:
        """Whether it was released as one that nobody can process."""
        return self.deliveries >= FATAL

    @property
    def unowned(self) -> bool:
        """Whether no consumer holds it."""
        return self.consumer is None


PendingOrder = Literal["idle", "deliveries"]
"""What pending entries may be sorted by, the highest first."""


def badness(entry: PendingEntry, by: PendingOrder) -> float:
    """What an entry is sorted by; one that nobody holds is idle for ever.

    Args:
        entry: a pending one.
        by: what counts.
    """
    if by == "deliveries":
        return entry.deliveries
    return math.inf if entry.idle_ms is None else entry.idle_ms


@dataclass(frozen=True, slots=True)
class PendingChoice:
    """Which pending entries are meant; what is None or False does not narrow.

    Attributes:
        consumer: held by this one.
        idle_ms: last delivered so long ago at least; what nobody holds fits always, as it does for a claim.
        deliveries: delivered so often at least.
        unowned: held by nobody.
        gone: no longer in the stream; whoever reads them has to look for that (``PendingEntry.gone``).
    """

    consumer: str | None = None
    idle_ms: int | None = None
    deliveries: int | None = None
    unowned: bool = False
    gone: bool = False

    def fits(self, entry: PendingEntry) -> bool:
        """Whether this entry is meant."""
        return (
            self.consumer in (None, entry.consumer)
            and (self.idle_ms is None or entry.idle_ms is None or entry.idle_ms >= self.idle_ms)
            and (self.deliveries is None or entry.deliveries >= self.deliveries)
            and (entry.unowned or not self.unowned)
            and (bool(entry.gone) or not self.gone)
        )


Chosen: TypeAlias = PendingChoice | tuple[str, ...]
"""Which of a group's pending entries: those that fit, or those of these ids."""


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """How much is pending in a group, and with whom.

    Attributes:
        total: pending entries.
        first: the lowest id among them; None without any.
        last: the highest id.
        held: consumer -> entries it holds, of those that hold any.
        unowned: entries that nobody holds.
    """

    total: int
    first: str | None
    last: str | None
    held: Mapping[str, int] = field(default_factory=dict)
    unowned: int = 0


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Some of a group's pending entries, by id.

    Attributes:
        entries: in the order of their ids.
        next: where the next page begins, for ``start`` of the reading function; None at the end.
        looked_at: entries that were read to find these; with a choice more than ``entries``.
    """

    entries: tuple[PendingEntry, ...]
    next: str | None
    looked_at: int
