"""Workers, their subscribers and their jobs, and their texts cut to the size of a page. PURE.

Any client may have written megabytes under the names of workers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from millstream.client.partitions.layout import logical
from millstream.texts import plural, span_text

if TYPE_CHECKING:
    from millstream.worker.model.pause import HandlerPause


SILENT_MS = 15_000
"""Milliseconds without a heartbeat after which a worker counts as frozen: three heartbeats."""

_KEPT_MS = 20_000
"""Milliseconds for which the server keeps a record: ``TTL_MS`` of the registry, whose module is not pure."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """An entry that a handler is processing."""

    worker: str  # Id of the worker
    handler: str  # Name of the handler
    stream: str  # Key of the stream
    group: str  # Group of the handler
    id: str  # Id of the entry
    since_ms: int  # Start of the handler by the worker's clock, wall milliseconds, accurate to about five seconds
    for_ms: int  # Milliseconds that it had run at the worker's last heartbeat
    deliveries: int  # Number of deliveries of the entry


@dataclass(frozen=True, slots=True)
class HeldUpKey:
    """A key whose entries in a partition wait for a failed entry (``hold=True``)."""

    stream: str  # Key of the partition
    key: str  # Ordering key of the entries
    id: str  # Id of the failed entry that blocks the key
    waiting: int  # Number of entries that wait in the worker
    since_ms: int | None  # Wall milliseconds of its first failure; None if it failed in an earlier process
    error: str | None  # Last error; None if it failed in an earlier process

    def text(self, now_ms: int) -> str:
        """Return a sentence about the key and its waiting entries."""
        since = "" if self.since_ms is None else f" for {span_text(max(now_ms - self.since_ms, 0))}"
        why = "" if self.error is None else f", by {self.error}"
        waits = "entry waits" if self.waiting == 1 else "entries wait"
        return f"the key {self.key!r} of {self.stream} is held up by {self.id}{since}{why}; {self.waiting} {waits}"


@dataclass(frozen=True, slots=True)
class HandlerLimit:
    """A limit of a handler, as its worker reports it."""

    name: str  # Name of the limit
    waiting: int  # Number of entries that wait for a permit
    rate: str | None = None  # Rate in the code; None if it has none
    # Milliseconds from its last refusal to the heartbeat; None if there was none, or the worker does not report it
    refused_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """The runs of one handler in one worker in the last minutes."""

    over_ms: int  # Length of that time
    handled: int  # Number of entries handled
    failed: int  # Number of failed attempts
    retried: int  # Number of entries released for another try
    dead: int  # Number of dead letters
    # Upper bound of a duration in milliseconds -> number of runs within it and above the bound before
    runs: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """The state of one handler in one worker."""

    handler: str  # Name of the handler
    stream: str  # Key of the stream
    group: str  # Name of the group
    consumer: str  # Name of the consumer
    slots: int  # Largest number of entries processed at the same time
    running: int  # Number of entries being processed
    buffered: int  # Number of entries that were read but not started
    handled: int  # Number of entries handled since the worker started
    failed: int  # Number of failed attempts since the start
    dead: int  # Number of dead letters since the start
    paused: str | None  # Reason of its pause; None if it is not paused
    jobs: tuple[RunningJob, ...]  # Entries being processed, the longest first
    held_up: tuple[HeldUpKey, ...] = ()  # Keys blocked by a failed entry, the longest first
    limits: tuple[HandlerLimit, ...] = ()  # Limits of the handler
    retried: int | None = None  # Number of tries put off since the start; None if the worker does not report it
    recent: RecentFigures | None = None  # Runs of the last minutes; None if the worker does not report them


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one live worker."""

    id: str  # Id in the registry
    host: str  # Host of the worker
    pid: int  # Its process id on that host
    version: str  # Version of Millstream
    state: str  # State in its own report: ``running``, ``quiet``, ``draining``, ``blocked`` and so on
    started_ms: int  # Start time, wall milliseconds
    beat_ms: int  # Time of the last heartbeat, wall milliseconds
    blocked_ms: int | None  # Milliseconds for which its loop was blocked at the last heartbeat; None if it was not
    blocked_at: str | None  # File, line and function that block it; None if it is not blocked
    subscribers: tuple[SubscriberStatus, ...]  # Handlers of the worker
    error: str | None  # Last error; None without any
    error_ms: int | None  # Time of that error, wall milliseconds
    error_entry: str | None  # Id of the entry that caused it
    ordered: str | None = None  # Order that it has not carried out yet; None if there is none

    def is_frozen(self, now_ms: int) -> bool:
        """Return True if its event loop is blocked, or it sends no heartbeat.

        The server keeps a record for 20 s after a heartbeat. If that seems older, the clocks of the hosts differ.
        """
        return self.blocked_at is not None or SILENT_MS <= now_ms - self.beat_ms <= _KEPT_MS

    @property
    def jobs(self) -> list[RunningJob]:
        """The entries that it is processing, the longest first."""
        every = [job for subscriber in self.subscribers for job in subscriber.jobs]
        return sorted(every, key=lambda job: -job.for_ms)


