"""Who works: workers with what they have in hand, those that vanished, and handlers that are paused. Pure.

The facts are what each worker tells of itself in the registry (``worker/registry/protocol.py``), checked there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.worker.model.pause import HandlerPause


@dataclass(frozen=True, slots=True)
class RunningJob:
    """An entry in the hands of a handler.

    Attributes:
        worker: id of the worker.
        handler: its name.
        stream: key of the stream.
        group: the handler's group.
        id: of the entry.
        since_ms: when the handler began, by the worker's clock, known to about five seconds.
        for_ms: how long it had run at the worker's last beat.
        deliveries: how often the entry was delivered.
    """

    worker: str
    handler: str
    stream: str
    group: str
    id: str
    since_ms: int
    for_ms: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """One handler in one worker.

    Attributes:
        handler: its name.
        stream: key of the stream.
        group: its group.
        consumer: its name in the group.
        slots: entries it may have in hand at a time.
        running: entries in hand.
        buffered: entries read and not begun.
        handled: entries done since the worker started.
        failed: attempts that failed since then.
        dead: entries given up since then.
        paused: why it is paused; None when it is not.
        jobs: what is in hand, the longest first.
    """

    handler: str
    stream: str
    group: str
    consumer: str
    slots: int
    running: int
    buffered: int
    handled: int
    failed: int
    dead: int
    paused: str | None
    jobs: tuple[RunningJob, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that is alive.

    Attributes:
        id: in the registry.
        host: where it runs.
        pid: its process there.
        version: of Millstream.
        state: ``running``, ``quiet``, ``draining``, ``blocked`` and so on, as it says itself.
        started_ms: when it started, wall milliseconds.
        beat_ms: its last heartbeat.
        blocked_ms: how long its event loop had stood still at the last beat; None while it goes on.
        blocked_at: file, line and function where it stands; None while it goes on.
        subscribers: its handlers.
        error: its last error; None without any.
        error_ms: when that was.
        error_entry: the entry it was about.
        ordered: what it was ordered to do and has not done yet; None for nothing.
    """

    id: str
    host: str
    pid: int
    version: str
    state: str
    started_ms: int
    beat_ms: int
    blocked_ms: int | None
    blocked_at: str | None
    subscribers: tuple[SubscriberStatus, ...]
    error: str | None
    error_ms: int | None
    error_entry: str | None
    ordered: str | None = None

    @property
    def jobs(self) -> list[RunningJob]:
        """What is in hand, the longest first."""
        every = [job for subscriber in self.subscribers for job in subscriber.jobs]
        return sorted(every, key=lambda job: -job.for_ms)


@dataclass(frozen=True, slots=True)
class VanishedWorker:
    """A worker that told nothing for a while and did not sign off.

    Attributes:
        id: in the registry.
        beat_ms: its last heartbeat.
    """

    id: str
    beat_ms: int


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """Everybody who works, read at one moment.

    Attributes:
        at_ms: wall milliseconds when they were asked for.
        workers: those alive, the oldest first.
        vanished: those of the last day that are gone without signing off, the latest first.
        pauses: handlers that are paused.
        strange: keys in which no worker's record stands.
        why: why nothing is known of workers; None when it is.
    """

    at_ms: int
    workers: tuple[WorkerStatus, ...] = ()
    vanished: tuple[VanishedWorker, ...] = ()
    pauses: tuple[HandlerPause, ...] = ()
    strange: tuple[str, ...] = ()
    why: str | None = None

    def holder(self, stream: str, group: str, consumer: str) -> WorkerStatus | None:
        """The worker that a consumer belongs to; None when none says so.

        Args:
            stream: key of the stream.
            group: name of the group.
            consumer: its name.
        """
        wanted = (stream, group, consumer)
        for worker in self.workers:
            if any((one.stream, one.group, one.consumer) == wanted for one in worker.subscribers):
                return worker
        return None

    def pause_of(self, stream: str, group: str) -> HandlerPause | None:
        """The pause of a group; None when it is not paused.

        Args:
            stream: key of the stream.
            group: name of the group.
        """
        return next((pause for pause in self.pauses if (pause.stream, pause.group) == (stream, group)), None)


def worker_status(facts: Mapping[str, Any], ordered: str | None = None) -> WorkerStatus:
    """A worker as it tells of itself.

    Args:
        facts: its record in the registry, checked.
        ordered: what it is ordered to do.
    """
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
    )
