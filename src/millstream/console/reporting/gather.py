"""The content of a report, the most needed first, so that a report that is cut by time or size has that.

First all streams with their groups, the server, the workers, the dead letters. Then the groups that look worst, each
with its consumers and pending entries; then entries. All of it by the functions that pages read with.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from millstream.client.line import Command, Line
from millstream.console.changes.audit import KEY as AUDIT
from millstream.console.model.streams import GroupStatus, StreamStatus
from millstream.console.reading import fleet, pending, streams
from millstream.console.reading.asking import NotReadableError, calls
from millstream.console.reading.case import read_case
from millstream.console.reading.noted import NotedLine
from millstream.console.reading.server import server
from millstream.console.reporting.recording import ReportWriter
from millstream.errors import Disconnected

Tell = Callable[[str, int, int], None]

_ENTRIES = 101  # entries of each end of a stream: a page of the console, and one to know if there are more
_LETTERS = 200  # as the page of dead letters, and as the shell reads at once
_PENDING = 50  # entries whose fields are read, of each order
_FULL = 10  # entries and pending entries in XINFO STREAM FULL
_BULK = 2 << 20  # bytes of entries in one reply, about


@dataclass(frozen=True, slots=True)
class ReportBounds:
    """The bounds of a report."""

    streams: int = 1000  # Most streams, the first by name
    seconds: float = 60.0  # After which nothing more is asked


class Gathering:
    """Asks all that a report holds."""

    def __init__(self, line: Line, writer: ReportWriter, bounds: ReportBounds, tell: Tell) -> None:
        self._line = NotedLine(line, writer.take)
        self._writer = writer
        self._bounds = bounds
        self._tell = tell
        # Streams that were not looked at; None where it is not known which there are
        self.streams_left_out: int | None = None

    async def run(self) -> None:
        """Ask; questions that are not asked any more are in the writer's ``left_out``."""
        for node in await self._line.nodes():  # unreachable nodes are known here
            await calls(node, [("CONFIG", "GET", "*"), ("CLIENT", "LIST"), ("ACL", "WHOAMI")])
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await self._all()
        except TimeoutError:
            self._writer.left_out["what was still to be asked"] = f"the time was up ({self._bounds.seconds:g} s)"
        except Disconnected:  # whose text has the server's address
            self._writer.left_out["what was still to be asked"] = "the server went away"

    async def _all(self) -> None:
        keys = await streams.names(self._line, part=True)
        self.streams_left_out = left = len(keys)
        found: list[StreamStatus] = []
        for at in range(0, min(len(keys), self._bounds.streams), streams.STREAMS_A_TRIP):
            page = keys[at : min(at + streams.STREAMS_A_TRIP, self._bounds.streams)]
            found += (await streams.read(self._line, page)).streams
            self.streams_left_out = left = left - len(page)
            self._tell("streams", at + len(page), len(keys))
        await server(self._line)  # by now it is known which words of a slow command are names
        await fleet.workers(self._line)
        await fleet.queries(self._line)
        letters = [one.key for one in (await fleet.letters(self._line)).streams]
        groups = sorted((group for one in found for group in one.groups), key=lambda group: _worst(group, self._line))
        await self._each("groups", [partial(self._group, group) for group in groups])
        whole = {*letters, AUDIT}
        await self._each("entries", [partial(self._entries, one, one.key in whole) for one in found])

    async def _each(self, what: str, work: "Sequence[Callable[[], Awaitable[None]]]") -> None:
        """One after the other, until the report is full; what the server refuses is in the report as that."""
        for at, one in enumerate(work):
            if self._writer.full:
                self._writer.left_out[f"{what} ({len(work) - at} of {len(work)})"] = "the report is full"
                return
            try:
                await one()
            except NotReadableError:
                continue
            finally:
                self._tell(what, at + 1, len(work))

    async def _group(self, group: GroupStatus) -> None:
        line, where = self._line, (group.stream, group.name)
        await read_case(line, *where)
        if not group.pending:
            await pending.page(line, *where, count=1)  # so that it is known of each entry that it is not pending
            return
        await pending.page(line, *where, count=_PENDING, payload=True)
        await pending.worst(line, *where, by="deliveries", count=_PENDING, payload=True)
        await pending.worst(line, *where, by="idle", count=_PENDING, payload=True)

    async def _entries(self, stream: StreamStatus, whole: bool) -> None:
        """Both ends of a stream, as many entries as make no large reply."""
        key = stream.key
        (sample,) = await calls(self._line, [("XREVRANGE", key, "+", "-", "COUNT", 1)])
        size = sum(len(part) for row in sample for part in row[1]) if isinstance(sample, list) else 0
        most = max(1, _BULK // max(size, 1))
        count = min(_LETTERS if whole else _ENTRIES, most)
        full: Command = ("XINFO", "STREAM", key, "FULL", "COUNT", min(_FULL, most))
        ends: list[Command] = [("XREVRANGE", key, "+", "-", "COUNT", count), ("XRANGE", key, "-", "+", "COUNT", count)]
        await calls(self._line, [full, *ends, ("XLEN", key)])


def _worst(group: GroupStatus, line: Line) -> tuple[int, int]:
    """The sort key of groups: the oldest entry that is not finished, the oldest first."""
    now = line.wall_time()
    return -max(group.oldest_pending.age(now) or 0, group.oldest_undelivered.age(now) or 0), -group.pending
