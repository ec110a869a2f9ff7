"""The entries that a micro-batch reads, decided from values alone: PURE, no server, no Spark, no clock.

A position in a stream is an entry id together with the number of entries ever added up to it. The id is the place to
continue. The number makes lag and batch sizes exact and shows if entries vanished before they were read. Both come from
one atomic reply of the server. Ids only grow, so nothing can be added below ``last-generated-id``.

The offset that Spark keeps in its checkpoint is, for each key of a stream::

    {"from": "5-0", "from_n": 2, "id": "9-0", "n": 6}

It holds the whole batch, ``(from, id]``. With its end alone, a first batch that failed could not be repeated, because
Spark does not keep its beginning.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from millstream.errors import UsageError
from millstream.texts import plural

MAX_PART = 2**64 - 1
_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?")


class DataLossError(UsageError):
    """Entries that a query had to read are gone; the message has the stream, the ids and the count.

    What to do: restore the entries from an archive or a backup, or set `failOnDataLoss` to `false` to continue without
    them.
    """


class Id(NamedTuple):
    """An entry id; it compares as the server orders entries."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def as_int(self) -> int:
        """Return one number with the same order, for arithmetic between ids."""
        return (self.ms << 64) | self.seq

    @property
    def before(self) -> "Id":
        """The id just below this one; for 0-0 itself."""
        one_less = max(0, self.as_int() - 1)
        return Id(one_less >> 64, one_less & MAX_PART)

    @property
    def after(self) -> "Id":
        """The id just above this one; for the highest id itself."""
        one_more = min((1 << 128) - 1, self.as_int() + 1)
        return Id(one_more >> 64, one_more & MAX_PART)


ZERO = Id(0, 0)


def parse_id(text: str) -> Id:
    """Parse an id; the part after the dash may be absent and is then 0."""
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an entry id such as 1700000000000-0")
    ident = Id(int(found[1]), int(found[2] or 0))
    if max(ident) > MAX_PART:
        raise ValueError(f"{text!r} is greater than any entry id")
    return ident


def before_time(ms: int) -> Id:
    """Return the highest id older than ``ms`` (milliseconds since 1970): reading after it starts at that time."""
    return Id(ms - 1, MAX_PART) if ms > 0 else ZERO


@dataclass(frozen=True, slots=True)
class Position:
    """The beginning and the end of a batch of one stream."""

    start: Id  # Id after which the batch begins (exclusive)
    start_n: int  # Entries added up to ``start``
    id: Id  # Last id of the batch (inclusive)
    n: int  # Entries added up to ``id``
    # Largest number of entries beyond ``n`` that may have been added up to ``id``. Above 0 only while a reader counts
    # past deleted entries
    holes: int = 0

    @classmethod
    def at(cls, ident: Id, n: int) -> "Position":
        """Return an empty batch at one place: the beginning of a query."""
        return cls(ident, n, ident, n)

    def advanced(self, ident: Id, n: int, holes: int = 0) -> "Position":
        """Return the batch that follows this one."""
        return Position(self.id, self.n, ident, n, holes)


Offset = dict[str, Position]


def dump(offset: Mapping[str, Position]) -> dict[str, dict[str, Any]]:
    """Return the offset in Spark's form. Keys are sorted: Spark compares offsets as text."""
    found: dict[str, dict[str, Any]] = {}
    for key in sorted(offset):
        at = offset[key]
        entry: dict[str, Any] = {"from": str(at.start), "from_n": at.start_n}
        if at.holes:
            entry["holes"] = at.holes
        found[key] = entry | {"id": str(at.id), "n": at.n}
    return found


