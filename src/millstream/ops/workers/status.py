"""Workers, their subscribers and their jobs, and the same cut to the size of a page. PURE.

Strangers may have written megabytes under the names of workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.client.partitions.layout import logical
from millstream.texts import span_text

if TYPE_CHECKING:
    from millstream.worker.model.pause import HandlerPause


@dataclass(frozen=True, slots=True)
class RunningJob:
    """An entry in the hands of a handler."""

    worker: str  # Id of the worker
    handler: str  # Its name
    stream: str  # Key of the stream
    group: str  # The handler's group
    id: str  # Id of the entry
    since_ms: int  # Time at which the handler began, by the worker's clock, known to about five seconds
    for_ms: int  # Its run time at the worker's last beat
    deliveries: int  # Number of deliveries of the entry


@dataclass(frozen=True, slots=True)
class HeldUpKey:
    """A key of a partition whose entries wait for one that failed (``hold=True``)."""

    stream: str  # Key of the partition
    key: str  # The entries' key
    id: str  # Id of the entry that holds it up
    waiting: int  # Entries that wait in the worker
    since_ms: int | None  # Wall milliseconds of its first failure; None if it failed in an earlier process
    error: str | None  # Its last error; None if it failed in an earlier process

    def text(self, now_ms: int) -> str:
        """The same in words."""
        since = "" if self.since_ms is None else f" for {span_text(max(now_ms - self.since_ms, 0))}"
        why = "" if self.error is None else f", by {self.error}"
        waits = "entry waits" if self.waiting == 1 else "entries wait"
        return f"the key {self.key!r} of {self.stream} is held up by {self.id}{since}{why}; {self.waiting} {waits}"


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """One handler in one worker."""

    handler: str  # Its name
    stream: str  # Key of the stream
    group: str  # Its group
    consumer: str  # Its name in the group
    slots: int  # Entries it may have in hand at a time
    running: int  # Entries in hand
    buffered: int  # Entries read and not begun
    handled: int  # Entries done since the worker started
    failed: int  # Attempts that failed since then
    dead: int  # Entries given up since then
    paused: str | None  # Reason of its pause; None when it is not paused
    jobs: tuple[RunningJob, ...]  # Entries in hand, the longest first
    held_up: tuple[HeldUpKey, ...] = ()  # Keys that wait for a failed entry, the longest first


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that is alive."""

    id: str  # Id in the registry
    host: str  # Its host
    pid: int  # Its process there
    version: str  # Version of Millstream
    state: str  # ``running``, ``quiet``, ``draining``, ``blocked`` and so on, as it says itself
    started_ms: int  # Time of its start, wall milliseconds
    beat_ms: int  # Its last heartbeat
    blocked_ms: int | None  # Time that its event loop was blocked at the last beat; None while it goes on
    blocked_at: str | None  # File, line and function that block it; None while it goes on
    subscribers: tuple[SubscriberStatus, ...]  # Its handlers
    error: str | None  # Its last error; None without any
    error_ms: int | None  # Time of that error
    error_entry: str | None  # The entry it was about
    ordered: str | None = None  # An order that it has not carried out yet; None for none

    @property
    def jobs(self) -> list[RunningJob]:
        """The entries in hand, the longest first."""
        every = [job for subscriber in self.subscribers for job in subscriber.jobs]
        return sorted(every, key=lambda job: -job.for_ms)


