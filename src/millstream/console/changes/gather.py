"""The facts that a change needs, asked of a server: places in a stream, the entries between them, holders.

Entries are counted by pages and up to a bound, so that each request is short for the server and each reply for us.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from millstream.client.delays import due
from millstream.client.line import Command, Line
from millstream.clock import SystemClock
from millstream.console.changes.groups import Ahead, Between, GroupReaders, readers
from millstream.console.changes.plan import MOST_KEPT, NOBODY, HeldEntry, TargetMissingError
from millstream.console.changes.positions import StreamPlace
from millstream.console.changes.removals import ConsumerFacts
from millstream.console.changes.trims import TrimFacts, TrimmedGroup
from millstream.console.model import replies
from millstream.console.model.names import NEVER, order, text_of
from millstream.console.model.pending import Chosen, PendingChoice, PendingEntry
from millstream.console.model.streams import GroupStatus, StreamStatus
from millstream.console.reading import fleet, groups, pending, streams
from millstream.console.reading.asking import calls, checked

MOST_COUNTED = 1_000_000
"""Entries that are counted, unless asked otherwise."""

PAGE = 1_000
_PENDING_COUNTED = 10_000

Counting = Callable[[int], None]
"""Called with how many entries were counted so far."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries that were counted."""

    entries: int  # Number of entries, as far as they were counted
    first: str | None = None  # Id of the first; None without any
    last: str | None = None  # Id of the last one that was counted; None without any
    more: bool = False  # True if there are more


async def pages(line: Line, stream: str, group: str, chosen: Chosen) -> AsyncIterator[list[HeldEntry]]:
    """Pending entries that are chosen, as they are held, a page at a time."""
    if isinstance(chosen, tuple):
        for at in range(0, len(chosen), PAGE):
            yield await _by_id(line, stream, group, chosen[at : at + PAGE])
        return
    choice = None if chosen == PendingChoice() else chosen
    start: str | None = "-"
    while start is not None:
        now_ms = await server_time(line, stream)
        page = await pending.page(line, stream, group, start=start, count=PAGE, choice=choice)
        yield [_held(entry, now_ms) for entry in page.entries]
        start = page.next


async def _by_id(line: Line, stream: str, group: str, ids: Sequence[str]) -> list[HeldEntry]:
    now_ms = await server_time(line, stream)
    asked: list[Command] = [("XPENDING", stream, group, each, each, 1) for each in ids]
    *answers, delayed = await calls(line.near(stream), [*asked, ("ZCARD", due.key(stream, group))])
    rows = [row for reply in answers for row in checked(reply, stream, group)]
    found = [replies.pending_entry(stream, group, row) for row in rows]
    return [_held(entry, now_ms) for entry in (await pending.with_due(line, found) if delayed else found)]


def _held(entry: PendingEntry, now_ms: int) -> HeldEntry:
    since_ms = 0 if entry.idle_ms is None else max(now_ms - entry.idle_ms, 0)
    return HeldEntry(entry.id, entry.consumer or NOBODY, since_ms, entry.deliveries, entry.due_in_ms is not None)


async def server_time(line: Line, stream: str) -> int:
    """Wall milliseconds by the clock of the server that has a stream; by ours where it does not let us ask."""
    (reply,) = await line.near(stream).calls([("TIME",)])
    if isinstance(reply, Exception):
        return SystemClock().wall_time()
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


async def held_by(line: Line, stream: str, group: str, consumer: str | None = None) -> list[HeldEntry]:
    """Pending entries as they are held, as many as an undo keeps, and one more where there are more."""
    found: list[HeldEntry] = []
    async for page in pages(line, stream, group, PendingChoice(consumer=consumer)):
        found += page
        if len(found) > MOST_KEPT:
            break
    return found[: MOST_KEPT + 1]


async def consumer_facts(line: Line, stream: str, group: str, consumer: str) -> ConsumerFacts:
    """The known facts about a consumer that will be removed."""
    found = {each.name: each for each in await groups.consumers(line, stream, group)}
    if consumer not in found:
        has = f"its consumers are: {', '.join(sorted(found)[:10])}" if found else "it has none"
        raise TargetMissingError(f"the group {group!r} of {stream!r} has no consumer {consumer!r}; {has}")
    held = await held_by(line, stream, group, consumer)
    return ConsumerFacts(found[consumer], tuple(held), tuple(name for name in sorted(found) if name != consumer))


@dataclass(frozen=True, slots=True)
class RewindFacts:
    """The facts that a rewind needs."""

    stream: StreamStatus  # State of the stream
    group: GroupStatus  # State of the group
    here: Ahead  # Its present place
    there: Ahead  # Its new place
    between: Between  # Entries between the two
    read_by: GroupReaders  # Readers of the group


