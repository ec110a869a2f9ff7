"""Durations of a handler's runs, in the buckets of a Prometheus histogram, and the runs of the last minutes.

Measuring begins with the first heartbeat or scrape, so runs have no overhead in a process without either.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar

from millstream.worker.model.stats import SubscriberStats

Argument = TypeVar("Argument")

#: Upper bounds in seconds: from handlers that only decode to jobs of minutes.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Durations:
    """Durations of one handler's runs since measuring began."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # Total duration of all runs, in seconds

    def add(self, seconds: float) -> None:
        """Count one run."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of runs in each bucket; the last bucket has no upper bound."""
        return tuple(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each upper bound with the number of runs within it, for prometheus-client; the last is ``+Inf``."""
        found, count = [], 0
        for bound, more in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            count += more
            found.append((bound, float(count)))
        return found

    def timed(self, run: Callable[[Argument], Awaitable[Any]]) -> Callable[[Argument], Awaitable[Any]]:
        """Wrap ``run`` so that the duration of each call is counted, however the call ends."""

        async def timed(argument: Argument) -> Any:
            began = perf_counter()
            try:
                return await run(argument)
            finally:
                self.add(perf_counter() - began)

        return timed


WINDOW_MS = 300_000
"""Milliseconds over which a worker reports the runs of its handlers."""

_APART_MS = 15_000  # milliseconds between two marks
_COUNTERS = ("handled", "failed", "retried", "dead")


class RecentRuns:
    """One handler's runs in about the last five minutes, as the difference from a mark of that time."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, tuple[int, ...], tuple[int, ...]]] = deque()

    def note(self, mono_ms: int, durations: Durations, stats: SubscriberStats) -> None:
        """Set a mark from time to time, and drop marks that are older than needed."""
        if not self._marks or mono_ms - self._marks[-1][0] >= _APART_MS:
            self._marks.append((mono_ms, durations.counts, _figures(stats)))
        while len(self._marks) > 1 and mono_ms - self._marks[1][0] >= WINDOW_MS:
            self._marks.popleft()

    def facts(self, mono_ms: int, durations: Durations, stats: SubscriberStats) -> Mapping[str, object] | None:
        """Return the counters and the histogram since the oldest mark; None before the first mark."""
        if not self._marks:
            return None
        began, counts, figures = self._marks[0]
        runs = [now - then for now, then in zip(durations.counts, counts, strict=True)]
        while runs and not runs[-1]:
            runs.pop()
        done = {name: now - then for name, now, then in zip(_COUNTERS, _figures(stats), figures, strict=True)}
        return {"over_ms": mono_ms - began, **done, "runs": runs}


def _figures(stats: SubscriberStats) -> tuple[int, ...]:
    return stats.handled, stats.failed, stats.retried, stats.dead
