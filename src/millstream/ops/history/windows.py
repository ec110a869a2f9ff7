"""Ranges of time, and points in steps that a chart has room for. PURE."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.ops.history.model import FIVE_MS, KEPT_MS, TEN, TEN_MS, Cell

RANGES = {"15m": 900_000, "1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000, "30d": 2_592_000_000}
"""Names of the ranges that end now -> milliseconds."""

USUAL = "1h"

_STEPS = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600)  # seconds
_ROOM = 300  # largest number of steps in a chart
_FINE_MS = 3 * 3_600_000  # longest range that is read every 10 seconds
_LEAST_MS = 60_000
_BETWEEN = re.compile(r"([0-9]{1,14})-([0-9]{1,14})")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of time with the width of its steps."""

    name: str  # One of RANGES, or two times in milliseconds such as ``1700000000000-1700000900000``
    start_ms: int
    end_ms: int
    step_ms: int
    fine: bool  # True to read the stream of every 10 seconds

    @property
    def steps(self) -> int:
        """Number of steps."""
        return (self.end_ms - self.start_ms) // self.step_ms

    @property
    def lasting(self) -> bool:
        """True if the range does not end now."""
        return self.name not in RANGES

    def moved(self, earlier: float, later: float) -> str:
        """Return the name of another range: both ends moved by shares of this range's width."""
        wide = self.end_ms - self.start_ms
        return f"{max(round(self.start_ms + earlier * wide), 0)}-{max(round(self.end_ms + later * wide), 1)}"


def window_of(text: str, now_ms: int) -> TimeRange:
    """Return the range that a person named; the usual one if the text is not a range."""
    name, end = text if text in RANGES else USUAL, now_ms
    start = now_ms - RANGES[name]
    if (found := _BETWEEN.fullmatch(text)) is not None:
        end = max(min(int(found[2]), now_ms), _LEAST_MS)
        start = max(min(int(found[1]), end - _LEAST_MS), end - RANGES["30d"], 0)
        name = f"{start}-{end}"
    fine = end - start <= _FINE_MS and start >= now_ms - KEPT_MS[TEN]
    least = TEN_MS if fine else FIVE_MS
    wide = [1000 * step for step in _STEPS if 1000 * step >= least]
    step = next((each for each in wide if (end - start) / each <= _ROOM), wide[-1])
    return TimeRange(name, start // step * step, (end // step + 1) * step, step, fine)


@dataclass(frozen=True, slots=True)
class StepValue:
    """The readings of one step."""

    at_ms: int  # Middle of the step
    value: float | None  # Mean of the readings; None if each was unknown
    least: float
    most: float


def stepped(readings: Iterable[tuple[int, Cell]], window: TimeRange) -> list[StepValue | None]:
    """Return one value for each step of a range; None for a step without a reading."""
    found: list[list[Cell]] = [[] for _ in range(window.steps)]
    for at_ms, cell in readings:
        if cell is not None and window.start_ms <= at_ms < window.end_ms:
            found[(at_ms - window.start_ms) // window.step_ms].append(cell)
    middle = window.start_ms + window.step_ms // 2
    return [_step(middle + number * window.step_ms, cells) for number, cells in enumerate(found)]


def _step(at_ms: int, cells: list[Cell]) -> StepValue | None:
    if not cells:
        return None
    known = [cell for cell in cells if isinstance(cell, int | float)]
    bounds = [each for cell in cells if isinstance(cell, tuple) for each in cell] + known
    return StepValue(at_ms, sum(known) / len(known) if known else None, min(bounds), max(bounds))
