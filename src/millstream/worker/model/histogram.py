"""Durations of a handler's runs, in the buckets of a Prometheus histogram.

Nothing is measured until somebody asks for the first time: where no metrics are scraped, a run costs what it cost.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

Argument = TypeVar("Argument")

#: Seconds, upper bounds: from handlers that only decode to jobs of minutes.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Durations:
    """The runs of one handler since they are measured."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # Seconds of all runs together

    def add(self, seconds: float) -> None:
        """Count one run."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many runs took no longer, as prometheus-client wants them; the last bound is ``+Inf``."""
        found, count = [], 0
        for bound, more in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            count += more
            found.append((bound, float(count)))
        return found

    def timed(self, run: Callable[[Argument], Awaitable[Any]]) -> Callable[[Argument], Awaitable[Any]]:
        """``run``, each call of which is counted, however it ends."""

        async def timed(argument: Argument) -> Any:
            began = perf_counter()
            try:
                return await run(argument)
            finally:
                self.add(perf_counter() - began)

        return timed
