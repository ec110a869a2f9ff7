"""Reading entries of one or several streams: by id, by scan, as they arrive, and the gaps between them."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace, nlargest

from millstream.client.delays import due
from millstream.client.line import Command, Line, Reply, passes
from millstream.client.ranges import behind
from millstream.errors import Disconnected, UsageError
from millstream.ops.asking import NotReadableError, calls, checked, record, refusal
from millstream.ops.entries.status import EntryFound, GapFinder, StreamGaps, standing_of
from millstream.ops.pending import reading as pending
from millstream.ops.pending.reading import pending_entry, with_due
from millstream.ops.streams.partitioned import parts_of
from millstream.ops.streams.reading import entry_view, one
from millstream.ops.streams.status import StreamsSeen
from millstream.ops.words import NEVER, EntryView, before, order, text_of

Fits = Callable[[EntryView], bool]
"""Predicate that selects entries."""

_FIRST = 100  # entries of the first page
_MOST = 1000
_VOLUME = 4_000_000  # approximate size of a page in bytes


def size_of(entry: EntryView) -> int:
    """Return the size of an entry's names and values, in bytes."""
    return sum(len(name) + len(value) for name, value in entry.fields)


_ID = re.compile(r"(\d{10,20})(-\d{1,20})?", re.ASCII)
_SEARCHED = 500  # largest number of streams that are searched for an id


async def streams_with(line: Line, seen: StreamsSeen, wanted: str) -> list[tuple[str, str]] | None:
    """Return stream and id of the entries with an id, or of the first ones of a millisecond, in one round trip.

    Returns None if the text is not an id.
    """
    if _ID.fullmatch(wanted) is None:
        return None
    at = order(wanted if "-" in wanted else f"{wanted}-0")[0]
    ends = [(one.key, one.first_entry_id, one.last_entry_id) for one in seen.streams]
    keys = [key for key, first, last in ends if first and last and order(first)[0] <= at <= order(last)[0]]
    rows = await calls(line, [("XRANGE", key, wanted, wanted, "COUNT", 1) for key in keys[:_SEARCHED]])
    found = zip(keys[:_SEARCHED], rows, strict=True)
    return [(key, text_of(row[0])) for key, reply in found if refusal(reply) is None for row in reply]


async def find(line: Line, stream: str, entry: str) -> EntryFound:
    """Read one entry and its state in each group, in two round trips."""
    near = line.near(stream)
    about: list[Command] = [("XINFO", "GROUPS", stream), ("XRANGE", stream, entry, entry)]
    groups, rows = await calls(near, about)
    found = [entry_view(stream, row) for row in checked(rows, stream)]
    if not found:
        await last_ids(near, [stream])  # raises an error if the stream does not exist
    view = found[0] if found else None
    if (refused := refusal(groups)) is not None:
        return EntryFound(stream, entry, view, refused=refused)
    places = {text_of(row["name"]): text_of(row["last-delivered-id"]) for row in map(record, groups)}
    asked: list[Command] = [("XPENDING", stream, group, entry, entry, 1) for group in places]
    asked += [("ZCARD", due.key(stream, group)) for group in places]
    answers = await calls(near, asked)
    standings = []
    for group, reply, delayed in zip(places, answers[: len(places)], answers[len(places) :], strict=True):
        pending = [pending_entry(stream, group, row) for row in checked(reply, stream, group)]
        pending = await with_due(near, pending) if delayed else pending
        standings.append(standing_of(entry, group, places[group], pending))
    return EntryFound(stream, entry, view, tuple(standings))


async def last_ids(line: Line, streams: Sequence[str], *, missing_ok: bool = False) -> dict[str, str]:
    """Return the last generated id of each stream."""
    answers = await calls(line, [("XINFO", "STREAM", stream) for stream in streams])
    return {
        stream: last_id_of(stream, reply, missing_ok=missing_ok) for stream, reply in zip(streams, answers, strict=True)
    }


def last_id_of(stream: str, reply: Reply, *, missing_ok: bool = False) -> str:
    """Return the last generated id of a stream from its XINFO reply."""
    if missing_ok and "no such key" in str(refusal(reply)):
        return NEVER
    return text_of(record(checked(reply, stream))["last-generated-id"])


async def group_positions(line: Line, streams: Sequence[str], group: str) -> dict[str, str]:
    """Return a group's last delivered id in each stream."""
    found = {}
    answers = await calls(line, [("XINFO", "GROUPS", stream) for stream in streams])
    for stream, reply in zip(streams, answers, strict=True):
        rows = [record(row) for row in checked(reply, stream)]
        places = {text_of(row["name"]): text_of(row["last-delivered-id"]) for row in rows}
        if group not in places:
            raise NotReadableError(f"the stream {stream!r} has no group {group!r}: `millstream group ls` shows them")
        found[stream] = places[group]
    return found


