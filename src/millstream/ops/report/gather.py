"""A support report: the commands that it sends, and the file that records each reply."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from millstream.client.line import Command, Line, Reply
from millstream.client.partitions.lease import owned_key
from millstream.client.recorded.json_replies import json_of
from millstream.client.recorded.report import words_of
from millstream.errors import Disconnected
from millstream.ops.asking import NotedLine, NotReadableError, calls
from millstream.ops.audit import KEY as AUDIT
from millstream.ops.findings.reading import read_case
from millstream.ops.letters.reading import letter_streams
from millstream.ops.pending import reading as pending
from millstream.ops.report.redact import Redactor
from millstream.ops.server.reading import server
from millstream.ops.spark.reading import read_queries
from millstream.ops.streams import reading as streams
from millstream.ops.streams.partitioned import candidates, read_layouts, read_owners
from millstream.ops.streams.status import GroupStatus, StreamStatus
from millstream.ops.workers.reading import read_workers
from millstream.worker.registry.protocol import LARGEST

_ONE = 4 << 20  # characters of one reply
_NAMED = 1000  # largest number of omitted replies that are listed


class ReportWriter:
    """Writer of a report as one JSON object while replies arrive; its memory does not grow with the report."""

    def __init__(self, file: IO[str], redactor: Redactor, most: int) -> None:
        self._file = file
        self._redactor = redactor
        self._most = most
        self._seen: set[tuple[int, tuple[bytes, ...]]] = set()
        self.left_out: dict[str, str] = {}  # Omitted part -> reason
        self.size = 0  # Number of characters written
        self.replies = 0  # Number of replies in the report

    @property
    def full(self) -> bool:
        """True if the report has reached 90 % of its limit."""
        return self.size >= self._most * 9 // 10

    def begin(self, facts: dict[str, object]) -> None:
        """Write the data that is known before the first command."""
        head = json.dumps(facts, indent=1).rstrip("}\n")
        self._write(f'{head},\n "asked": [')

    def take(self, node: int, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
        """Write commands with their replies; each command is written once."""
        for command, reply in zip(commands, replies, strict=True):
            self._take(node, command, reply)

    def _take(self, node: int, command: Command, reply: Reply) -> None:
        words = words_of(command)
        if words[0] == b"GETRANGE":  # recorded as a GET, once a reply has the whole value
            is_refused = isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE")  # a GET may follow
            if is_refused or (isinstance(reply, bytes) and int(words[3]) < min(len(reply), LARGEST)):
                return
            words, reply = (b"GET", words[1]), None if reply == b"" else reply
        if (node, words) in self._seen:
            return
        one = {"node": node, "command": json_of(words), "reply": json_of(self._redactor.redacted(words, reply))}
        text = json.dumps(one, ensure_ascii=False, separators=(",", ":"))
        if len(text) > _ONE or self.size + len(text) > self._most:
            shown = b" ".join(words)[:80].decode(errors="backslashreplace")
            if len(self.left_out) < _NAMED:
                self.left_out[shown] = "too large" if len(text) > _ONE else "the report is full"
            return
        self._seen.add((node, words))
        self._write((",\n" if self.replies else "\n") + text)
        self.replies += 1

    def end(self, facts: dict[str, object]) -> None:
        """Write the data that is known after the last reply."""
        tail = json.dumps({"left_out": self.left_out, **facts}, indent=1).lstrip("{\n")
        self._write(f"\n ],\n {tail.lstrip()}\n")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self.size += len(text)


Tell = Callable[[str, int, int], None]

_ENTRIES = 101  # entries from each end of a stream: a page of the console, and one more to detect a next page
_LETTERS = 200  # as many as the console's page of dead letters and the shell read at once
_PENDING = 50  # entries read with their fields, in each sort order
_FULL = 10  # entries and pending entries in XINFO STREAM FULL
_BULK = 2 << 20  # approximate size of the entries in one reply, in bytes


@dataclass(frozen=True, slots=True)
class ReportBounds:
    """The limits of a report."""

    streams: int = 1000  # Largest number of streams, sorted by name
    seconds: float = 60.0  # Seconds after which no more commands are sent


class Gathering:
    """Sender of all commands for a report."""

    def __init__(self, line: Line, writer: ReportWriter, bounds: ReportBounds, tell: Tell) -> None:
        self._line = NotedLine(line, writer.take)
        self._writer = writer
        self._bounds = bounds
        self._tell = tell
        # Number of streams not read; None if the streams are unknown
        self.streams_left_out: int | None = None

    async def run(self) -> None:
        """Send all commands; parts without a command are listed in the writer's ``left_out``."""
        for node in await self._line.nodes():  # unreachable nodes are detected here
            await calls(node, [("CONFIG", "GET", "*"), ("CLIENT", "LIST"), ("ACL", "WHOAMI")])
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await self._all()
        except TimeoutError:
            self._writer.left_out["the parts not yet read"] = f"the time was up ({self._bounds.seconds:g} s)"
        except Disconnected:  # its text contains the server's address
            self._writer.left_out["the parts not yet read"] = "the server went away"

    async def _all(self) -> None:
        keys = await streams.names(self._line, part=True)
        self.streams_left_out = left = len(keys)
        found: list[StreamStatus] = []
        for at in range(0, min(len(keys), self._bounds.streams), streams.STREAMS_A_TRIP):
            page = keys[at : min(at + streams.STREAMS_A_TRIP, self._bounds.streams)]
            found += (await streams.read(self._line, page)).streams
            self.streams_left_out = left = left - len(page)
            self._tell("streams", at + len(page), len(keys))
        for layout in (await read_layouts(self._line, {*keys, *candidates(keys)})).values():
            named = sorted({group.name for one in found if one.key in layout.every_key for group in one.groups})
            await calls(self._line, [("EXISTS", key) for key in layout.every_key])
            await read_owners(self._line, layout.every_key, named)
            await calls(self._line, [("GET", owned_key(key, name)) for name in named for key in layout.every_key])
        await server(self._line)  # late, since only now the redactor knows the names in slow commands
        await read_workers(self._line)
        await read_queries(self._line)
        letters = [one.key for one in (await letter_streams(self._line)).streams]
        groups = sorted((group for one in found for group in one.groups), key=lambda group: _worst(group, self._line))
        await self._each("groups", [partial(self._group, group) for group in groups])
        whole = {*letters, AUDIT}
        await self._each("entries", [partial(self._entries, one, one.key in whole) for one in found])

    async def _each(self, what: str, work: "Sequence[Callable[[], Awaitable[None]]]") -> None:
        """Run the readings in turn until the report is full; refused readings are recorded as refusals."""
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
            await pending.read_page(line, *where, count=1)  # shows in the report that no entry is pending
            return
        await pending.read_page(line, *where, count=_PENDING, payload=True)
        await pending.read_page(line, *where, by="deliveries", count=_PENDING, payload=True)
        await pending.read_page(line, *where, by="idle", count=_PENDING, payload=True)

    async def _entries(self, stream: StreamStatus, whole: bool) -> None:
        """Read both ends of a stream, with a limit that avoids large replies."""
        key = stream.key
        (sample,) = await calls(self._line, [("XREVRANGE", key, "+", "-", "COUNT", 1)])
        size = sum(len(part) for row in sample for part in row[1]) if isinstance(sample, list) else 0
        most = max(1, _BULK // max(size, 1))
        count = min(_LETTERS if whole else _ENTRIES, most)
        full: Command = ("XINFO", "STREAM", key, "FULL", "COUNT", min(_FULL, most))
        ends: list[Command] = [("XREVRANGE", key, "+", "-", "COUNT", count), ("XRANGE", key, "-", "+", "COUNT", count)]
        await calls(self._line, [full, *ends, ("XLEN", key), ("MEMORY", "USAGE", key), ("TIER", "USAGE", key)])


def _worst(group: GroupStatus, line: Line) -> tuple[int, int]:
    """Return the sort key of a group: those with the oldest unfinished entry come first."""
    now = line.wall_time()
    return -max(group.oldest_pending.age(now) or 0, group.oldest_undelivered.age(now) or 0), -group.pending
