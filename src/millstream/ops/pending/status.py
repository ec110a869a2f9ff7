"""Pending entries: their state, their selection, and their data. PURE."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millstream.ops.words import EntryView, Facts, milliseconds, order, picked

FATAL = 2**63 - 1
"""Delivery count of an entry released as fatal (``XNACK ... FATAL``), the highest possible."""


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """One pending entry of a group."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    id: str  # Id of the entry
    consumer: str | None  # Holder; None if the entry was released (``XNACK``)
    idle_ms: int | None  # Milliseconds since the last delivery or claim; None without a holder
    deliveries: int  # Number of deliveries
    entry: EntryView | None = None  # Content of the entry; None if not requested or no longer in the stream
    # True if the entry is no longer in the stream; None if this was not checked
    gone: bool | None = None
    # Milliseconds until its delay ends; None if it is not delayed
    due_in_ms: int | None = None

    @property
    def fatal(self) -> bool:
        """True if it was released as impossible to process."""
        return self.deliveries >= FATAL

    @property
    def unowned(self) -> bool:
        """True if no consumer holds it."""
        return self.consumer is None


PendingOrder = Literal["idle", "deliveries"]
"""Sort orders of pending entries, the highest first."""


def badness(entry: PendingEntry, by: PendingOrder) -> float:
    """Return the sort key of an entry; one without a holder counts as idle for ever."""
    if by == "deliveries":
        return entry.deliveries
    return math.inf if entry.idle_ms is None else entry.idle_ms


@dataclass(frozen=True, slots=True)
class PendingChoice:
    """A filter for pending entries; a field that is None or False does not narrow it."""

    consumer: str | None = None  # Name of the holder
    # Smallest time since the last delivery, in milliseconds; entries without a holder always match, as for a claim
    idle_ms: int | None = None
    deliveries: int | None = None  # Smallest number of deliveries
    unowned: bool = False  # Only entries without a holder
    gone: bool = False  # Only entries that are gone from the stream; the reading function sets ``PendingEntry.gone``

    def fits(self, entry: PendingEntry) -> bool:
        """Return True if the filter selects this entry."""
        return (
            self.consumer in (None, entry.consumer)
            and (self.idle_ms is None or entry.idle_ms is None or entry.idle_ms >= self.idle_ms)
            and (self.deliveries is None or entry.deliveries >= self.deliveries)
            and (entry.unowned or not self.unowned)
            and (bool(entry.gone) or not self.gone)
        )


Chosen: TypeAlias = PendingChoice | tuple[str, ...]
"""A selection of a group's pending entries: a filter or ids."""


@dataclass(frozen=True, slots=True)
class PendingPage:
    """One page of a group's pending entries."""

    entries: tuple[PendingEntry, ...]  # Entries by id
    next: str | None  # Value for ``start`` of the reading function to get the next page; None at the end
    looked_at: int  # Number of entries scanned; with a filter, it exceeds the number of ``entries``


def joined_pages(pages: Sequence[PendingPage], count: int, by: PendingOrder | None = None) -> PendingPage:
    """Join pages of partitions from the same start to one page; in the order of ids, equal ids stay together."""
    if len(pages) == 1:
        return pages[0]
    looked_at = sum(page.looked_at for page in pages)
    if by is not None:
        worst = sorted((one for page in pages for one in page.entries), key=lambda one: -badness(one, by))
        following = next((page.next for page in pages if page.next is not None), None)
        return PendingPage(tuple(worst[:count]), following, looked_at)
    # A partition whose page ends early may have more entries after its end
    ends = [order(page.next.removeprefix("(")) for page in pages if page.next is not None]
    every = sorted((one for page in pages for one in page.entries), key=lambda one: (order(one.id), one.stream))
    last = min([*ends, *(order(one.id) for one in every[count - 1 : count])], default=None)
    kept = tuple(one for one in every if last is None or order(one.id) <= last)
    more = bool(ends) or len(kept) < len(every)
    following = f"({last[0]}-{last[1]}" if more and last is not None else None
    return PendingPage(kept, following, looked_at)


def pending_facts(entry: PendingEntry, fields: object = None) -> Facts:
    """Return a pending entry as data."""
    return {
        "stream": entry.stream,
        "id": entry.id,
        "added_ms": milliseconds(entry.id),
        **picked(entry, "consumer idle_ms due_in_ms deliveries unowned fatal gone"),
        "fields": fields,
    }
