"""Positions in a stream and counts of the entries between them, for the plans of changes.

Entries are counted page by page up to a limit, so that each request is short for the server and each reply is small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.line import Command, Line
from millstream.ops.asking import calls, checked
from millstream.ops.parameters import StreamPlace
from millstream.ops.plan import Counting, TargetMissingError
from millstream.ops.streams import reading as streams
from millstream.ops.streams.status import GroupStatus, StreamStatus
from millstream.ops.words import NEVER, before, order, text_of

MOST_COUNTED = 1_000_000
"""Default limit of entries that are counted."""

ENTRIES_A_TRIP = 1_000
_PENDING_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Result of counting entries."""

    entries: int  # Number of entries counted
    first: str | None = None  # Id of the first entry; None without any
    last: str | None = None  # Id of the last counted entry; None without any
    more: bool = False  # True if there are more entries


@dataclass(frozen=True, slots=True)
class TrimmedGroup:
    """The entries that a group loses by a trim."""

    group: str  # Name of the group
    pending: int  # Counted number of removed entries that are pending in the group
    pending_more: bool  # True if there are more of these
    undelivered: int  # Counted number of removed entries that were not delivered to the group yet
    undelivered_more: bool  # True if there are more of these


@dataclass(frozen=True, slots=True)
class TrimFacts:
    """The known facts before a stream is trimmed."""

    stream: StreamStatus  # State of the stream
    oldest: str  # Lowest id that stays; all entries below it are removed
    entries: int  # Counted number of removed entries
    more: bool  # True if there are more
    groups: tuple[TrimmedGroup, ...] = ()  # Losses of each group


async def trim_facts(
    line: Line,
    stream: str,
    *,
    minid: str | None = None,
    maxlen: int = 0,
    most: int = MOST_COUNTED,
    tell: Counting | None = None,
) -> TrimFacts:
    """Find the entries that a trim would remove, and the groups that still need them."""
    status, near = await streams.one(line, stream), line.near(stream)
    if minid is None:
        goes = max(status.length - maxlen, 0)
        last_gone, found = await _last_of(near, status, goes, maxlen), Counted(goes)
        after = await next_entry(near, stream, last_gone)
        oldest = after or _above(last_gone)
    else:
        oldest, last_gone = minid, before(minid) or NEVER
        found = await count_between(near, stream, NEVER, last_gone, most, tell)
    if not found.entries:
        return TrimFacts(status, oldest, 0, more=False)
    left = None if found.more else status.length - found.entries
    groups = tuple([await _trimmed(line, status, group, last_gone, left) for group in status.groups])
    return TrimFacts(status, oldest, found.entries, found.more, groups)


async def _last_of(line: Line, status: StreamStatus, goes: int, stays: int) -> str:
    """Return the id of the last entry to remove, given the numbers to remove and keep; scan from the nearer end."""
    if goes == 0:
        return NEVER
    if goes <= stays:
        return await _shifted(line, status, NEVER, goes)
    return await _shifted(line, status, status.last_entry_id or status.last_id, -stays)


async def _trimmed(
    line: Line, status: StreamStatus, group: GroupStatus, last_gone: str, left: int | None
) -> TrimmedGroup:
    """Return a group's losses if entries up to an id are removed."""
    held, more = (0, False)
    if group.pending:
        held, more = await pending_between(line, status.key, group.name, NEVER, last_gone)
    # Undelivered entries are the newest, so no count is necessary
    if group.lag.entries is not None and left is not None:
        return TrimmedGroup(group.name, held, more, max(group.lag.entries - left, 0), undelivered_more=False)
    near = line.near(status.key)
    ahead = await count_between(near, status.key, group.last_delivered_id, last_gone, MOST_COUNTED, None)
    return TrimmedGroup(group.name, held, more, ahead.entries, ahead.more)


def _above(entry: str) -> str:
    """Return the lowest id after another; the highest possible id stays as it is."""
    milliseconds, number = order(entry)
    if number < 2**64 - 1:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < 2**64 - 1 else entry


async def resolved(line: Line, status: StreamStatus, place: StreamPlace, here: str) -> str:
    """Return the last delivered id that a position stands for."""
    if place.kind == "like":
        other = next((each for each in status.groups if each.name == place.group), None)
        if other is None:
            raise TargetMissingError(f"the stream {status.key!r} has no group {place.group!r} to take the position of")
        return other.last_delivered_id
    if place.kind == "time":
        return await _before(line, status.key, place.ms)
    if place.kind == "shift":
        return await _shifted(line, status, here, place.shift)
    return {"start": NEVER, "end": status.last_id}.get(place.kind, place.id)


