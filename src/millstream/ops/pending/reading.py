"""Reading a group's pending entries: a summary, and pages by id, which cost the same at any length of the list."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from heapq import nlargest
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
    """Return the pending entry of one row from the long form of XPENDING."""
    entry, consumer, idle, deliveries = row
    owner = text_of(consumer) or None
    return PendingEntry(stream, group, text_of(entry), owner, idle if owner is not None else None, deliveries)


async def held_pages(line: Line, stream: str, group: str, chosen: Chosen) -> AsyncIterator[list[HeldEntry]]:
    """Yield the selected pending entries with their holders, page by page."""
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
    """Return the wall time of the stream's server in milliseconds; local time if the server refuses TIME."""
    (reply,) = await line.near(stream).calls([("TIME",)])
    if isinstance(reply, Exception):
        return SystemClock().wall_time()
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


async def held_by(line: Line, stream: str, group: str, consumer: str | None = None) -> list[HeldEntry]:
    """Return pending entries with their holders: as many as an undo keeps, and one more if there are more."""
    found: list[HeldEntry] = []
    async for page in held_pages(line, stream, group, PendingChoice(consumer=consumer)):
        found += page
        if len(found) > MOST_KEPT:
            break
    return found[: MOST_KEPT + 1]


PAGE = 100
"""Default number of entries on a page."""

SCAN = 10_000
"""Default limit of entries that are scanned to fill a page."""

_ROWS = 1000  # entries of one XPENDING reply
_LOOKED_FOR = 50  # largest number of entries read with their fields in one round trip


async def summary(line: Line, stream: str, group: str) -> PendingSummary:
    """Read the number of pending entries in a group, in total and by consumer."""
    (reply,) = await calls(line, [("XPENDING", stream, group)])
    return pending_summary(checked(reply, stream, group))


@dataclass(frozen=True, slots=True)
class PendingWanted:
    """A query for pending entries of a stream, or of all partitions of a partitioned stream."""

    key: str  # Key or name of the stream
    group: str  # Name of the group
    count: int = PAGE  # Largest number of entries to return
    choice: PendingChoice | None = None  # Filter; None for all
    by: PendingOrder | None = None  # Sort order, the worst first; None for the order of ids
    start: str = "-"  # First id, in the order of ids
    scan: int = SCAN  # Largest number of entries to scan
    payload: bool = True  # Also read the entries' contents


async def read_wanted(line: Line, wanted: PendingWanted) -> tuple[PendingSummary, PendingPage]:
    """Read the totals of pending entries, and a page of entries."""
    found = await each_part(line, wanted.key, lambda key: _wanted_of(line, key, wanted))
    pages = [page for _, page in found]
    return _summed([one for one, _ in found]), joined_pages(pages, wanted.count, wanted.by)


async def _wanted_of(line: Line, key: str, wanted: PendingWanted) -> tuple[PendingSummary, PendingPage]:
    total = await summary(line, key, wanted.group)
    page = await read_page(
        line, key, wanted.group, by=wanted.by, start=wanted.start, count=wanted.count, choice=wanted.choice,
        scan=wanted.scan, payload=wanted.payload,
    )  # fmt: skip
    return total, page


def _summed(parts: Sequence[PendingSummary]) -> PendingSummary:
    """Return the totals over all partitions."""
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
    by: PendingOrder | None = None,
    start: str = "-",
    count: int = PAGE,
    choice: PendingChoice | None = None,
    scan: int = SCAN,
    payload: bool = False,
) -> PendingPage:
    """Read some pending entries in the order of their ids, or the worst of those scanned.

    With any filter, the server scans at most a thousand entries at once. ``XPENDING ... IDLE`` may scan a million
    entries without a match while all other clients wait.
    """
    found: list[PendingEntry] = []
    looked_at, following = 0, None
    size = count if by is None else _ROWS
    async with aclosing(_scanned(line, stream, group, start=start, choice=choice, count=size)) as rows:
        async for entry in rows:
            looked_at += 1
            if choice is None or choice.fits(entry):
                found.append(entry)
            if by is not None and len(found) == count + _ROWS:  # a long scan takes no more memory
                found = _worst(found, by, count)
            if looked_at >= scan or (by is None and len(found) == count):
                following = behind(entry.id.encode())
                break
    found = found if by is None else _worst(found, by, count)
    return PendingPage(tuple(await with_payload(line, found) if payload else found), following, looked_at)


def _worst(entries: list[PendingEntry], by: PendingOrder, count: int) -> list[PendingEntry]:
    """Return the entries with most deliveries or the longest idle time; of equal ones the first."""
    return nlargest(count, entries, key=lambda entry: badness(entry, by))


async def _scanned(
    line: Line, stream: str, group: str, *, start: str, choice: PendingChoice | None, count: int
) -> AsyncGenerator[PendingEntry, None]:
    """Yield pending entries by id, page by page; only those of one consumer if the filter names it."""
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
    """Return the entries with the time until each is due, in one round trip.

    Call it only if the group has due times, which is rare.
    """
    if not entries:
        return []
    stream, ids = entries[0].stream, [entry.id.encode() for entry in entries]
    left = due.remaining(ids, *await calls(line.near(stream), due.question(stream, entries[0].group, ids)))
    return [replace(entry, due_in_ms=left.get(ident)) for entry, ident in zip(entries, ids, strict=True)]


async def _marked(line: Line, stream: str, entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """Return the pending entries in order, each marked if it is gone from the stream.

    Entries older than the oldest in the stream were trimmed, so they need no command. Every other entry is read whole,
    since no command checks for an entry without sending it.
    """
    (reply,) = await calls(line, [("XRANGE", stream, "-", "+", "COUNT", 1)])
    oldest = next((text_of(row[0]) for row in checked(reply, stream)), None)
    trimmed = [one for one in entries if oldest is None or order(one.id) < order(oldest)]
    found = [replace(one, gone=True) for one in trimmed]
    for at in range(len(trimmed), len(entries), _LOOKED_FOR):
        rest = await with_payload(line, entries[at : min(at + _LOOKED_FOR, len(entries))])
        found += [replace(one, entry=None) for one in rest]
    return found


async def with_payload(line: Line, entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """Return the entries with their content, or marked as gone from the stream, in one round trip."""
    asked: list[Command] = [("XRANGE", entry.stream, entry.id, entry.id) for entry in entries]
    found = []
    for entry, reply in zip(entries, await calls(line, asked), strict=True):
        rows = checked(reply, entry.stream)
        view = entry_view(entry.stream, rows[0]) if rows else None
        found.append(replace(entry, entry=view, gone=view is None))
    return found