async def newest(
    line: Line, bounds: Mapping[str, tuple[str, str]], count: int, fits: Fits | None = None
) -> list[EntryView]:
    """Return the newest matching entries of all streams together, oldest first."""
    found: list[EntryView] = []
    most = count if fits is None else _MOST  # with a filter, few of the entries may match
    for stream, (start, end) in bounds.items():
        of_one: list[EntryView] = []
        async with aclosing(_pages(line, stream, start, end, most=most, backwards=True)) as pages:
            async for page in pages:
                of_one += [entry for entry in page if fits is None or fits(entry)]
                if len(of_one) >= count:
                    break
        found += of_one[:count]
    return nlargest(count, found, key=_place)[::-1]


@dataclass(frozen=True, slots=True)
class ScannedEntries:
    """Result of a scan for entries within limits."""

    entries: tuple[EntryView, ...]  # The matching entries in the order of the scan
    looked_at: int  # Number of entries scanned
    last: str | None  # Id of the last entry scanned; None if there was none
    more: bool  # True if entries remain to scan


async def scan(
    line: Line,
    stream: str,
    bounds: tuple[str, str],
    fits: Fits,
    *,
    count: int,
    most: int,
    volume: int = _VOLUME,
    backwards: bool = False,
) -> ScannedEntries:
    """Scan a range for matching entries up to the limits; the caller may continue after the last id."""
    found: list[EntryView] = []
    looked_at, size, last = 0, 0, None
    async with aclosing(_pages(line, stream, *bounds, backwards=backwards)) as pages:
        async for page in pages:
            for entry in page:
                if len(found) >= count or looked_at >= most or size >= volume:
                    return ScannedEntries(tuple(found), looked_at, last, more=True)
                looked_at, size, last = looked_at + 1, size + size_of(entry), entry.id
                if fits(entry):
                    found.append(entry)
    return ScannedEntries(tuple(found), looked_at, last, more=False)


async def between(
    line: Line, bounds: Mapping[str, tuple[str, str]], fits: Fits | None = None
) -> AsyncGenerator[list[EntryView], None]:
    """Yield all matching entries of several streams in the order of their ids, in batches."""
    sources = [_pages(line, stream, start, end) for stream, (start, end) in bounds.items()]
    try:
        async for page in sources[0] if len(sources) == 1 else _merged(sources):
            wanted = [entry for entry in page if fits is None or fits(entry)]
            if wanted:
                yield wanted
    finally:
        for source in sources:
            await source.aclose()


def _place(entry: EntryView) -> tuple[tuple[int, int], str]:
    """Return the sort key for entries of several streams."""
    return order(entry.id), entry.stream


async def _merged(sources: Sequence[AsyncGenerator[list[EntryView], None]]) -> AsyncGenerator[list[EntryView], None]:
    """Merge pages of several streams to one sequence in the order of ids."""
    pages = {at: await anext(source, []) for at, source in enumerate(sources)}
    heads = [(_place(page[0]), at, 0) for at, page in pages.items() if page]
    heapify(heads)
    ready: list[EntryView] = []
    while heads:
        _, at, number = heads[0]
        ready.append(pages[at][number])
        number += 1
        if number == len(pages[at]):
            yield ready
            ready, number = [], 0
            pages[at] = await anext(sources[at], [])
        if pages[at]:
            heapreplace(heads, (_place(pages[at][number]), at, number))
        else:
            heappop(heads)


async def _pages(
    line: Line, stream: str, start: str, end: str, *, most: int = _MOST, backwards: bool = False
) -> AsyncGenerator[list[EntryView], None]:
    """Yield a range page by page, oldest or newest first."""
    size = max(min(most, _FIRST), 1)
    while True:
        words = ("XREVRANGE", stream, end, start) if backwards else ("XRANGE", stream, start, end)
        (reply,) = await calls(line, [(*words, "COUNT", size)])
        page = [entry_view(stream, row) for row in checked(reply, stream)]
        if page:
            yield page
        if len(page) < size:
            return
        beyond = before(page[-1].id) if backwards else behind(page[-1].id.encode())
        if beyond is None:
            return
        start, end = (start, beyond) if backwards else (beyond, end)
        size = _next_size(page, most)