async def rewind_facts(
    line: Line, stream: str, group: str, place: StreamPlace, *, most: int = MOST_COUNTED, tell: Counting | None = None
) -> RewindFacts:
    """Look up a place for a group, and count the entries between it and the group's present place."""
    seen = await groups.read_group(line, stream, group)
    status, found = seen.streams.streams[0], seen.group
    near = line.near(stream)
    here, there = found.last_delivered_id, await resolved(near, status, place, found.last_delivered_id)
    low, high = sorted((here, there), key=order)
    inside = await _count(near, stream, low, min(high, status.last_id, key=order), most, tell)
    beyond = await _count_behind(near, status, high, most)
    after = {high: beyond, low: None if beyond is None or inside.more else beyond + inside.entries}
    nexts = {low: inside.first or await _next(near, stream, low), high: await _next(near, stream, high)}
    held, more = await _pending_between(line, stream, group, low, high) if found.pending and low != high else (0, False)
    between = Between(inside.entries, held, inside.more, more)
    read_by = readers(seen, await fleet.workers(line))
    here_ahead, there_ahead = (Ahead(each, after[each], nexts[each]) for each in (here, there))
    return RewindFacts(status, found, here_ahead, there_ahead, between, read_by)


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
        after = await _next(near, stream, last_gone)
        oldest = after or _above(last_gone)
    else:
        oldest, last_gone = minid, _below(minid)
        found = await _count(near, stream, NEVER, last_gone, most, tell)
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
        held, more = await _pending_between(line, status.key, group.name, NEVER, last_gone)
    # those not delivered are the newest, so none of them need be counted
    if group.lag.entries is not None and left is not None:
        return TrimmedGroup(group.name, held, more, max(group.lag.entries - left, 0), undelivered_more=False)
    near = line.near(status.key)
    ahead = await _count(near, status.key, group.last_delivered_id, last_gone, MOST_COUNTED, None)
    return TrimmedGroup(group.name, held, more, ahead.entries, ahead.more)


def _above(entry: str) -> str:
    """The lowest id after one; the highest possible id, where there is none."""
    milliseconds, number = order(entry)
    if number < 2**64 - 1:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < 2**64 - 1 else entry


def _below(entry: str) -> str:
    """The highest id before one; the lowest there is, where there is none."""
    milliseconds, number = order(entry)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{2**64 - 1}" if milliseconds else NEVER


async def place_facts(
    line: Line, status: StreamStatus | None, place: StreamPlace, *, most: int = MOST_COUNTED
) -> Ahead:
    """Look up a place for a group that is to be made."""
    if status is None:
        return Ahead(place.id or NEVER, 0, None)
    near = line.near(status.key)
    there = await resolved(near, status, place, NEVER)
    return Ahead(there, await _count_behind(near, status, there, most), await _next(near, status.key, there))


async def resolved(line: Line, status: StreamStatus, place: StreamPlace, here: str) -> str:
    """The last delivered id of a place."""
    if place.kind == "like":
        other = next((each for each in status.groups if each.name == place.group), None)
        if other is None:
            raise TargetMissingError(f"the stream {status.key!r} has no group {place.group!r} to stand like")
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
        found = await _count(line, status.key, here, status.last_id, by, None)
        return (found.last or here) if found.entries == by else status.last_id
    # the entry at its place, which may be gone, is not counted when it goes back
    there = bool(checked((await calls(line, [("XRANGE", status.key, here, here)]))[0], status.key))
    left, end = -by + there, here
    while left > 0:
        page = min(left, PAGE)
        rows = checked((await calls(line, [("XREVRANGE", status.key, end, "-", "COUNT", page)]))[0], status.key)
        left -= len(rows)
        if len(rows) < page:
            return NEVER
        end = f"({text_of(rows[-1][0])}"
    return end.removeprefix("(")


async def _next(line: Line, stream: str, entry: str) -> str | None:
    if entry == _HIGHEST:
        return None
    rows = checked((await calls(line, [("XRANGE", stream, f"({entry}", "+", "COUNT", 1)]))[0], stream)
    return text_of(rows[0][0]) if rows else None


_HIGHEST = f"{2**64 - 1}-{2**64 - 1}"


async def _count(line: Line, stream: str, low: str, high: str, most: int, tell: Counting | None) -> Counted:
    """Entries after ``low``, up to and including ``high``."""
    found = Counted(0)
    start = f"({low}"
    while low != _HIGHEST and order(low) < order(high):
        page = min(PAGE, most - found.entries + 1)
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


async def _count_behind(line: Line, status: StreamStatus, entry: str, most: int) -> int | None:
    """Entries after one, of those that were there; counted from both ends at once, so the nearer one decides."""
    first, last = status.first_entry_id, status.last_entry_id
    if first is None or last is None or order(entry) >= order(last):
        return 0
    if order(entry) < order(first):
        return status.length
    behind, before = _Walk(entry, last), _Walk(NEVER, entry)
    for _ in range(0, most + PAGE, PAGE):
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
        return ("XRANGE", stream, f"({self.low}", self.high, "COUNT", PAGE)

    def take(self, rows: Sequence[Sequence[bytes]]) -> None:
        self.entries += len(rows)
        self.over = len(rows) < PAGE
        self.low = text_of(rows[-1][0]) if rows else self.low


async def _pending_between(line: Line, stream: str, group: str, low: str, high: str) -> tuple[int, bool]:
    """Pending entries after ``low``, up to and including ``high``; and True if there are more."""
    (reply,) = await calls(line.near(stream), [("XPENDING", stream, group, f"({low}", high, _PENDING_COUNTED + 1)])
    number = len(checked(reply, stream, group))
    return min(number, _PENDING_COUNTED), number > _PENDING_COUNTED
