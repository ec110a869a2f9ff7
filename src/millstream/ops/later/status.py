"""Schedules of streams as facts. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import payload_facts
from millstream.ops.words import EntryView, Facts


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """An entry that waits for its time, with content that anybody may have written."""

    stream: str  # Key of the stream that gets it
    id: str  # Id of the schedule
    at_ms: int  # Due time, wall milliseconds
    score: str  # The same as the server has it
    size: int = 0  # Size of its content in bytes
    content: bytes | None = None  # The content; None where it was not read or is missing
    fields: tuple[tuple[bytes, bytes], ...] = ()  # Names and values of the entry
    trim: tuple[str, ...] = ()  # Words that trim the stream when it is added
    expires_ms: int | None = None  # Time after which it is dropped; None for never
    why: str = ""  # The reason why its entry is not known; empty where it is

    def overdue_ms(self, now_ms: int) -> int | None:
        """Milliseconds since it was due; None while it is to come."""
        return now_ms - self.at_ms if now_ms > self.at_ms else None

    @property
    def view(self) -> EntryView:
        """The entry that it becomes."""
        return EntryView(self.stream, self.id, self.fields)

    @property
    def payload(self) -> EntryPayload:
        """Its fields, to be decoded."""
        return EntryPayload(self.fields)


@dataclass(frozen=True, slots=True)
class StreamSchedules:
    """The schedules of one stream: their number, and some of them."""

    stream: str  # Key of the stream
    at_ms: int  # The server's time
    total: int = 0  # Number of schedules that wait
    first_ms: int | None = None  # Due time of the first; None where none waits
    schedules: tuple[ScheduleStatus, ...] = ()  # Those that were read, the first due first
    why: str = ""  # The server's reason for telling nothing; empty where it does

    @property
    def overdue_ms(self) -> int | None:
        """Milliseconds since the first was due; 0 where none is late, None where that is not known."""
        if self.why:
            return None
        return 0 if self.first_ms is None else max(self.at_ms - self.first_ms, 0)


def schedule_facts(one: ScheduleStatus, now_ms: int, payload: EntryPayload | None = None) -> Facts:
    """A schedule as facts."""
    overdue = one.overdue_ms(now_ms)
    return {
        "stream": one.stream,
        "id": one.id,
        "at_ms": one.at_ms,
        "due_in_ms": one.at_ms - now_ms if overdue is None else None,
        "overdue_ms": overdue,
        "expires_ms": one.expires_ms,
        "size": one.size,
        "fields": payload_facts(payload or one.payload),
        "problem": one.why or None,
    }


def stream_schedules_facts(seen: StreamSchedules) -> Facts:
    """The number of a stream's schedules, and how late the first is."""
    return {
        "stream": seen.stream,
        "waiting": None if seen.why else seen.total,
        "first_ms": seen.first_ms,
        "due_in_ms": None if seen.first_ms is None else max(seen.first_ms - seen.at_ms, 0),
        "overdue_ms": seen.overdue_ms,
        "problem": seen.why or None,
    }


def latest_first(found: Sequence[StreamSchedules]) -> list[StreamSchedules]:
    """Streams by the delay of their first schedule, those that the server tells nothing about first."""
    return sorted(found, key=lambda one: (not one.why, -(one.overdue_ms or 0), one.first_ms or 0, one.stream))
