"""Schedules of streams as data. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import payload_facts
from millstream.ops.words import EntryView, Facts, picked


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """An entry that waits for its due time; any client may have written its content."""

    stream: str  # Key of the stream that will get the entry
    id: str  # Id of the schedule
    at_ms: int  # Due time, wall milliseconds
    score: str  # Due time as the server stores it
    size: int = 0  # Size of the content in bytes
    content: bytes | None = None  # Content; None if it was not read or is missing
    fields: tuple[tuple[bytes, bytes], ...] = ()  # Names and values of the entry
    trim: tuple[str, ...] = ()  # Trimming arguments of XADD
    expires_ms: int | None = None  # Wall milliseconds after which it is dropped; None for never
    why: str = ""  # Reason why the entry is unknown; empty if it is known

    def overdue_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds since it was due; None if it is not due yet."""
        return now_ms - self.at_ms if now_ms > self.at_ms else None

    @property
    def view(self) -> EntryView:
        """The entry that it will become."""
        return EntryView(self.stream, self.id, self.fields)

    @property
    def payload(self) -> EntryPayload:
        """Its fields as a payload that can be decoded."""
        return EntryPayload(self.fields)


@dataclass(frozen=True, slots=True)
class StreamSchedules:
    """The schedules of one stream: their number, and some of them."""

    stream: str  # Key of the stream
    at_ms: int  # Time of the server
    total: int = 0  # Number of waiting schedules
    first_ms: int | None = None  # Due time of the first one; None if none waits
    schedules: tuple[ScheduleStatus, ...] = ()  # Schedules that were read, earliest first
    why: str = ""  # Error of the server if it refused to report; otherwise empty

    @property
    def overdue_ms(self) -> int | None:
        """Milliseconds since the first was due; 0 if none is late, None if unknown."""
        if self.why:
            return None
        return 0 if self.first_ms is None else max(self.at_ms - self.first_ms, 0)


def schedule_facts(one: ScheduleStatus, now_ms: int, payload: EntryPayload | None = None) -> Facts:
    """Return a schedule as data."""
    overdue = one.overdue_ms(now_ms)
    return {
        **picked(one, "stream id at_ms"),
        "due_in_ms": one.at_ms - now_ms if overdue is None else None,
        "overdue_ms": overdue,
        "expires_ms": one.expires_ms,
        "size": one.size,
        "fields": payload_facts(payload or one.payload),
        "problem": one.why or None,
    }


def stream_schedules_facts(seen: StreamSchedules) -> Facts:
    """Return the number of a stream's schedules and the delay of the first as data."""
    return {
        "stream": seen.stream,
        "waiting": None if seen.why else seen.total,
        "first_ms": seen.first_ms,
        "due_in_ms": None if seen.first_ms is None else max(seen.first_ms - seen.at_ms, 0),
        "overdue_ms": seen.overdue_ms,
        "problem": seen.why or None,
    }


def latest_first(found: Sequence[StreamSchedules]) -> list[StreamSchedules]:
    """Sort streams by the delay of their first schedule; streams that cannot be read come first."""
    return sorted(found, key=lambda one: (not one.why, -(one.overdue_ms or 0), one.first_ms or 0, one.stream))
