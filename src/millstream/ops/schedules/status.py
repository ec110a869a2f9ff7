"""Recurring schedules as data. PURE."""

from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Literal

from millstream.client.later.timetable import Timetable
from millstream.ops.words import EntryView, Facts
from millstream.texts import span_text

Declared = Literal["code", "put", "nobody"]
"""The source of a schedule.

``code``: the code of workers. ``put``: a call of ``put``. ``nobody``: code that no worker runs any more.
"""

MOST_MISSED = 100
"""Limit of missed firings that are counted."""


@dataclass(frozen=True, slots=True)
class RecurringStatus:
    """A recurring schedule with its state on the server."""

    name: str  # Name of the schedule
    stream: str = ""  # Key of the stream that gets its entries
    table: Timetable | None = None  # Timetable; None if the record is damaged
    words: tuple[bytes, ...] = ()  # Arguments of XADD after the stream
    declared: Declared = "put"  # Origin of the declaration
    seen_ms: int = 0  # Time of the last declaration by a worker; 0 if it was added by a client
    key: bytes | None = None  # Partition key of its entries
    placed: str | None = None  # Time of the last placed firing, as stored; None if none was placed
    paused: bool = False  # True if it is paused, so that no firing is placed
    score: str | None = None  # Due time of the waiting firing, as stored; None if none waits
    content: bytes | None = None  # Content of that firing
    why: str = ""  # Reason why its state is unknown; empty if it is known

    @property
    def placed_ms(self) -> int | None:
        """The time placed last, in wall milliseconds."""
        return _ms(self.placed)

    @property
    def firing(self) -> str:
        """Id of the firing placed last."""
        return f"{self.name}@{self.placed}"

    def next_ms(self, now_ms: int) -> int | None:
        """Return the next time of its timetable in wall milliseconds; None while it is paused."""
        if self.paused or self.table is None:
            return None
        placed = self.placed_ms
        return placed if placed is not None and placed > now_ms else next(iter(self._times(now_ms, 1)), None)

    def missed(self, now_ms: int) -> list[int]:
        """Return the past times without a firing, at most :data:`MOST_MISSED`."""
        placed = self.placed_ms
        if placed is None or placed >= now_ms:
            return []
        return list(takewhile(lambda at: at <= now_ms, self._times(placed, MOST_MISSED)))

    def late_ms(self, now_ms: int) -> int | None:
        """Return the delay in milliseconds of its oldest firing that was not added; None if none is late."""
        waiting = _ms(self.score)
        late = [waiting] if waiting is not None else []
        late += [] if self.paused else self.missed(now_ms)[:1]
        return max((now_ms - at for at in late if at < now_ms), default=None)

    def ahead(self, now_ms: int, most: int = 5) -> list[int]:
        """Return the next times of its timetable."""
        return self._times(now_ms, most)

    def _times(self, after_ms: int, most: int) -> list[int]:
        if self.table is None:
            return []
        try:
            return list(islice(self.table.after(after_ms), most))
        except (ArithmeticError, ValueError):  # the time is outside of the calendar
            return []


def entry_view(one: RecurringStatus) -> EntryView:
    """Return the entry that a schedule adds."""
    flat = one.words[one.words.index(b"*") + 1 :] if b"*" in one.words else ()
    return EntryView(one.stream, one.name, tuple(zip(flat[::2], flat[1::2], strict=False)))


def _ms(text: str | None) -> int | None:
    """Parse a stored time in milliseconds; None if it is not a time."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 15 else None


def table_text(table: Timetable) -> str:
    """Return a timetable in words."""
    if table.every_ms is None:
        return f"{table.cron} ({table.tz})"
    offset = f" + {span_text(table.offset_ms)}" if table.offset_ms else ""
    return f"every {span_text(table.every_ms)}{offset}"


@dataclass(frozen=True, slots=True)
class SchedulesSeen:
    """The recurring schedules of a server, read at one moment."""

    at_ms: int  # Time of the server
    schedules: tuple[RecurringStatus, ...] = ()  # Schedules sorted by name
    found: int = 0  # Number of all schedules; some of them may be omitted


def recurring_facts(one: RecurringStatus, now_ms: int) -> Facts:
    """Return a recurring schedule as data."""
    missed = one.missed(now_ms)
    return {
        "schedule": one.name,
        "stream": one.stream or None,
        "timetable": None if one.table is None else table_text(one.table),
        "next_ms": one.next_ms(now_ms),
        "placed_ms": one.placed_ms,
        "late_ms": one.late_ms(now_ms),
        "missed": len(missed),
        "paused": one.paused,
        "declared_by": one.declared,
        "declared_ms": one.seen_ms or None,
        "problem": one.why or None,
    }


def table_facts(table: Timetable) -> Facts:
    """Return all options of a timetable as data."""
    return {
        "cron": table.cron,
        "every_ms": table.every_ms,
        "offset_ms": table.offset_ms or None,
        "tz": table.tz if table.cron else None,
        "jitter_ms": table.jitter_ms or None,
        "catch_up": table.catch_up,
        "grace_ms": table.grace_ms if table.catch_up == "none" else None,
        "overlap": table.overlap,
    }
