"""Pending entries of a group: a summary, and pages of them by id, which cost the same for any number of them."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from heapq import heappush, heappushpop
from typing import Any

from millstream.client.delays import due
from millstream.client.line import Command, Line
from millstream.client.ranges import behind
from millstream.clock import SystemClock
from millstream.ops.asking import calls, checked
from millstream.ops.pending.status import (
    Chosen,
    PendingChoice,
    PendingEntry,
    PendingOrder,
    PendingPage,
    badness,
    joined_pages,
)
from millstream.ops.plan import MOST_KEPT, NOBODY, HeldEntry
from millstream.ops.streams.measuring import ENTRIES_A_TRIP
from millstream.ops.streams.partitioned import each_part
from millstream.ops.streams.reading import entry_view, pending_summary
from millstream.ops.streams.status import PendingSummary
from millstream.ops.words import order, text_of


def pending_entry(stream: str, group: str, row: Sequence[Any]) -> PendingEntry:
    """One row of the long form of XPENDING."""
    entry, consumer, idle, deliveries = row
    owner = text_of(consumer) or None
    return PendingEntry(stream, group, text_of(entry), owner, idle if owner is not None else None, deliveries)


async def held_pages(line: Line, stream: str, group: str, chosen: Chosen) -> AsyncIterator[list[HeldEntry]]:
    """Pending entries that are chosen, as they are held, a page at a time."""
    if isinstance(chosen, tuple):
        for at in range(0, len(chosen), ENTRIES_A_TRIP):
            yield await _by_id(line, stream, group, chosen[at : at + ENTRIES_A_TRIP])
        return
    choice = None if chosen == PendingChoice() else chosen
    start: str | None = "-"
    while start is not None:
        now_ms = await server_time(line, stream)
        page = await read_page(line, stream, group, start=start, count=ENTRIES_A_TRIP, choice=choice)
        yield [_held(entry, now_ms) for entry in page.entries]
        start = page.next


async def _by_id(line: Line, stream: str, group: str, ids: Sequence[str]) -> list[HeldEntry]:
    now_ms = await server_time(line, stream)
    asked: list[Command] = [("XPENDING", stream, group, each, each, 1) for each in ids]
    *answers, delayed = await calls(line.near(stream), [*asked, ("ZCARD", due.key(stream, group))])
    rows = [row for reply in answers for row in checked(reply, stream, group)]
    found = [pending_entry(stream, group, row) for row in rows]
    return [_held(entry, now_ms) for entry in (await with_due(line, found) if delayed else found)]


def _held(entry: PendingEntry, now_ms: int) -> HeldEntry:
    since_ms = 0 if entry.idle_ms is None else max(now_ms - entry.idle_ms, 0)
    return HeldEntry(entry.id, entry.consumer or NOBODY, since_ms, entry.deliveries, entry.due_in_ms is not None)


async def server_time(line: Line, stream: str) -> int:
    """Wall milliseconds by the clock of the server of a stream; by our clock if the server refuses TIME."""
    (reply,) = await line.near(stream).calls([("TIME",)])
    if isinstance(reply, Exception):
        return SystemClock().wall_time()
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


async def held_by(line: Line, stream: str, group: str, consumer: str | None = None) -> list[HeldEntry]:
    """Pending entries as they are held, as many as an undo keeps, and one more where there are more."""
    found: list[HeldEntry] = []
    async for page in held_pages(line, stream, group, PendingChoice(consumer=consumer)):
        found += page
        if len(found) > MOST_KEPT:
            break
    return found[: MOST_KEPT + 1]


PAGE = 100
"""Entries of a page, unless asked otherwise."""

SCAN = 10_000
"""Entries that are looked at to find them, unless asked otherwise."""

_ROWS = 1000  # entries of one XPENDING
_LOOKED_FOR = 50  # entries that are looked for in one round trip, which brings them whole


async def summary(line: Line, stream: str, group: str) -> PendingSummary:
    """The number of pending entries in a group, in all and by consumer."""
    (reply,) = await calls(line, [("XPENDING", stream, group)])
    return pending_summary(checked(reply, stream, group))


@dataclass(frozen=True, slots=True)
class PendingWanted:
    """Pending entries to read, of a stream or of all partitions of a partitioned one."""

    key: str  # Key or name of the stream
    group: str  # Its group
    count: int = PAGE  # Most entries
    choice: PendingChoice | None = None  # Those that fit; None for all
    by: PendingOrder | None = None  # The worst first by this; None for the order of ids
    start: str = "-"  # First id, in the order of ids
    scan: int = SCAN  # Most entries that are looked at
    payload: bool = True  # Read their contents


async def read_wanted(line: Line, wanted: PendingWanted) -> tuple[PendingSummary, PendingPage]:
    """The numbers of pending entries, and a page of them."""
    found = await each_part(line, wanted.key, lambda key: _wanted_of(line, key, wanted))
    pages = [page for _, page in found]
    return _summed([one for one, _ in found]), joined_pages(pages, wanted.count, wanted.by)


async def _wanted_of(line: Line, key: str, wanted: PendingWanted) -> tuple[PendingSummary, PendingPage]:
    total = await summary(line, key, wanted.group)
    where, count, choice, scan = (line, key, wanted.group), wanted.count, wanted.choice, wanted.scan
    if wanted.by is None:
        page = await read_page(
            *where, start=wanted.start, count=count, choice=choice, scan=scan, payload=wanted.payload
        )  # fmt: skip
    else:
        page = await worst(*where, by=wanted.by, count=count, choice=choice, scan=scan, payload=wanted.payload)
    return total, page


def _summed(parts: Sequence[PendingSummary]) -> PendingSummary:
    """The numbers of partitions as one."""
    edges = [(part.first, part.last) for part in parts if part.first is not None and part.last is not None]
    held: dict[str, int] = {}
    for part in parts:
        for consumer, number in part.held.items():
            held[consumer] = held.get(consumer, 0) + number
    return PendingSummary(
        sum(part.total for part in parts),
        min((first for first, _ in edges), key=order, default=None),
        max((last for _, last in edges), key=order, default=None),
        held,
        sum(part.unowned for part in parts),
    )


async def read_page(
    line: Line,
    stream: str,
    group: str,
    *,
    start: str = "-",
    count: int = PAGE,
    choice: PendingChoice | None = None,
    scan: int = SCAN,
    payload: bool = False,
) -> PendingPage:
    """Some pending entries, in the order of their ids.

    For any choice, a server looks at a thousand entries at once and no more. ``XPENDING ... IDLE`` would look at a
    million of them, with all other clients waiting, to find that none fits.
    """
    found: list[PendingEntry] = []
    looked_at, following = 0, str(start)
    async with aclosing(_scanned(line, stream, group, start=start, choice=choice, count=count)) as rows:
        async for entry in rows:
            looked_at, following = looked_at + 1, entry.id
            if choice is None or choice.fits(entry):
                found.append(entry)
            if len(found) == count or looked_at >= scan:
                break
        else:
            return PendingPage(tuple(await _payloads(line, found, payload)), None, looked_at)
    return PendingPage(tuple(await _payloads(line, found, payload)), behind(following.encode()), looked_at)


async def worst(
    line: Line,
    stream: str,
    group: str,
    *,
    by: PendingOrder,
    count: int = PAGE,
    choice: PendingChoice | None = None,
    scan: int = SCAN,
    payload: bool = False,
) -> PendingPage:
    """The pending entries that were delivered most often, or are idle for longest, among those looked at."""
    heap: list[tuple[float, int, PendingEntry]] = []
    looked_at, following = 0, None
    async with aclosing(_scanned(line, stream, group, start="-", choice=choice, count=_ROWS)) as rows:
        async for entry in rows:
            looked_at += 1
            if choice is None or choice.fits(entry):
                # the number decides between equals, so that the first of them stays and entries are never compared
                (heappush if len(heap) < count else heappushpop)(heap, (badness(entry, by), -looked_at, entry))
            if looked_at >= scan:
                following = behind(entry.id.encode())
                break
    found = [entry for _, _, entry in sorted(heap, reverse=True)]
    return PendingPage(tuple(await _payloads(line, found, payload)), following, looked_at)


async def _scanned(
    line: Line, stream: str, group: str, *, start: str, choice: PendingChoice | None, count: int
) -> AsyncGenerator[PendingEntry, None]:
    """Pending entries by id, page by page; of one consumer alone where that is chosen."""
    holder = () if choice is None or choice.consumer is None else (choice.consumer,)
    size = min(count, _ROWS) if choice is None else _ROWS
    following: str | None = start
    while following is not None:
        asked: Command = ("XPENDING", stream, group, following, "+", size, *holder)
        reply, delayed = await calls(line, [asked, ("ZCARD", due.key(stream, group))])
        rows = checked(reply, stream, group)
        found = [pending_entry(stream, group, row) for row in rows]
        found = await with_due(line, found) if delayed else found
        for entry in await _marked(line, stream, found) if choice is not None and choice.gone else found:
            yield entry
        following = behind(rows[-1][0]) if len(rows) == size else None


async def with_due(line: Line, entries: list[PendingEntry]) -> list[PendingEntry]:
    """The same entries with how long each has to wait until it is due, in one round trip.

    Ask only where the group has due times: nearly none has.
    """
    if not entries:
        return []
    stream, ids = entries[0].stream, [entry.id.encode() for entry in entries]
    left = due.remaining(ids, *await calls(line.near(stream), due.question(stream, entries[0].group, ids)))
    return [replace(entry, due_in_ms=left.get(ident)) for entry, ident in zip(entries, ids, strict=True)]


async def _marked(line: Line, stream: str, entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """Pending entries in the order of their ids, each marked if it is gone from the stream.

    An entry older than the oldest one in the stream was trimmed, and nothing is asked about it: no command checks for
    an entry without sending it.
    """
    (reply,) = await calls(line, [("XRANGE", stream, "-", "+", "COUNT", 1)])
    oldest = next((text_of(row[0]) for row in checked(reply, stream)), None)
    trimmed = [one for one in entries if oldest is None or order(one.id) < order(oldest)]
    found = [replace(one, gone=True) for one in trimmed]
    for at in range(len(trimmed), len(entries), _LOOKED_FOR):
        rest = await with_payload(line, entries[at : min(at + _LOOKED_FOR, len(entries))])
        found += [replace(one, entry=None) for one in rest]
    return found


async def _payloads(line: Line, entries: list[PendingEntry], wanted: bool) -> list[PendingEntry]:
    return await with_payload(line, entries) if wanted else entries


async def with_payload(line: Line, entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """The same entries with their content, or marked as gone from the stream; in one round trip."""
    asked: list[Command] = [("XRANGE", entry.stream, entry.id, entry.id) for entry in entries]
    found = []
    for entry, reply in zip(entries, await calls(line, asked), strict=True):
        rows = checked(reply, entry.stream)
        view = entry_view(entry.stream, rows[0]) if rows else None
        found.append(replace(entry, entry=view, gone=view is None))
    return found
