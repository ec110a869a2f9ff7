"""Handlers as their workers report them: rates, percentiles of durations, failures, and their parts by worker. PURE."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from millstream.ops.schedules.status import RecurringStatus
from millstream.ops.words import DASH, Facts, picked, rounded, span
from millstream.ops.workers.status import SubscriberStatus, WorkersSeen

_LEAST_MS = 1000  # shortest time from which a rate is computed
OLD = "its workers are of an earlier version, which reports no rate and no durations"
NEW = "its workers have just started"
GONE = "no live worker runs it"
NO_RUNS = "no run has ended in that time"

PERCENTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class HandlerPart:
    """One handler in one worker."""

    worker: str  # Id of the worker
    version: str  # Version of Millstream
    state: str  # State of the worker
    sub: SubscriberStatus  # The worker's own report about the handler
    is_frozen: bool = False  # The worker is blocked, or sends no heartbeat


@dataclass(frozen=True, slots=True)
class HandlerFigures:
    """Sums over some workers of one handler."""

    workers: int  # Number of workers
    slots: int  # Largest number of entries processed at the same time
    running: int  # Number of entries being processed
    in_hand: int  # Number of entries that run or were read ahead
    handled: int  # Entries handled since these workers started
    failed: int  # Failed attempts since then
    retried: int | None  # Tries put off since then; None if a worker does not report it
    dead: int  # Dead letters since then
    over_ms: int | None  # Length of the time for the figures below; None if it is unknown
    rate: float | None  # Entries handled per second
    failures: float | None  # Failed attempts per second
    percentiles: tuple[float | None, ...]  # Durations in milliseconds at :data:`PERCENTILES`
    highest_ms: float  # Longest duration that a percentile can show; it means at least that
    why: str | None  # Reason why a rate or duration is unknown; None if all are known
    frozen: int  # Number of these workers that are blocked, or send no heartbeat
    longest_ms: int | None  # Longest run that has not ended, which no percentile has; None if nothing runs


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """One handler with all live workers that run it."""

    handler: str  # Name of the handler
    stream: str  # Key of its stream
    group: str  # Name of its group
    parts: tuple[HandlerPart, ...]  # The handler in each worker
    whole: HandlerFigures  # Sums over all of them
    paused: str | None  # Reason of its pause; None if it is not paused
    limits: str  # Names of its limits, with commas between them
    schedules: tuple[str, ...]  # Names of recurring schedules that fill its stream

    def by_version(self) -> list[tuple[str, HandlerFigures]]:
        """Return the sums of each version's workers."""
        versions = sorted({part.version for part in self.parts})
        return [(one, figures(part for part in self.parts if part.version == one)) for one in versions]

    def by_worker(self) -> list[tuple[HandlerPart, HandlerFigures]]:
        """Return the figures of each worker."""
        return [(part, figures([part])) for part in self.parts]