@dataclass(frozen=True, slots=True)
class VanishedWorker:
    """A worker that was silent for a while and did not sign off."""

    id: str  # Id in the registry
    beat_ms: int  # Its last heartbeat


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """All workers, read at one moment."""

    at_ms: int  # Wall milliseconds when they were asked for
    workers: tuple[WorkerStatus, ...] = ()  # Those alive, the oldest first
    # Those of the last day that are gone without signing off, the latest first
    vanished: tuple[VanishedWorker, ...] = ()
    pauses: "tuple[HandlerPause, ...]" = ()  # Handlers that are paused
    strange: tuple[str, ...] = ()  # Keys that do not hold a worker's record
    why: str | None = None  # The reason why nothing is known of workers; None when it is

    def named(self, stream: str, group: str) -> str:
        """The stream as workers name it: for a partition that they own, the partitioned stream."""
        rows = [(one.stream, one.group) for worker in self.workers for one in worker.subscribers]
        known, whole = {*rows, *((one.stream, one.group) for one in self.pauses)}, logical(stream)
        return whole if whole and (stream, group) not in known and (whole, group) in known else stream

    def holder(self, stream: str, group: str, consumer: str) -> WorkerStatus | None:
        """The worker that a consumer belongs to; None when none says so."""
        wanted = (self.named(stream, group), group, consumer)
        for worker in self.workers:
            if any((one.stream, one.group, one.consumer) == wanted for one in worker.subscribers):
                return worker
        return None

    def held_up(self, stream: str, group: str) -> list[HeldUpKey]:
        """Keys of a partitioned stream, or of one partition, that wait for a failed entry in a group."""
        every = [one for worker in self.workers for one in worker.subscribers if one.group == group]
        return [each for one in every for each in one.held_up if stream in {one.stream, each.stream}]

    def pause_of(self, stream: str, group: str) -> "HandlerPause | None":
        """The pause of a group; None when it is not paused."""
        wanted = (self.named(stream, group), group)
        return next((pause for pause in self.pauses if (pause.stream, pause.group) == wanted), None)


def worker_status(facts: Mapping[str, Any], ordered: str | None = None) -> WorkerStatus:
    """A worker as it tells of itself."""
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
    )


T = TypeVar("T")

LETTERS = 400_000
"""Characters in the texts of each list, with a share for figures and names of fields: some hundreds of usual workers.
"""

_TEXT = 1000  # letters of one text; a name that is longer leads nowhere
_ROW = 150  # characters that a row takes in addition to its texts


def within(seen: WorkersSeen, letters: int = LETTERS) -> WorkersSeen:
    """The first of each list, as many as fit, their texts cut."""
    return replace(
        seen,
        workers=_Room(letters).workers(seen.workers),
        vanished=_Room(letters).rows(seen.vanished),
        pauses=_Room(letters).rows(seen.pauses),
        strange=_Room(letters).rows(seen.strange),
    )


class _Room:
    """The rest of the characters that a list may take."""

    def __init__(self, letters: int) -> None:
        self._left = letters

    def rows(self, rows: tuple[T, ...]) -> tuple[T, ...]:
        """The first of them, as many as fit."""
        found = []
        for row in rows:
            kept = _cut(row)
            self._left -= _cost(kept)
            if self._left < 0:
                break
            found.append(kept)
        return tuple(found)

    def workers(self, workers: tuple[WorkerStatus, ...]) -> tuple[WorkerStatus, ...]:
        """The first workers that fit; the first one that does not fit keeps as many handlers and entries as do."""
        found: list[WorkerStatus] = []
        for worker in workers:
            kept = self.rows((replace(worker, subscribers=()),))
            if not kept:
                break
            found.append(replace(kept[0], subscribers=self._subscribers(worker)))
        return tuple(found)

    def _subscribers(self, worker: WorkerStatus) -> tuple[SubscriberStatus, ...]:
        found: list[SubscriberStatus] = []
        for one in worker.subscribers:
            kept = self.rows((replace(one, jobs=(), held_up=()),))
            if not kept:
                break
            found.append(replace(kept[0], jobs=self.rows(one.jobs), held_up=self.rows(one.held_up)))
        return tuple(found)


def _cut(row: Any) -> Any:
    """A row with the beginnings of its texts."""
    if isinstance(row, str):
        return row[:_TEXT]
    long = {name: text[:_TEXT] for name, text in _texts(row).items() if len(text) > _TEXT}
    return replace(row, **long) if long else row


def _cost(row: object) -> int:
    return _ROW + (len(row) if isinstance(row, str) else sum(map(len, _texts(row).values())))


def _texts(row: object) -> dict[str, str]:
    assert is_dataclass(row)
    return {one.name: text for one in fields(row) if isinstance(text := getattr(row, one.name), str)}
