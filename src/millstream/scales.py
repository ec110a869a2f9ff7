"""Places, round numbers and short figures for drawings. A leaf: every part that draws may use it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """From values to places on the paper."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value is."""
        span = (self.high - self.low) or 1.0  # all values alike: any place is right, and none may divide by zero
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between ``low`` and ``high``: multiples of 1, 2, 5 or 10 times a power of ten.

    Args:
        low: the smallest value shown.
        high: the largest; not above ``low``, one tick stands for all.
        count: about how many. Steps are rounded up to the next round size, so there are rather fewer.
    """
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    size = 10 ** math.floor(math.log10(raw))  # the power of ten below
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw)
    first = math.ceil(low / step)
    # Whole numbers times the step, not sums of it: sums of 0.1 drift, and the last tick would be missed
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number in few letters: ``336k``, ``1.5``, ``-3``."""
    if abs(value) >= 1000:
        return f"{value / 1000:.3g}k"
    return f"{value:g}"