async def _before(line: Line, stream: str, ms: int) -> str:
    """Return the id of the last entry before a time, so that the entries after it were added at that time or later."""
    if ms == 0:
        return NEVER
    rows = checked((await calls(line, [("XREVRANGE", stream, ms - 1, "-", "COUNT", 1)]))[0], stream)
    return text_of(rows[0][0]) if rows else NEVER


async def _shifted(line: Line, status: StreamStatus, here: str, by: int) -> str:
    """Return the position after moving by this number of entries, limited to the stream's start and end."""
    if by >= 0:
        found = await count_between(line, status.key, here, status.last_id, by, None)
        return (found.last or here) if found.entries == by else status.last_id
    # When moving back, an entry at the position itself does not count
    there = bool(checked((await calls(line, [("XRANGE", status.key, here, here)]))[0], status.key))
    left, end = -by + there, here
    while left > 0:
        page = min(left, ENTRIES_A_TRIP)
        rows = checked((await calls(line, [("XREVRANGE", status.key, end, "-", "COUNT", page)]))[0], status.key)
        left -= len(rows)
        if len(rows) < page:
            return NEVER
        end = f"({text_of(rows[-1][0])}"
    return end.removeprefix("(")


async def next_entry(line: Line, stream: str, entry: str) -> str | None:
    """Return the id of the entry after another; None if there is none."""
    if entry == _HIGHEST:
        return None
    rows = checked((await calls(line, [("XRANGE", stream, f"({entry}", "+", "COUNT", 1)]))[0], stream)
    return text_of(rows[0][0]) if rows else None


_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"


async def count_between(line: Line, stream: str, low: str, high: str, most: int, tell: Counting | None) -> Counted:
    """Count the entries after ``low``, up to and including ``high``."""
    found = Counted(0)
    start = f"({low}"
    while low != _HIGHEST and order(low) < order(high):
        page = min(ENTRIES_A_TRIP, most - found.entries + 1)
        rows = checked((await calls(line, [("XRANGE", stream, start, high, "COUNT", page)]))[0], stream)
        kept = rows[: most - found.entries]
        if kept:
            first = found.first or text_of(kept[0][0])
            found = Counted(found.entries + len(kept), first, text_of(kept[-1][0]), len(kept) < len(rows))
        if len(rows) < page or len(kept) < len(rows):
            break
        start = f"({found.last}"
        if tell is not None:
            tell(found.entries)
    return found


async def count_after(line: Line, status: StreamStatus, entry: str, most: int) -> int | None:
    """Count the entries after an id from both ends at once until one count ends; None if both exceed the limit."""
    first, last = status.first_entry_id, status.last_entry_id
    if first is None or last is None or order(entry) >= order(last):
        return 0
    if order(entry) < order(first):
        return status.length
    behind, before = _Walk(entry, last), _Walk(NEVER, entry)
    for _ in range(0, most + ENTRIES_A_TRIP, ENTRIES_A_TRIP):
        asked = [walk.command(status.key) for walk in (behind, before)]
        for walk, reply in zip((behind, before), await calls(line, asked), strict=True):
            walk.take(checked(reply, status.key))
        if behind.over:
            return behind.entries
        if before.over:
            return max(status.length - before.entries, 0)
    return None


@dataclass(slots=True)
class _Walk:
    """A count that proceeds through a range of ids."""

    low: str  # Id after which the count continues
    high: str  # Last id of the range
    entries: int = 0  # Number of entries counted
    over: bool = False  # True once the end is reached

    def command(self, stream: str) -> Command:
        return ("XRANGE", stream, f"({self.low}", self.high, "COUNT", ENTRIES_A_TRIP)

    def take(self, rows: Sequence[Sequence[bytes]]) -> None:
        self.entries += len(rows)
        self.over = len(rows) < ENTRIES_A_TRIP
        self.low = text_of(rows[-1][0]) if rows else self.low


async def pending_between(line: Line, stream: str, group: str, low: str, high: str) -> tuple[int, bool]:
    """Count pending entries after ``low``, up to and including ``high``; also return True if there are more."""
    (reply,) = await calls(line.near(stream), [("XPENDING", stream, group, f"({low}", high, _PENDING_COUNTED + 1)])
    number = len(checked(reply, stream, group))
    return min(number, _PENDING_COUNTED), number > _PENDING_COUNTED