def _next_size(page: Sequence[EntryView], most: int) -> int:
    """Return the size of the next page: more entries if the last ones were small, fewer if they were large."""
    each = max(sum(map(size_of, page)) // len(page), 1)
    return max(1, min(most, _MOST, _VOLUME // each, 10 * len(page)))


SCAN = 10_000
"""Default limit of a scan: entries, and pending entries of each group."""


async def read_gaps(line: Line, stream: str, *, scan: int = SCAN) -> StreamGaps:
    """Read the known facts about missing entries."""
    if parts := await parts_of(line, stream):
        raise UsageError(f"{stream!r} is partitioned, and each partition has gaps of its own. Name {parts[-1]!r}.")
    near = line.near(stream)
    status = await one(near, stream)
    finder, looked_at, whole = GapFinder(), 0, True
    async with aclosing(between(near, {stream: ("-", status.last_id)})) as pages:
        async for page in pages:
            finder.take(entry.id for entry in page[: scan - looked_at])
            looked_at += len(page)
            if looked_at > scan:
                whole = False
                break
    held = []
    for group in status.groups:
        found = await pending.read_page(near, stream, group.name, count=scan, scan=scan)
        held.append((group.name, [entry.id for entry in found.entries]))
    return finder.found(status, held, whole=whole)


#: Seconds that a read waits for entries, if the connection allows it, and the number of entries in a reply.
_BLOCK = 5.0
_COUNT = 100
#: Seconds between two attempts to reach an unreachable server.
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Arrived:
    """Entries that arrived, or a notice."""

    entries: tuple[EntryView, ...] = ()  # New entries in the order of their stream
    said: str = ""  # Notice for people, for example that the server is unreachable; empty with entries


async def follow(line: Line, positions: Mapping[str, str]) -> AsyncGenerator[Arrived, None]:
    """Yield the entries that are added after these positions, without end.

    An item arrives at least every few seconds, even an empty one, so that the caller can check if it should continue.
    """
    places: dict[Line, dict[str, str]] = {}
    for stream, position in positions.items():  # one read for all streams of a server, one for each slot of a cluster
        places.setdefault(line.near(stream), {})[stream] = position
    arrived: asyncio.Queue[Arrived | Exception] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_Follower(near, at, arrived).run()) for near, at in places.items()]
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Follower:
    """Reader of the streams on one server."""

    def __init__(self, line: Line, at: dict[str, str], arrived: "asyncio.Queue[Arrived | Exception]") -> None:
        self._line = line
        self._at = at
        self._arrived = arrived
        self._away = False

    async def run(self) -> None:
        """Read until cancelled; an error goes into the queue like entries."""
        try:
            while True:
                try:
                    came = await self._read()
                except Disconnected as error:
                    await self._went_away(str(error))
                else:
                    await self._arrived.put(came)
        except Exception as error:  # noqa: BLE001 - the reader of the followed entries raises it
            await self._arrived.put(error)

    async def _read(self) -> Arrived:
        if self._away:
            began_anew = await self._look()
            self._away = False
            return Arrived(said=began_anew or "the server is back; continuing after the last entry")
        seconds = min(_BLOCK, self._line.patience / 2)
        words = ("XREAD", "COUNT", _COUNT, "BLOCK", max(int(seconds * 1000), 1), "STREAMS")
        (reply,) = await self._ask([(*words, *self._at, *self._at.values())])
        found = []
        for key, rows in checked(reply, ", ".join(self._at)) or ():
            stream = text_of(key)
            found += [entry_view(stream, row) for row in rows]
            self._at[stream] = found[-1].id
        return Arrived(tuple(found)) if found else Arrived(said=await self._look())

    async def _ask(self, commands: list[Command]) -> list[Reply]:
        """Return the replies; a server that cannot serve now, for example while loading, counts as disconnected."""
        answers = await self._line.calls(commands)
        for reply in answers:
            if isinstance(reply, Exception) and passes(reply):
                raise Disconnected(str(reply))
        return list(answers)

    async def _went_away(self, why: str) -> None:
        if not self._away:
            self._away = True
            await self._arrived.put(Arrived(said=f"the server went away ({why}); trying again"))
        await asyncio.sleep(_PAUSE)
        await self._arrived.put(Arrived())

    async def _look(self) -> str:
        """Reset the position of streams that started again, and return the notice about them."""
        said = []
        streams = list(self._at)
        answers = await self._ask([("XINFO", "STREAM", stream) for stream in streams])
        for stream, reply in zip(streams, answers, strict=True):
            if order(last_id_of(stream, reply, missing_ok=True)) < order(self._at[stream]):
                said.append(f"{stream} was deleted or lost, and starts again; continuing from its start")
                self._at[stream] = NEVER
        return "; ".join(said)
