"""Positions, round numbers and short figures for charts, and the widths of table columns.

In a table, ids, times, figures and names are never broken, since nobody could copy a text that was cut in two. If a
terminal is too narrow, prose is wrapped or cut first. Then columns are dropped, the least important first. A dropped
column returns if the space left by a wider one has room for it. A table that is still too wide runs past the edge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Number of spaces between two columns."""

PROSE = 30
"""Smallest width of a column of prose, in terminal cells."""


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to positions in a drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        span = (self.high - self.low) or 1.0  # if all values are equal, any position is right
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between ``low`` and ``high``: multiples of 1, 2, 5 or 10 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    size = 10 ** math.floor(math.log10(raw))  # the next lower power of ten
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw)
    first = math.ceil(low / step)
    # Products, not sums: repeated sums of 0.1 drift, and would miss the last tick
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number in few characters: ``336k``, ``1.5``, ``-3``, ``2.4M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class Need:
    """The widths that one table column needs, in terminal cells."""

    width: int  # Width of its widest cell or its heading, in terminal cells
    heading: int  # Width of its heading
    rank: int = 0  # Columns with the highest rank are dropped first if there is no room; 0 is never dropped
    prose: bool = False  # True if the text may be wrapped or shortened
    narrow: int = PROSE  # Smallest width of prose

    @property
    def least(self) -> int:
        """Return the smallest width that the column may have."""
        return min(self.width, max(self.narrow, self.heading)) if self.prose else self.width


def fit(needs: Sequence[Need], width: int) -> dict[int, int]:
    """Return the columns to show, by their position in the table, and the width of each."""
    kept = list(range(len(needs)))
    while _total([needs[at].least for at in kept]) > width:
        soonest = max(kept, key=lambda at: (needs[at].rank, at))
        if needs[soonest].rank == 0:
            break
        kept.remove(soonest)
    for at in sorted(set(range(len(needs))) - set(kept), key=lambda at: (needs[at].rank, at)):
        if _total([needs[one].least for one in (*kept, at)]) <= width:  # a dropped wide column has left room
            kept.append(at)
    kept.sort()
    widths = {at: needs[at].least for at in kept}
    room = max(width - _total(list(widths.values())), 0)
    for at in kept:
        more = min(needs[at].width - widths[at], room)
        widths[at] += more
        room -= more
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(len(widths) - 1, 0)
