"""Successive readings in bounded memory, for trends. Pure.

The last :data:`POINTS` readings of each stream and each group are kept, packed. At most :data:`SERIES` streams and
groups are kept; those that were read longest ago are dropped first. Nothing is on disk: a trend begins with the first
viewer.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from millstream.ops.streams.status import GroupStatus, StreamStatus

POINTS = 240
"""Limit of readings that are kept for one stream or group."""

SERIES = 20_000
"""Limit of streams and groups that are kept."""

_UNKNOWN = float("nan")

#: Numbers per reading: time and three figures. For a stream: entries added; for a group: lag or NaN, lower bound, upper
#: bound.
_WIDTH = 4

Name = tuple[str, str | None]
"""Key of a stream, and the name of a group or None for the stream itself."""


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One reading of a lag that may be unknown."""

    at_ms: float  # Time of the reading
    value: float | None  # The value; None if unknown
    least: float  # Lower bound
    most: float  # Upper bound


class History:
    """The recent readings of streams and groups."""

    def __init__(self) -> None:
        self._series: OrderedDict[Name, array[float]] = OrderedDict()

    def note(self, streams: Sequence[StreamStatus], at_ms: int) -> None:
        """Store a reading."""
        for stream in streams:
            added = _UNKNOWN if stream.entries_added is None else float(stream.entries_added)
            self._add((stream.key, None), at_ms, added, added, added)
            for group in stream.groups:
                self._add((stream.key, group.name), at_ms, *_lag_figures(stream, group))
        while len(self._series) > SERIES:
            self._series.popitem(last=False)

    def _add(self, name: Name, at_ms: int, value: float, least: float, most: float) -> None:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = array("d")
        else:
            self._series.move_to_end(name)
            if series[-_WIDTH] >= at_ms:  # another page added the same reading
                return
        series.extend((float(at_ms), value, least, most))
        if len(series) > POINTS * _WIDTH:
            del series[: len(series) - POINTS * _WIDTH]

    def lags(self, key: str, group: str) -> list[TrendPoint]:
        """Return the earlier readings of a group's lag."""
        return [
            TrendPoint(at, None if value != value else value, least, most)  # noqa: PLR0124 - NaN stands for unknown
            for at, value, least, most in self._rows((key, group))
        ]

    def rates(self, key: str) -> list[tuple[float, float]]:
        """Return the rates of entries added per second between readings, each with the time of the later reading."""
        rows = self._rows((key, None))
        return [
            (after[0], max(after[1] - before[1], 0.0) * 1000 / (after[0] - before[0]))
            for before, after in pairwise(rows)
            if after[1] == after[1] and before[1] == before[1]
        ]

    def _rows(self, name: Name) -> list[tuple[float, float, float, float]]:
        flat = self._series.get(name, ())
        return [(flat[at], flat[at + 1], flat[at + 2], flat[at + 3]) for at in range(0, len(flat), _WIDTH)]


def _lag_figures(stream: StreamStatus, group: GroupStatus) -> tuple[float, float, float]:
    """Return the lag of a group or NaN, and its lower and upper bounds."""
    lag = group.lag
    if lag.entries is not None:
        return float(lag.entries), float(lag.entries), float(lag.entries)
    return _UNKNOWN, float(lag.at_least), float(stream.length if lag.at_most is None else lag.at_most)
