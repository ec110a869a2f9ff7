"""Pending entries: their state, the choice among them, and their facts. PURE."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millstream.ops.words import EntryView, Facts, milliseconds, order

FATAL = 2**63 - 1
"""Deliveries of an entry that was released as fatal (``XNACK ... FATAL``): the most there can be."""


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """One pending entry of a group."""

    stream: str  # Key of the stream
    group: str  # The group it is pending in
    id: str  # Id of the entry
    consumer: str | None  # Its holder; None when it has none, since it was given back (``XNACK``)
    idle_ms: int | None  # Time since it was last delivered or claimed; None without a holder
    deliveries: int  # Number of deliveries
    entry: EntryView | None = None  # Its payload, where it was asked for and is still in the stream
    # The entry is no longer in the stream; None where neither that nor its payload was asked for
    gone: bool | None = None
    # Until its delay is over and it may be delivered again; None where it waits for no time
    due_in_ms: int | None = None

    @property
    def fatal(self) -> bool:
        """True if it was released as one that no consumer can process."""
        return self.deliveries >= FATAL

    @property
    def unowned(self) -> bool:
        """True if no consumer holds it."""
        return self.consumer is None


PendingOrder = Literal["idle", "deliveries"]
"""The orders of pending entries, the highest first."""


def badness(entry: PendingEntry, by: PendingOrder) -> float:
    """The sort key of an entry; one without a holder is idle for ever."""
    if by == "deliveries":
        return entry.deliveries
    return math.inf if entry.idle_ms is None else entry.idle_ms


@dataclass(frozen=True, slots=True)
class PendingChoice:
    """A choice of pending entries; a field that is None or False does not narrow it."""

    consumer: str | None = None  # Held by this one
    # Least time since the last delivery; entries without a holder always fit, as they do for a claim
    idle_ms: int | None = None
    deliveries: int | None = None  # Least number of deliveries
    unowned: bool = False  # Without a holder
    gone: bool = False  # No longer in the stream; the reading function has to check that (``PendingEntry.gone``)

    def fits(self, entry: PendingEntry) -> bool:
        """True if this entry is selected."""
        return (
            self.consumer in (None, entry.consumer)
            and (self.idle_ms is None or entry.idle_ms is None or entry.idle_ms >= self.idle_ms)
            and (self.deliveries is None or entry.deliveries >= self.deliveries)
            and (entry.unowned or not self.unowned)
            and (bool(entry.gone) or not self.gone)
        )


Chosen: TypeAlias = PendingChoice | tuple[str, ...]
"""Chosen entries among a group's pending ones: those that fit, or those of these ids."""


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Some of a group's pending entries, by id."""

    entries: tuple[PendingEntry, ...]  # Entries in the order of their ids
    next: str | None  # Start of the next page, for ``start`` of the reading function; None at the end
    looked_at: int  # Entries that were read to find these; with a choice more than ``entries``


def joined_pages(pages: Sequence[PendingPage], count: int, by: PendingOrder | None = None) -> PendingPage:
    """Pages of partitions, each from the same start, as one page; in the order of ids, equal ids stay together."""
    if len(pages) == 1:
        return pages[0]
    looked_at = sum(page.looked_at for page in pages)
    if by is not None:
        worst = sorted((one for page in pages for one in page.entries), key=lambda one: -badness(one, by))
        following = next((page.next for page in pages if page.next is not None), None)
        return PendingPage(tuple(worst[:count]), following, looked_at)
    # A partition whose page ends early may have more entries after that end
    ends = [order(page.next.removeprefix("(")) for page in pages if page.next is not None]
    every = sorted((one for page in pages for one in page.entries), key=lambda one: (order(one.id), one.stream))
    last = min([*ends, *(order(one.id) for one in every[count - 1 : count])], default=None)
    kept = tuple(one for one in every if last is None or order(one.id) <= last)
    more = bool(ends) or len(kept) < len(every)
    following = f"({last[0]}-{last[1]}" if more and last is not None else None
    return PendingPage(kept, following, looked_at)


def pending_facts(entry: PendingEntry, fields: object = None) -> Facts:
    """A pending entry."""
    return {
        "stream": entry.stream,
        "id": entry.id,
        "added_ms": milliseconds(entry.id),
        "consumer": entry.consumer,
        "idle_ms": entry.idle_ms,
        "due_in_ms": entry.due_in_ms,
        "deliveries": entry.deliveries,
        "unowned": entry.unowned,
        "fatal": entry.fatal,
        "gone": entry.gone,
        "fields": fields,
    }
