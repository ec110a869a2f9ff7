"""Successive readings in bounded memory, for trends. Pure.

The last :data:`POINTS` readings of each stream and each group are kept, packed. At most :data:`SERIES` streams and
groups are kept; those that were read longest ago are dropped first. Nothing is on disk: a trend begins with the first
viewer.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from millstream.ops.streams.status import StreamStatus

POINTS = 240
"""Limit of readings that are kept for one stream or group."""

SERIES = 20_000
"""Limit of streams and groups that are kept."""

#: Numbers per reading: the time, and for a stream the entries added, for a group the lag or its upper bound.
_WIDTH = 2

Name = tuple[str, str | None]
"""Key of a stream, and the name of a group or None for the stream itself."""

Point = tuple[float, float]
"""Time of a reading, and its figure."""


class History:
    """The recent readings of streams and groups."""

    def __init__(self) -> None:
        self._series: OrderedDict[Name, array[float]] = OrderedDict()

    def note(self, streams: Sequence[StreamStatus], at_ms: int) -> None:
        """Store a reading."""
        for stream in streams:
            if stream.entries_added is not None:
                self._add((stream.key, None), at_ms, stream.entries_added)
            for group in stream.groups:
                most = stream.length if group.lag.at_most is None else group.lag.at_most
                self._add((stream.key, group.name), at_ms, most if group.lag.entries is None else group.lag.entries)
        while len(self._series) > SERIES:
            self._series.popitem(last=False)

    def _add(self, name: Name, at_ms: int, figure: int) -> None:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = array("d")
        else:
            self._series.move_to_end(name)
            if series[-_WIDTH] >= at_ms:  # another page added the same reading
                return
        series.extend((float(at_ms), float(figure)))
        if len(series) > POINTS * _WIDTH:
            del series[: len(series) - POINTS * _WIDTH]

    def lags(self, key: str, group: str) -> list[Point]:
        """Return the earlier readings of a group's lag; of an unknown one, the upper bounds."""
        return self._points((key, group))

    def rates(self, key: str) -> list[Point]:
        """Return the rates of entries added per second between readings, each with the time of the later reading."""
        return [
            (after[0], max(after[1] - before[1], 0.0) * 1000 / (after[0] - before[0]))
            for before, after in pairwise(self._points((key, None)))
        ]

    def _points(self, name: Name) -> list[Point]:
        flat = self._series.get(name, ())
        return list(zip(flat[::2], flat[1::2], strict=True))
