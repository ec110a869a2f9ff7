"""Durations of a handler's runs, in the buckets of a Prometheus histogram.

Measuring begins with the first scrape, so runs have no overhead in a process without scrapes.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

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
