"""Entries of streams: one, the last ones, all between two ids, of several streams in the order of their ids.

Ranges are read page by page, and a page has as many entries as make a few megabytes, going by the page before.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace, nlargest

from millstream.client.delays import due
from millstream.client.line import Command, Line, Reply
from millstream.client.ranges import behind
from millstream.console.model import replies
from millstream.console.model.entries import EntryView
from millstream.console.model.entry.standing import EntryFound, standing_of
from millstream.console.model.names import NEVER, order, text_of
from millstream.console.reading.asking import NotReadableError, calls, checked
from millstream.console.reading.pending import with_due

Fits = Callable[[EntryView], bool]
"""True if an entry is wanted."""

_FIRST = 100  # entries of the first page
_MOST = 1000
_VOLUME = 4_000_000  # bytes of a page, about


def size_of(entry: EntryView) -> int:
    """Bytes of its names and values."""
    return sum(len(name) + len(value) for name, value in entry.fields)


async def find(line: Line, stream: str, entry: str) -> EntryFound:
    """One entry, and its state in each group, in two round trips."""
    near = line.near(stream)
    about: list[Command] = [("XINFO", "GROUPS", stream), ("XRANGE", stream, entry, entry)]
    groups, rows = await calls(near, about)
    found = [replies.entry_view(stream, row) for row in checked(rows, stream)]
    if not found:
        await last_ids(near, [stream])  # there is such a stream, at least
    view = found[0] if found else None
    if (refused := replies.refusal(groups)) is not None:
        return EntryFound(stream, entry, view, refused=refused)
    places = {text_of(row["name"]): text_of(row["last-delivered-id"]) for row in map(replies.record, groups)}
    asked: list[Command] = [("XPENDING", stream, group, entry, entry, 1) for group in places]
    asked += [("ZCARD", due.key(stream, group)) for group in places]
    answers = await calls(near, asked)
    standings = []
    for group, reply, delayed in zip(places, answers[: len(places)], answers[len(places) :], strict=True):
        pending = [replies.pending_entry(stream, group, row) for row in checked(reply, stream, group)]
        pending = await with_due(near, pending) if delayed else pending
        standings.append(standing_of(entry, group, places[group], pending))
    return EntryFound(stream, entry, view, tuple(standings))


async def last_ids(line: Line, streams: Sequence[str], *, missing_ok: bool = False) -> dict[str, str]:
    """The last id that each stream has given to an entry."""
    answers = await calls(line, [("XINFO", "STREAM", stream) for stream in streams])
    return {
        stream: last_id_of(stream, reply, missing_ok=missing_ok) for stream, reply in zip(streams, answers, strict=True)
    }


def last_id_of(stream: str, reply: Reply, *, missing_ok: bool = False) -> str:
    """The last id that a stream has given to an entry."""
    if missing_ok and "no such key" in str(replies.refusal(reply)):
        return NEVER
    return text_of(replies.record(checked(reply, stream))["last-generated-id"])


async def group_positions(line: Line, streams: Sequence[str], group: str) -> dict[str, str]:
    """The last id that a group was delivered, for each stream."""
    found = {}
    answers = await calls(line, [("XINFO", "GROUPS", stream) for stream in streams])
    for stream, reply in zip(streams, answers, strict=True):
        rows = [replies.record(row) for row in checked(reply, stream)]
        places = {text_of(row["name"]): text_of(row["last-delivered-id"]) for row in rows}
        if group not in places:
            raise NotReadableError(f"the stream {stream!r} has no group {group!r}: `millstream group ls` shows them")
        found[stream] = places[group]
    return found


async def newest(
    line: Line, bounds: Mapping[str, tuple[str, str]], count: int, fits: Fits | None = None
) -> list[EntryView]:
    """The last entries that fit, of all these streams together, oldest first."""
    found: list[EntryView] = []
    most = count if fits is None else _MOST  # few of those looked at may fit
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
    """Entries that were looked for, within bounds."""

    entries: tuple[EntryView, ...]  # Those that fit, in the order they were looked at
    looked_at: int  # Number of entries that were looked at
    last: str | None  # Id of the last one of these; None where there was none
    more: bool  # There are entries that were not looked at


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
    """Look for entries, within bounds: a caller that wants more goes on after the last one."""
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
    """All entries that fit, of these streams in the order of their ids, some at a time."""
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
    """The sort key for entries of several streams."""
    return order(entry.id), entry.stream


async def _merged(sources: Sequence[AsyncGenerator[list[EntryView], None]]) -> AsyncGenerator[list[EntryView], None]:
    """Pages of several streams as one sequence in the order of ids."""
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
    """A range page by page, oldest first or newest first."""
    size = max(min(most, _FIRST), 1)
    while True:
        words = ("XREVRANGE", stream, end, start) if backwards else ("XRANGE", stream, start, end)
        (reply,) = await calls(line, [(*words, "COUNT", size)])
        page = [replies.entry_view(stream, row) for row in checked(reply, stream)]
        if page:
            yield page
        if len(page) < size:
            return
        beyond = _below(page[-1].id) if backwards else behind(page[-1].id.encode())
        if beyond is None:
            return
        start, end = (start, beyond) if backwards else (beyond, end)
        size = _next_size(page, most)


def _next_size(page: Sequence[EntryView], most: int) -> int:
    """Entries of the next page: more where these were small, a few where they were large."""
    each = max(sum(map(size_of, page)) // len(page), 1)
    return max(1, min(most, _MOST, _VOLUME // each, 10 * len(page)))


def _below(entry: str) -> str | None:
    """The highest id before this one; None where there is none."""
    milliseconds, sequence = order(entry)
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}" if milliseconds else None
