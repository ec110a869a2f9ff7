"""Places in a stream and the entries between them, as a change needs them.

Entries are counted by pages and up to a bound, so that each request is short for the server and each reply for us.
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
"""Entries that are counted, unless asked otherwise."""

ENTRIES_A_TRIP = 1_000
_PENDING_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries that were counted."""

    entries: int  # Number of entries, as far as they were counted
    first: str | None = None  # Id of the first; None without any
    last: str | None = None  # Id of the last one that was counted; None without any
    more: bool = False  # True if there are more


@dataclass(frozen=True, slots=True)
class TrimmedGroup:
    """The loss of a group."""

    group: str  # Its name
    pending: int  # Entries that it was delivered and has not acknowledged, as far as they were counted
    pending_more: bool  # True if there are more of these
    undelivered: int  # Entries that it was not delivered yet, as far as they were counted
    undelivered_more: bool  # True if there are more of these


@dataclass(frozen=True, slots=True)
class TrimFacts:
    """The known facts before a stream is trimmed."""

    stream: StreamStatus  # State of the stream
    oldest: str  # The lowest id that stays; entries below it go
    entries: int  # Number of removed entries, as far as they were counted
    more: bool  # True if there are more
    groups: tuple[TrimmedGroup, ...] = ()  # The loss of each


async def trim_facts(
    line: Line,
    stream: str,
    *,
    minid: str | None = None,
    maxlen: int = 0,
    most: int = MOST_COUNTED,
    tell: Counting | None = None,
) -> TrimFacts:
    """The effect of trimming a stream, and the groups that still need its entries."""
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
    """The id of the newest of this number of entries from the oldest on, found from the nearer end."""
    if goes == 0:
        return NEVER
    if goes <= stays:
        return await _shifted(line, status, NEVER, goes)
    return await _shifted(line, status, status.last_entry_id or status.last_id, -stays)


async def _trimmed(
    line: Line, status: StreamStatus, group: GroupStatus, last_gone: str, left: int | None
) -> TrimmedGroup:
    """The loss of a group when entries up to one are removed."""
    held, more = (0, False)
    if group.pending:
        held, more = await pending_between(line, status.key, group.name, NEVER, last_gone)
    # those not delivered are the newest, so none of them need be counted
    if group.lag.entries is not None and left is not None:
        return TrimmedGroup(group.name, held, more, max(group.lag.entries - left, 0), undelivered_more=False)
    near = line.near(status.key)
    ahead = await count_between(near, status.key, group.last_delivered_id, last_gone, MOST_COUNTED, None)
    return TrimmedGroup(group.name, held, more, ahead.entries, ahead.more)


def _above(entry: str) -> str:
    """The lowest id after one; the highest possible id, where there is none."""
    milliseconds, number = order(entry)
    if number < 2**64 - 1:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < 2**64 - 1 else entry


async def resolved(line: Line, status: StreamStatus, place: StreamPlace, here: str) -> str:
    """The last delivered id of a place."""
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
    """The last entry before a moment: the entries after it were added then and later."""
    if ms == 0:
        return NEVER
    rows = checked((await calls(line, [("XREVRANGE", stream, ms - 1, "-", "COUNT", 1)]))[0], stream)
    return text_of(rows[0][0]) if rows else NEVER


async def _shifted(line: Line, status: StreamStatus, here: str, by: int) -> str:
    """The place this number of entries on, at most the end, or back, at most the start."""
    if by >= 0:
        found = await count_between(line, status.key, here, status.last_id, by, None)
        return (found.last or here) if found.entries == by else status.last_id
    # the entry at its place, which may be gone, is not counted when it goes back
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
    """The id of the entry after one; None where there is none."""
    if entry == _HIGHEST:
        return None
    rows = checked((await calls(line, [("XRANGE", stream, f"({entry}", "+", "COUNT", 1)]))[0], stream)
    return text_of(rows[0][0]) if rows else None


_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"


async def count_between(line: Line, stream: str, low: str, high: str, most: int, tell: Counting | None) -> Counted:
    """Entries after ``low``, up to and including ``high``."""
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
    """Entries after one, of those that were there; counted from both ends at once, so the nearer one decides."""
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
    """A count from one end of a range."""

    low: str  # The id after which it goes on
    high: str  # The last one
    entries: int = 0  # Number of entries counted
    over: bool = False  # True if the end is reached

    def command(self, stream: str) -> Command:
        return ("XRANGE", stream, f"({self.low}", self.high, "COUNT", ENTRIES_A_TRIP)

    def take(self, rows: Sequence[Sequence[bytes]]) -> None:
        self.entries += len(rows)
        self.over = len(rows) < ENTRIES_A_TRIP
        self.low = text_of(rows[-1][0]) if rows else self.low


async def pending_between(line: Line, stream: str, group: str, low: str, high: str) -> tuple[int, bool]:
    """Pending entries after ``low``, up to and including ``high``; and True if there are more."""
    (reply,) = await calls(line.near(stream), [("XPENDING", stream, group, f"({low}", high, _PENDING_COUNTED + 1)])
    number = len(checked(reply, stream, group))
    return min(number, _PENDING_COUNTED), number > _PENDING_COUNTED