def load(raw: Mapping[str, Any]) -> Offset:
    """Parse the offset that :func:`dump` made."""
    try:
        return {
            key: Position(
                parse_id(at["from"]), int(at["from_n"]), parse_id(at["id"]), int(at["n"]), int(at.get("holes", 0))
            )
            for key, at in raw.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as reason:
        raise UsageError(
            f"the checkpoint's offsets are not those of a millstream query: {raw!r} ({reason}); "
            "give this query a checkpointLocation of its own"
        ) from None


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream, from one reply to XINFO STREAM."""

    last: Id  # Last-generated-id
    added: int  # Entries-added, over the stream's lifetime
    length: int  # Present number of entries
    max_deleted: Id  # Highest id removed by XDEL (trimming does not change it)
    first: Id | None  # Id of the first present entry; None if there is none
    mark: bytes = b""  # Digest of the first entry's content

    @property
    def removed(self) -> int:
        """Number of entries that were added and later trimmed or deleted."""
        return max(0, self.added - self.length)

    @property
    def beginning(self) -> Position:
        """Position before the first present entry."""
        return Position.at(ZERO, self.removed)

    @property
    def end(self) -> Position:
        """Position after the last entry."""
        return Position.at(self.last, self.added)


def went_back(key: str, at: Position, state: StreamState | None) -> str | None:
    """Return the reason why reading on from ``at`` would silently read nothing or wrong entries; None if it is safe.

    The stream was deleted, or replaced by an older state of it (a restored backup, a failover to a replica behind).
    """
    reason = how_it_went_back(at, state)
    if reason is None:
        return None
    if state is None:
        return (
            f"stream {key!r} went back: this query has read up to {at.id} (entry {at.n}), and it no longer exists; "
            "whether it had more by then is not known. Set option 'onMissingStream' to 'skip' to go on without it, and "
            "from the beginning of a stream that is made under its name; or start the query with a new "
            "checkpointLocation (and startingOffsets)"
        )
    return (
        f"stream {key!r} went back: this query has read up to {at.id} (entry {at.n}), but {reason}. "
        "It was deleted and created again, or restored from an older state. Start the query with a new "
        "checkpointLocation (and startingOffsets)"
    )


def how_it_went_back(at: Position, state: StreamState | None) -> str | None:
    """Return how the stream is behind the position ``at``, which was read; None if it is not."""
    if at.n == 0 and at.id == ZERO:
        return None
    if state is None:
        return "it no longer exists"
    if state.last < at.id and at.start != at.id:  # a query that has read nothing may start beyond the stream's end
        return f"its last id is now {state.last}"
    if state.added < at.n:
        return f"only {plural(state.added, 'entry was', 'entries were')} ever added to it"
    return None


def replaced(before: StreamState, now: StreamState, up_to: Callable[[], int], n: int) -> str | None:
    """Return the reason why a stream is not the one of an earlier state; None if it may be the same.

    Entries never change and are only added at the end, so the first entry changes only if entries were removed. The
    number of removed entries never falls, unless a failover undid a trim. Then all read entries that are not removed
    must be there.
    """
    if now.removed < before.removed or (now.first and before.first and now.first < before.first):
        there = up_to()
        if there < n - now.removed:
            are, were = "is" if there == 1 else "are", "was" if now.removed == 1 else "were"
            read = plural(n, "entry that was read", "entries that were read")
            return f"of {read} {there} {are} there, and {now.removed} {were} removed"
    elif now.first and before.first and now.first > before.first and now.removed == before.removed:
        return f"its first entry was {before.first} and is now {now.first}, though nothing was removed"
    if now.first == before.first and now.mark != before.mark:
        return f"its first entry {now.first} holds other fields than before"
    return None


def replaced_text(key: str, at: Position, reason: str) -> str:
    """Return the error text for a stream that was replaced between two checks."""
    return (
        f"stream {key!r} went back: {reason}. It was deleted and created again since this query last looked, so "
        f"entries up to {at.id} may be others than those that were read. Start the query with a new "
        "checkpointLocation (and startingOffsets)"
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries that left the stream before they were read."""

    key: str  # Key of the stream
    after: Id  # Last id that was read
    until: Id | None  # Id of the first existing entry; None if there is none
    count: int  # Number of lost entries
    # True if they were trimmed. False if later entries were also deleted one by one (XDEL, which groups use for
    # finished entries): the server's counts cannot distinguish the two then.
    certain: bool

    def __str__(self) -> str:
        until = f"before {self.until}" if self.until else "up to the end"
        how = "trimmed away" if self.certain else "deleted or trimmed"
        entries, they = plural(self.count, "entry", "entries"), "it was" if self.count == 1 else "they were"
        span = f"{self.after} and {until} {they.split()[1]} {how}"
        return f"stream {self.key!r}: {entries} after {span} before {they} read"


def find_loss(key: str, at: Position, state: StreamState) -> Loss | None:
    """Return the entries past ``at`` that have left the stream unread; None without any."""
    gone = state.removed - at.n - at.holes
    if gone <= 0 or (state.first is not None and state.first <= at.id):
        # Trimming removes the oldest entries first: if an entry up to ``at`` exists, trimming has not passed ``at``.
        return None
    return Loss(key, at.id, state.first, gone, certain=state.max_deleted <= at.id)


def share(wanted: Mapping[str, int], cap: int, order: Mapping[str, Id]) -> dict[str, int]:
    """Split ``cap`` entries over streams: each gets an equal share; the unused part of a share goes to others."""
    waiting = sorted((key for key, count in wanted.items() if count > 0), key=lambda key: (order[key], key))
    chosen = sorted(waiting[:cap], key=lambda key: wanted[key])
    found: dict[str, int] = {}
    for place, key in enumerate(chosen):
        found[key] = min(wanted[key], cap // (len(chosen) - place))
        cap -= found[key]
    return found


class Index:
    """Known pairs (id, entries added) of one stream: a batch can end at one of them without counting."""

    def __init__(self, limit: int = 2048) -> None:
        self._points: list[tuple[Id, int]] = []
        self._limit = limit

    def add(self, ident: Id, n: int) -> None:
        """Add a pair; pairs that are not higher than the last one are ignored."""
        if self._points and (self._points[-1][0] >= ident or self._points[-1][1] >= n):
            return
        self._points.append((ident, n))
        if len(self._points) > self._limit:
            self._points = self._points[1::2]

    def forget_before(self, ident: Id) -> None:
        """Drop the pairs up to ``ident``: their entries have been read."""
        while self._points and self._points[0][0] <= ident:
            self._points.pop(0)

    def between(self, start: Id, end: Id) -> list[tuple[Id, int]]:
        """Return the pairs strictly between two ids, in order."""
        return [point for point in self._points if start < point[0] < end]

    def cut(self, at: Position, budget: int, least: float = 0.9) -> tuple[Id, int] | None:
        """Return the furthest known end of a batch of at most ``budget`` entries after ``at``.

        None if the batch would hold less than the share ``least`` of them. Deletions make a batch smaller than the
        difference of its counts, never larger, so the budget is kept.
        """
        fitting = [point for point in self._points if at.id < point[0] and point[1] <= at.n + budget]
        if fitting and fitting[-1][1] >= at.n + budget * least:
            return fitting[-1]
        return None


def counted_cut(at: Position, state: StreamState, ident: Id, rows: int) -> Position:
    """Return the end of a batch found by counting ``rows`` entries forward from ``at`` to ``ident``.

    Counting sees only present entries. If everything removed past ``at`` was trimmed, the number is still exact;
    if entries were deleted further on, some of them may lie inside the batch.
    """
    skipped = max(0, state.removed - at.n - at.holes)
    if state.max_deleted <= at.id:
        return at.advanced(ident, at.n + skipped + rows, at.holes)
    n = min(at.n + rows, state.added)
    return at.advanced(ident, n, min(state.removed, state.added - n))


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream that a batch reads: ``(start, end]``."""

    key: str  # Key of the stream
    start: Id  # Exclusive
    end: Id  # Inclusive
    start_n: int  # Entries added up to ``start``
    rows: int  # Upper bound of the rows, only for sizing
    # First entry after ``start`` at planning; None if there is none
    first: Id | None = None


def batch_ranges(start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Range]:
    """Return the ranges of the batch between two offsets, one for each stream with entries in it, sorted by key.

    A stream has no entries in it if its end is not after its start. A restarted first batch is such a case if "latest"
    has moved on. If the end's own beginning is earlier than the start, it counts, which repeats that batch.
    """
    found = []
    for key in sorted(end):
        to, since = end[key], start.get(key)
        if since == to:
            continue
        low, low_n = to.start, to.start_n
        if since is not None and since.id < low:
            low, low_n = since.id, since.n
        if low < to.id:
            found.append(Range(key, low, to.id, low_n, max(0, to.n - low_n)))
    return found


def estimated_rows(state: StreamState, start: Id, end: Id) -> int:
    """Return the approximate number of entries in ``(start, end]``, if they are spread evenly over the stream's ids."""
    if state.first is None:
        return 0
    first, last = state.first.as_int(), state.last.as_int()
    inside = min(end.as_int(), last) - max(start.as_int(), first - 1)
    return max(0, -(-state.length * inside // (last - first + 1)))


def parts_for(rows: int, total: int, min_partitions: int | None) -> int:
    """Return the number of parts of a range: its share of ``min_partitions``, or else one for each 100,000 entries."""
    if rows <= 1:
        return 1
    if min_partitions is None:
        return min(8, -(-rows // 100_000))
    return min(rows, max(1, -(-min_partitions * rows // max(total, 1))))


def split(whole: Range, parts: int, known: Sequence[tuple[Id, int]] = ()) -> list[Range]:
    """Cut a range into about equal parts without any command to the server.

    Between two positions with known counts, the entries are assumed to be spread evenly over the ids, which is time.
    """
    if parts <= 1 or whole.rows <= 1:
        return [whole]
    low = max(whole.start.as_int(), whole.first.as_int() - 1 if whole.first else 0)
    points = [(low, whole.start_n)]
    points += [(ident.as_int(), n) for ident, n in known if ident.as_int() > low and n > whole.start_n]
    points.append((whole.end.as_int(), whole.start_n + whole.rows))
    cuts = [_place(points, whole.start_n + whole.rows * part // parts) for part in range(1, parts)]
    return cut_at(whole, [Id(cut >> 64, cut & MAX_PART) for cut in cuts])


def _place(points: Sequence[tuple[int, int]], n: int) -> int:
    """Return the id at which the count ``n`` is reached, by linear interpolation between the points."""
    for (low, low_n), (high, high_n) in pairwise(points):
        if n <= high_n and high_n > low_n:
            return low + (high - low) * (n - low_n) // (high_n - low_n)
    return points[-1][0]


def cut_at(whole: Range, cuts: Iterable[Id]) -> list[Range]:
    """Return the parts of a range between the ids ``cuts``, each of which ends one part; no part is an empty range."""
    ends = [*sorted({cut for cut in cuts if whole.start < cut < whole.end}), whole.end]
    rows = max(1, whole.rows // len(ends))
    starts = [whole.start, *ends[:-1]]
    return [replace(whole, start=low, end=high, rows=rows) for low, high in zip(starts, ends, strict=True)]
