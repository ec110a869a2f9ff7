"""Entries that are missing from a stream: its ids looked through, and what its groups have pending."""

from contextlib import aclosing

from millstream.client.line import Line
from millstream.console.model.entry.gaps import GapFinder, StreamGaps
from millstream.console.reading import entries, pending
from millstream.console.reading.streams import one

SCAN = 10_000
"""Entries, and pending entries of each group, that are looked at unless asked otherwise."""


async def read_gaps(line: Line, stream: str, *, scan: int = SCAN) -> StreamGaps:
    """The known facts about missing entries."""
    near = line.near(stream)
    status = await one(near, stream)
    finder, looked_at, whole = GapFinder(), 0, True
    async with aclosing(entries.between(near, {stream: ("-", status.last_id)})) as pages:
        async for page in pages:
            finder.take(entry.id for entry in page[: scan - looked_at])
            looked_at += len(page)
            if looked_at > scan:
                whole = False
                break
    held = []
    for group in status.groups:
        found = await pending.page(near, stream, group.name, count=scan, scan=scan)
        held.append((group.name, [entry.id for entry in found.entries]))
    return finder.found(status, held, whole=whole)