@dataclass(frozen=True, slots=True)
class VanishedWorker:
    """A worker that sends no heartbeat any more and did not sign off."""

    id: str  # Id in the registry
    beat_ms: int  # Time of the last heartbeat, wall milliseconds


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """A worker that signed off."""

    id: str  # Id in the registry
    at_ms: int  # Time at which it signed off, wall milliseconds
    order: str | None  # Order that ended it: ``drain`` or ``stop``; None for a signal
    handlers: tuple[tuple[str, str, str], ...]  # Name, stream and group of each handler

    @property
    def how(self) -> str:
        """The way in which it ended, in words."""
        return {"drain": "was drained", "stop": "was stopped by order"}.get(self.order or "", "ended")


_MADE = re.compile(r"(.{1,200}-[0-9]{1,10})-[0-9a-f]{6}", re.DOTALL)  # host, process id, random part


def process_of(name: str) -> str:
    """Return the part of a worker's or consumer's name that all names of a process share, or the whole name."""
    made = _MADE.fullmatch(name)
    return name if made is None else made[1]


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """All workers, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    workers: tuple[WorkerStatus, ...] = ()  # Live workers, the oldest first
    # Workers that vanished within the last day without deregistering, the latest first
    vanished: tuple[VanishedWorker, ...] = ()
    pauses: "tuple[HandlerPause, ...]" = ()  # Paused handlers
    strange: tuple[str, ...] = ()  # Keys that contain no worker's record, or one above the limit of bytes
    why: str | None = None  # Reason why the workers are unknown; None if they are known
    ended: tuple[EndedWorker, ...] = ()  # Workers that signed off within the last day, the latest first

    def left(self, stream: str, group: str, consumers: Iterable[str]) -> str:
        """Return the end of the last worker that read a group, as text; empty if no fact connects one with it."""
        names, processes = {stream, logical(stream)}, set(map(process_of, consumers))
        gone = [one for one in self.vanished if process_of(one.id) in processes]
        ended = [one for one in self.ended if any(row[1] in names and row[2] == group for row in one.handlers)]
        if gone and (not ended or gone[0].beat_ms >= ended[0].at_ms):
            ago = span_text(max(self.at_ms - gone[0].beat_ms, 0))
            return f"{plural(len(gone), 'worker')} of it vanished without signing off, {gone[0].id} {ago} ago"
        if ended:
            return f"its last worker {ended[0].id} {ended[0].how} {span_text(max(self.at_ms - ended[0].at_ms, 0))} ago"
        return ""

    def named(self, stream: str, group: str) -> str:
        """Return the stream's name in workers' reports: for a partition, the partitioned stream if they report it."""
        rows = [(one.stream, one.group) for worker in self.workers for one in worker.subscribers]
        known, whole = {*rows, *((one.stream, one.group) for one in self.pauses)}, logical(stream)
        return whole if whole and (stream, group) not in known and (whole, group) in known else stream

    def holder(self, stream: str, group: str, consumer: str) -> WorkerStatus | None:
        """Return the worker that reports this consumer; None if no worker does."""
        wanted = (self.named(stream, group), group, consumer)
        for worker in self.workers:
            if any((one.stream, one.group, one.consumer) == wanted for one in worker.subscribers):
                return worker
        return None

    def held_up(self, stream: str, group: str) -> list[HeldUpKey]:
        """Return the keys of a stream, or of one partition, whose entries wait for a failed entry in a group."""
        every = [one for worker in self.workers for one in worker.subscribers if one.group == group]
        return [each for one in every for each in one.held_up if stream in {one.stream, each.stream}]

    def pause_of(self, stream: str, group: str) -> "HandlerPause | None":
        """Return the pause of a group; None if it is not paused."""
        wanted = (self.named(stream, group), group)
        return next((pause for pause in self.pauses if (pause.stream, pause.group) == wanted), None)


def worker_status(facts: Mapping[str, Any], ordered: str | None = None) -> WorkerStatus:
    """Return a worker's state from its own report."""
    error, blocked = facts["last_error"], facts["blocked"]
    return WorkerStatus(
        **{name: facts[name] for name in ("id", "host", "pid", "version", "state", "started_ms", "beat_ms")},
        blocked_ms=None if blocked is None else facts["beat_ms"] - blocked["since_ms"],
        blocked_at=None if blocked is None else blocked["where"],
        subscribers=tuple(_subscriber(facts, one) for one in facts["subscribers"]),
        error=None if error is None else error["error"],
        error_ms=None if error is None else error["at_ms"],
        error_entry=None if error is None else error["entry"],
        ordered=ordered,
    )


