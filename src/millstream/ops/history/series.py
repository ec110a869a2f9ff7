"""Reading the history's streams: only what is new since the last reading, and nothing that is damaged.

Any client with the right to write may have written anything into these streams. An entry that is not a writer's is
skipped and counted. One reading is bounded in entries, bytes and uncompressed bytes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from millstream.client.line import Line
from millstream.client.ranges import behind
from millstream.ops import asking, audit
from millstream.ops.history.model import COLUMNS, FIVE, KEPT_MS, REST, TEN, Cell, Row, Subject, named, opened, row_of
from millstream.ops.history.windows import TimeRange
from millstream.ops.words import milliseconds, text_of

_READ = 12_000  # largest number of entries in one reading
_WORK = 256 << 20  # largest number of uncompressed bytes in one reading
_SLICE = 4 << 20  # uncompressed bytes that are looked at without a pause
_PAGE, _PAGE_BYTES = 500, 4 << 20  # entries of one page, and their expected size
_NAMING, _HANDLERS = 10, 1000  # handlers are looked up in each tenth entry, up to this number
_VERSIONS = 20  # largest number of versions in one entry
_AHEAD_MS = 60_000  # an entry further in the future was written before the clock was set back
_KEPT = 24  # number of readings that are kept
_TEXT = 200  # characters of a mark
_MARKS = 100  # largest number of marks of each kind

_CUT: Subject = ("cut",)


@dataclass(slots=True)
class StreamRead:
    """The entries of one stream for some subjects, as far as they are read."""

    start_ms: int
    rows: list[tuple[int, tuple[Row | None, ...], frozenset[Subject]]] = field(default_factory=list)
    handlers: set[Subject] = field(default_factory=set)
    first_ms: int | None = None  # time of the stream's oldest entry; None if there is none
    next: str = ""  # id after the last entry that was read
    skipped: int = 0
    cut_ms: int | None = None
    more: bool = False  # there were more entries than one reading may have
    ahead_ms: int | None = None  # time of an entry in the future; None if there is none

    def take(self, at_ms: int, flat: Sequence[bytes] | None, subjects: tuple[Subject, ...]) -> int:
        """Take an entry; return the size of its table."""
        lines = opened(flat)
        if lines is None:
            self.skipped += 1
            return 0
        if not len(self.rows) % _NAMING and len(self.handlers) < _HANDLERS:
            self.handlers |= named(lines, "handler")
        self.rows.append((at_ms, tuple(row_of(lines, one) for one in subjects), named(lines, "version", _VERSIONS)))
        cut = row_of(lines, _CUT)
        self.cut_ms = int(cut[0]) if cut is not None and isinstance(cut[0], int | float) else None
        return len(lines)

    def drop(self, before_ms: int) -> None:
        """Drop the entries before a time."""
        self.rows = [one for one in self.rows if one[0] >= before_ms]

    def seen(self, subjects: tuple[Subject, ...], *others: "StreamRead") -> "SeriesSeen":
        """Return the history of the subjects, with further entries of other streams."""
        parts = (self, *others)
        found: dict[Subject, list[tuple[int, Row]]] = {}
        for number, subject in enumerate(subjects):
            rows = [(at, row) for part in parts for at, every, _ in part.rows if (row := every[number]) is not None]
            found[subject] = sorted(rows, key=lambda one: one[0])
        last = max((part.rows[-1][0] for part in parts if part.rows), default=None)
        skipped, more = sum(part.skipped for part in parts), any(part.more for part in parts)
        seen = SeriesSeen(found, deploys(self.rows), self.first_ms, last, self.cut_ms, skipped, more)
        return replace(seen, ahead_ms=self.ahead_ms)


class KeptReads(OrderedDict[Hashable, StreamRead]):
    """The last readings of streams, by their names."""

    def of(self, name: Hashable, start_ms: int) -> StreamRead:
        """Return a reading from a time on, as far as it was read; those that were wanted longest ago are dropped."""
        known = self.pop(name, None)
        if known is None or known.start_ms > start_ms:
            known = StreamRead(start_ms, next=str(start_ms))
        self[name] = known
        while len(self) > _KEPT:
            self.popitem(last=False)
        return known


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the axis of time."""

    at_ms: int
    kind: str  # ``deploy`` or ``change``
    text: str
    stream: str = ""  # Key of the changed stream; empty if it concerns all
    group: str = ""  # Group of the change; empty if there is none
    action: str = ""  # Name of the change's action; empty for a deploy
    about: str = ""  # Its further words, such as the worker
    who: str = ""  # Its author


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """The history of some subjects in a range."""

    rows: dict[Subject, list[tuple[int, Row]]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    first_ms: int | None = None  # Time of the oldest entry; None if nobody has written any
    last_ms: int | None = None  # Time of the newest entry in the range
    cut_ms: int | None = None  # Older entries went at the limit of memory; None if none did
    skipped: int = 0  # Number of damaged entries
    more: bool = False  # The range had more entries than one reading may have
    ahead_ms: int | None = None  # Time of an entry in the future: the server's clock was set back; None if none is
    own: bool = False  # The console took the figures itself, while a page was open
    why: str | None = None  # Reason why it cannot be read; None if it was read

    def column(self, subject: Subject, name: str) -> list[tuple[int, Cell]]:
        """Return the figures of one column with their times."""
        at = COLUMNS[subject[0]].index(name)
        return [(at_ms, row[at]) for at_ms, row in self.rows.get(subject, ())]


class HistoryReader:
    """Reads one server's history for a console."""

    def __init__(self) -> None:
        self.handlers: set[Subject] = set()  # handlers in any entry that was read
        self.is_there = False  # True if the last reading found entries, and none in the future
        self._streams = KeptReads()

    async def read(self, line: Line, subjects: tuple[Subject, ...], window: TimeRange) -> SeriesSeen:
        """Read the history of some subjects."""
        near, rest = line.near(TEN), []
        try:
            main = await self._stream(near, TEN if window.fine else FIVE, subjects, window)
            lacking = not main.rows or any(row is None for _, rows, _ in main.rows for row in rows)
            if lacking and window.end_ms >= line.wall_time() - KEPT_MS[REST]:
                rest.append(await self._stream(near, REST, subjects, window))
        except asking.NotReadableError as error:
            self.is_there = False
            return SeriesSeen(why=str(error))
        self.is_there = main.first_ms is not None and main.ahead_ms is None
        return main.seen(subjects, *rest)

    async def _stream(self, line: Line, key: str, subjects: tuple[Subject, ...], window: TimeRange) -> StreamRead:
        known = self._streams.of((key, subjects, window.name), window.start_ms)
        await _extend(line, key, subjects, known, window.end_ms)
        self.handlers |= known.handlers if len(self.handlers) < _HANDLERS else set()
        known.drop(window.start_ms if known.first_ms is not None else window.end_ms)
        return known


async def _extend(line: Line, key: str, subjects: tuple[Subject, ...], found: StreamRead, end_ms: int) -> None:
    """Read the entries that are new."""
    read, work, size = 0, 0, _PAGE // 10
    found.more = False
    while True:
        later = line.wall_time() + _AHEAD_MS
        first, rows, ahead = await asking.calls(
            line,
            [
                ("XRANGE", key, "-", "+", "COUNT", 1),
                ("XRANGE", key, found.next, end_ms, "COUNT", size),
                ("XRANGE", key, later, "+", "COUNT", 1),
            ],
        )
        future = asking.checked(ahead, key)
        found.ahead_ms = milliseconds(text_of(future[0][0])) if future else None
        oldest = asking.checked(first, key)
        found.first_ms = milliseconds(text_of(oldest[0][0])) if oldest else None
        page = asking.checked(rows, key)
        for entry, flat in page:
            if work >= _WORK:  # a page of a few kilobytes may be very long when it is uncompressed
                found.more = True
                return
            there = found.take(milliseconds(text_of(entry)), flat, subjects)
            found.next = behind(entry) or found.next
            work += there
            if work // _SLICE != (work - there) // _SLICE:
                await asyncio.sleep(0)  # the other pages of a console go on
        read += len(page)
        if len(page) < size:
            return
        if read >= _READ:
            found.more = True
            return
        bulk = sum(len(word) for _, flat in page for word in flat or ())
        size = max(min(len(page) * _PAGE_BYTES // max(bulk, 1), _PAGE), 1)


def deploys(rows: Sequence[tuple[int, tuple[Row | None, ...], frozenset[Subject]]]) -> tuple[Mark, ...]:
    """Return a mark for each worker version that was not there in the entry before."""
    found = []
    known: frozenset[Subject] | None = None
    for at_ms, _, versions in rows:
        if known is not None and (fresh := versions - known):
            names = ", ".join(sorted(name for _, name in fresh))
            found.append(Mark(at_ms, "deploy", f"workers of version {names}"[:_TEXT]))
        known = versions if known is None or versions else known  # a moment without workers is not a deploy
    return tuple(found[-_MARKS:])


async def changes(line: Line, window: TimeRange) -> tuple[Mark, ...]:
    """Return a mark for each change in the audit stream; none if it cannot be read."""
    command = ("XREVRANGE", audit.KEY, window.end_ms, window.start_ms, "COUNT", _MARKS)
    (rows,) = await asking.calls(line.near(audit.KEY), [command])
    if not isinstance(rows, list):
        return ()
    found = []
    for row in rows:
        try:
            one = audit.entry_of(row)
        except (ValueError, TypeError):  # a field that no writer of changes adds
            continue
        place = " on ".join(filter(None, (one.group, one.stream)))
        text = f"{one.action} {place}".strip() + f", by {one.who or 'unknown'}"
        more = (one.stream, one.group, one.action[:_TEXT], one.about[:_TEXT], (one.who or "unknown")[:_TEXT])
        found.append(Mark(milliseconds(one.id), "change", text[:_TEXT], *more))
    return tuple(reversed(found))


def with_marks(seen: SeriesSeen, marks: Sequence[Mark]) -> SeriesSeen:
    """Return a history with more marks, by time."""
    return replace(seen, marks=tuple(sorted((*seen.marks, *marks), key=lambda mark: mark.at_ms)))