@dataclass(frozen=True, slots=True)
class HandlersSeen:
    """The handlers of all live workers, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    handlers: tuple[HandlerStatus, ...] = ()  # Handlers by stream, group and name
    why: str | None = None  # Reason why the workers are unknown; None if they are known
    schedules_why: str | None = None  # Reason why the schedules are unknown; None if they are known
    left_out: int = 0  # Number of workers' records that cannot be read, or are too large
    past: frozenset[tuple[str, str, str]] = frozenset()  # Name, stream and group of handlers of workers that signed off

    def with_past(self, known: Iterable[Sequence[str]]) -> "HandlersSeen":
        """Return the handlers with those that have a past, but no live worker; ``known`` has more of these."""
        there = {(one.handler, one.stream, one.group) for one in self.handlers}
        gone = {(handler, stream, group) for handler, stream, group in known} | self.past
        added = [HandlerStatus(*one, (), figures(()), None, "", ()) for one in gone - there]
        rows = sorted((*self.handlers, *added), key=lambda one: (one.stream, one.group, one.handler))
        return replace(self, handlers=tuple(rows))


def handlers_of(workers: WorkersSeen, schedules: Sequence[RecurringStatus] = ()) -> tuple[HandlerStatus, ...]:
    """Return the handlers of all live workers."""
    found: dict[tuple[str, str, str], list[HandlerPart]] = {}
    for worker in workers.workers:
        for sub in worker.subscribers:
            part = HandlerPart(worker.id, worker.version, worker.state, sub, worker.is_frozen(workers.at_ms))
            found.setdefault((sub.stream, sub.group, sub.handler), []).append(part)
    planned: dict[str, list[str]] = {}
    for one in schedules:
        planned.setdefault(one.stream, []).append(one.name)
    return tuple(
        HandlerStatus(
            handler,
            stream,
            group,
            tuple(parts),
            figures(parts),
            next((part.sub.paused for part in parts if part.sub.paused is not None), None),
            ", ".join(sorted({limit.name for part in parts for limit in part.sub.limits})),
            tuple(planned.get(stream, ())),
        )
        for (stream, group, handler), parts in sorted(found.items())
    )


def figures(parts: Iterable[HandlerPart]) -> HandlerFigures:
    """Return the sums over these workers. If one of them does not report a figure, the sum is unknown."""
    parts = list(parts)
    subs = [part.sub for part in parts]
    recent = [sub.recent for sub in subs if sub.recent is not None]
    retried = [sub.retried for sub in subs if sub.retried is not None]
    timed = [one for one in recent if one.over_ms >= _LEAST_MS]
    why = OLD if len(recent) < len(subs) else None if timed else NEW if subs else GONE
    runs: Counter[float] = Counter()
    for bound, count in chain.from_iterable(one.runs for one in recent):
        runs[bound] += count
    return HandlerFigures(
        **{name: sum(getattr(sub, name) for sub in subs) for name in ("slots", "running", "handled", "failed", "dead")},
        workers=len(subs),
        in_hand=sum(sub.running + sub.buffered for sub in subs),
        retried=sum(retried) if len(retried) == len(subs) else None,
        over_ms=None if why else max(one.over_ms for one in timed),
        rate=None if why else sum(one.handled * 1000 / one.over_ms for one in timed),
        failures=None if why else sum(one.failed * 1000 / one.over_ms for one in timed),
        percentiles=tuple(None if why == OLD else percentile(runs, share) for share in PERCENTILES),
        highest_ms=max((bound for bound in runs if bound != inf), default=inf),
        why=why or (None if runs.total() else NO_RUNS),
        frozen=sum(part.is_frozen for part in parts),
        longest_ms=max((job.for_ms for sub in subs for job in sub.jobs), default=None),
    )


def percentile(runs: "Counter[float]", share: float) -> float | None:
    """Return the duration that this share of the runs does not exceed, by interpolation; None without runs.

    In the last bucket, which has no upper bound, the result is its lower bound.
    """
    wanted, below, lower = share * runs.total(), 0, 0.0
    for bound in sorted(runs):
        if below + runs[bound] >= wanted and runs[bound]:
            return lower if bound == inf else lower + (bound - lower) * (wanted - below) / runs[bound]
        below, lower = below + runs[bound], bound
    return None


def spent(one: HandlerFigures) -> list[str]:
    """Return the percentiles as texts."""
    return [
        DASH if ms is None else f"{'at least ' if ms >= one.highest_ms else ''}{_short(ms)}" for ms in one.percentiles
    ]


def _short(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.2g} ms" if ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms)


def figure_facts(one: HandlerFigures) -> Facts:
    """Return the sums as data; a duration above the last bound is that bound."""
    middle, high, highest = (None if ms is None else round(ms, 1) for ms in one.percentiles)
    return {
        "workers": one.workers,
        "per_second": rounded(one.rate),
        "p50_ms": middle,
        "p95_ms": high,
        "p99_ms": highest,
        "over_ms": one.over_ms,
        "failed_per_second": rounded(one.failures),
        **picked(one, "handled failed retried dead in_hand running slots longest_ms frozen"),
        "unknown": one.why,
    }


def handler_facts(one: HandlerStatus) -> Facts:
    """Return a handler as data."""
    return {
        **picked(one, "handler stream group"),
        **figure_facts(one.whole),
        "limits": one.limits or None,
        "schedules": ", ".join(one.schedules) or None,
        "paused": one.paused,
    }


def part_facts(part: HandlerPart, one: HandlerFigures) -> Facts:
    """Return a handler in one worker as data."""
    return {"worker": part.worker, "version": part.version, "state": part.state, **figure_facts(one)}