def _subscriber(facts: Mapping[str, Any], one: Mapping[str, Any]) -> SubscriberStatus:
    names = ("handler", "stream", "group", "consumer", "slots", "running", "buffered", "handled", "failed", "dead")
    jobs = [
        RunningJob(
            facts["id"],
            one["handler"],
            one["stream"],
            one["group"],
            job["id"],
            job["since_ms"],
            facts["beat_ms"] - job["since_ms"],
            job["deliveries"],
        )
        for job in one["jobs"]
    ]
    return SubscriberStatus(
        **{name: one[name] for name in names},
        paused=one["paused"],
        jobs=tuple(sorted(jobs, key=lambda job: job.since_ms)),
        held_up=tuple(
            HeldUpKey(**{each.name: row[each.name] for each in fields(HeldUpKey)}) for row in one.get("held_up", ())
        ),
        limits=tuple(
            HandlerLimit(row["name"], row["waiting"], row.get("rate"), row.get("refused_ms"))
            for row in one.get("limits", ())
        ),
        retried=one.get("retried"),
        recent=_recent(one.get("recent"), facts.get("bounds_ms", ())),
    )


def _recent(one: Mapping[str, Any] | None, bounds: Sequence[float]) -> RecentFigures | None:
    if one is None:
        return None
    figures = {name: one[name] for name in ("over_ms", "handled", "failed", "retried", "dead")}
    runs = zip((*bounds, inf), one["runs"], strict=False)
    return RecentFigures(**figures, runs=tuple(runs))


LETTERS = 400_000
"""Limit of characters in each list's texts and figures, enough for some hundreds of usual workers."""

_TEXT = 1000  # largest number of characters in a text; a longer name has no working link
_ROW = 220  # characters of a row apart from its texts


_INSIDE = {"workers": ("subscribers",), "subscribers": ("jobs", "held_up", "limits")}
"""List -> the lists in each of its rows."""


def within(seen: WorkersSeen) -> WorkersSeen:
    """Cut the texts of all lists, and keep the first rows of each list that fit."""
    lists = ("workers", "vanished", "pauses", "strange", "ended")
    kept: dict[str, Any] = {name: _Room().rows(getattr(seen, name), name) for name in lists}
    return replace(seen, **kept)


class _Room:
    """The number of characters that a list may still take."""

    def __init__(self) -> None:
        self._left = LETTERS

    def rows(self, rows: tuple[Any, ...], name: str) -> tuple[Any, ...]:
        """Return the first rows of a list that fit; the last one may keep only some of the rows in it."""
        found, inside = [], _INSIDE.get(name, ())
        for row in rows:
            kept = _cut(replace(row, **dict.fromkeys(inside, ())) if inside else row)
            self._left -= _cost(kept)
            if self._left < 0:
                break
            whole = {each: self.rows(getattr(row, each), each) for each in inside}
            found.append(replace(kept, **whole) if inside else kept)
        return tuple(found)


def _cut(row: Any) -> Any:
    """Return a row with its long texts cut."""
    if isinstance(row, str):
        return row[:_TEXT]
    long = {name: text[:_TEXT] for name, text in _texts(row).items() if len(text) > _TEXT}
    return replace(row, **long) if long else row


def _cost(row: object) -> int:
    return _ROW + (len(row) if isinstance(row, str) else sum(map(len, _texts(row).values())))


def _texts(row: object) -> dict[str, str]:
    assert is_dataclass(row)
    return {one.name: text for one in fields(row) if isinstance(text := getattr(row, one.name), str)}
