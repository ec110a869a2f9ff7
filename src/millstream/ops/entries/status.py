"""One entry's state in each group, and the parts of a stream that are gone. PURE."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from millstream.ops.pending.status import PendingEntry
from millstream.ops.streams.status import StreamStatus
from millstream.ops.words import NEVER, EntryView, order

Standing = Literal["undelivered", "pending", "passed"]
"""The state of an entry in a group.

``undelivered``: not delivered yet. ``pending``: delivered and not acknowledged. ``passed``: before the group's position
and not pending. Either it was acknowledged or the position was set past it; a server does not distinguish these.
"""


@dataclass(frozen=True, slots=True)
class EntryStanding:
    """The state of an entry in one group."""

    group: str  # Name of the group
    state: Standing  # See :data:`Standing`
    # Holder, idle time and deliveries; None if the entry is not pending
    pending: PendingEntry | None = None


@dataclass(frozen=True, slots=True)
class EntryFound:
    """One entry and its state in each group."""

    stream: str  # Key of the stream
    id: str  # The requested id
    entry: EntryView | None  # Content of the entry; None if the stream does not have it
    standings: tuple[EntryStanding, ...] = ()  # States by group
    refused: str | None = None  # Reason why the groups are unknown; None if they are known

    @property
    def pending(self) -> bool:
        """True if the entry is pending in any group."""
        return any(one.state == "pending" for one in self.standings)


def standing_of(entry: str, group: str, delivered: str, rows: Sequence[PendingEntry]) -> EntryStanding:
    """Return the state of an entry in a group."""
    if rows:
        return EntryStanding(group, "pending", rows[0])
    return EntryStanding(group, "undelivered" if order(entry) > order(delivered) else "passed")


@dataclass(frozen=True, slots=True)
class EntryGap:
    """A gap between two neighbouring ids where entries are missing."""

    after: str  # Id of the entry before the gap; ``"0-0"`` for the start of the stream
    before: str  # Id of the entry after the gap; the last generated id, if the newest entries are missing
    missing: int  # Minimum number of missing entries
    evidence: str  # Evidence for the gap, in words


@dataclass(frozen=True, slots=True)
class GonePending:
    """Pending entries of a group that the stream does not contain any more."""

    group: str  # Name of the group
    entries: int  # Number of these entries in the scanned part
    first: str  # Lowest id
    last: str  # Highest id


@dataclass(frozen=True, slots=True)
class StreamGaps:
    """The known facts about a stream's missing entries."""

    stream: StreamStatus  # State of the stream
    gaps: tuple[EntryGap, ...]  # Gaps in the scanned part, by id
    pending: tuple[GonePending, ...]  # Pending entries that no longer exist, by group
    looked_at: int  # Number of entries scanned, from the oldest on
    whole: bool  # True if the whole stream was scanned

    @property
    def missing(self) -> int | None:
        """Number of entries added and gone; None if the server does not count them, or XSETID set the count too low."""
        added = self.stream.entries_added
        return None if added is None or added < self.stream.length else added - self.stream.length

    @property
    def inside(self) -> bool | None:
        """True if an entry after the oldest present one was deleted; None if the server does not report it."""
        deleted = self.stream.max_deleted_id
        if deleted is None:
            return None
        first = self.stream.first_entry_id
        return first is not None and order(deleted) > order(first)

    @property
    def says(self) -> str:
        """The result in one sentence."""
        one = self.stream
        if self.missing is None:
            if one.entries_added is None:
                return "The number of missing entries is unknown: this server does not count (Redis 7.0 and newer do)."
            return "The number of missing entries is unknown: XSETID lowered the count of entries ever added."
        if self.missing == 0:
            skipped = " The ids between them were never added: producers chose their own." if self.gaps else ""
            return f"Nothing is missing: the stream has all entries that were ever added.{skipped}"
        gone = f"{self.missing} {'entry' if self.missing == 1 else 'entries'}"
        if self.inside is False and one.first_entry_id is not None:
            return f"{gone} gone, all older than the oldest entry: trimmed, or deleted from that end."
        if one.first_entry_id is None:
            return f"{gone} gone: the stream is empty."
        return (
            f"{gone} gone, trimmed or deleted; of those deleted (XDEL) the highest is {one.max_deleted_id}, behind the "
            "oldest that is there."
        )


class GapFinder:
    """Finder of gaps between ids that are given in order."""

    def __init__(self) -> None:
        self.gaps: list[EntryGap] = []  # The gaps found
        self.ids: set[str] = set()  # All ids seen
        self._last: str | None = None

    def take(self, ids: Iterable[str]) -> None:
        """Compare the next ids with their predecessors."""
        for each in ids:
            if self._last is not None:
                self._compare(self._last, each)
            self.ids.add(each)
            self._last = each

    def _compare(self, before: str, after: str) -> None:
        (ms, number), (next_ms, next_number) = order(before), order(after)
        skipped = next_number - number - 1 if ms == next_ms else next_number
        if skipped > 0:
            self.gaps.append(EntryGap(before, after, skipped, "ids of one millisecond are not consecutive"))

    def found(self, stream: StreamStatus, pending: Sequence[tuple[str, Sequence[str]]], *, whole: bool) -> StreamGaps:
        """Return the gaps and the pending entries that are gone."""
        gaps = list(self.gaps)
        first, last, deleted = stream.first_entry_id, stream.last_entry_id, stream.max_deleted_id
        if whole and order(stream.last_id) > order(last or NEVER):
            why = "the last id that the server gave is after the newest entry"
            gaps.append(EntryGap(last or NEVER, stream.last_id, 1, why))
        known = any(order(gap.after) < order(deleted or NEVER) <= order(gap.before) for gap in gaps)
        if whole and deleted and first and order(deleted) > order(first) and not known:
            neighbours = self._around(deleted)
            gaps.append(EntryGap(*neighbours, 1, f"{deleted} was deleted (XDEL)"))
        gone = tuple(filter(None, (self._gone(group, ids, whole=whole) for group, ids in pending)))
        return StreamGaps(stream, tuple(sorted(gaps, key=lambda gap: order(gap.after))), gone, len(self.ids), whole)

    def _around(self, entry: str) -> tuple[str, str]:
        """Return the neighbours of an id among the ids seen so far."""
        place = order(entry)
        below = max((each for each in self.ids if order(each) < place), key=order, default=NEVER)
        above = min((each for each in self.ids if order(each) > place), key=order, default=entry)
        return below, above

    def _gone(self, group: str, ids: Sequence[str], *, whole: bool) -> GonePending | None:
        """Return the group's pending ids that the stream lacks, in the part scanned so far."""
        end = None if whole or self._last is None else order(self._last)
        gone = [each for each in ids if each not in self.ids and (end is None or order(each) <= end)]
        return GonePending(group, len(gone), gone[0], gone[-1]) if gone else None
