"""Figures compared with thresholds, for monitoring systems: ok, warning, critical, or unknown with the reason. Pure.

The bounds of a figure that is not known exactly decide its status where they suffice. A lag of at least 500 is above
100 in any case.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from millstream.client.dead_letter.letter import SUFFIX, dead_key
from millstream.ops.letters.status import LettersSeen
from millstream.ops.streams.status import GroupStatus, OldestEntry, StreamsSeen

if TYPE_CHECKING:
    from millstream.ops.later.status import StreamSchedules

CheckStatus = Literal["ok", "warning", "critical", "unknown"]

EXIT_CODES: dict[CheckStatus, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}

_WORST_FIRST: tuple[CheckStatus, ...] = ("critical", "warning", "unknown", "ok")

Figure = Literal["lag", "behind", "pending", "pending-age", "unowned", "no-owner", "dead", "overdue"]
"""A checked figure.

``lag``: entries not delivered. ``behind``: age of the oldest of them. ``pending``: pending entries. ``pending-age``:
age of the oldest of them. ``unowned``: pending entries without a holder. ``no-owner``: time since a partition last
had an owner. ``dead``: dead letters. ``overdue``: delay of the first schedule.
"""

FIGURES: tuple[Figure, ...] = ("lag", "behind", "pending", "pending-age", "unowned", "no-owner", "dead", "overdue")

AGES: frozenset[Figure] = frozenset({"behind", "pending-age", "no-owner", "overdue"})
"""Figures in milliseconds; the others are counts."""


@dataclass(frozen=True, slots=True)
class CheckBounds:
    """Thresholds from which on a figure is a warning or critical."""

    warning: int | None = None  # Warning threshold, inclusive; None for never
    critical: int | None = None  # Critical threshold, inclusive; None for never

    def status(self, value: int) -> CheckStatus:
        """Return the status of a figure with this value."""
        if self.critical is not None and value >= self.critical:
            return "critical"
        return "warning" if self.warning is not None and value >= self.warning else "ok"


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of a group, or of a dead-letter stream."""

    figure: Figure  # Kind of figure
    stream: str  # Key of the stream; empty for all dead letters, if there are none or they are unknown
    group: str | None  # Name of the group; None for a dead-letter stream, and for schedules
    value: int | None  # Value; None if it is unknown
    at_least: int = 0  # Lower bound
    at_most: int | None = None  # Upper bound; None if there is none
    why: str = ""  # Reason why the value is unknown


@dataclass(frozen=True, slots=True)
class CheckedFigure:
    """One figure with its thresholds and status."""

    measured: Measured  # The figure
    bounds: CheckBounds  # Its thresholds
    status: CheckStatus  # Its status


def check(measured: Iterable[Measured], bounds: dict[Figure, CheckBounds]) -> list[CheckedFigure]:
    """Return the figures that have thresholds, the worst first."""
    found = [
        CheckedFigure(one, bounds[one.figure], _status(one, bounds[one.figure]))
        for one in measured
        if one.figure in bounds
    ]
    return sorted(found, key=lambda one: _WORST_FIRST.index(one.status))


def worst(found: Iterable[CheckedFigure]) -> CheckStatus:
    """Return the worst status of the figures: critical before warning, then unknown, then ok."""
    there = {one.status for one in found}
    return next((status for status in _WORST_FIRST if status in there), "ok")


def measure(
    seen: StreamsSeen, group: str | None = None, letters: LettersSeen | None = None, stream: str | None = None
) -> list[Measured]:
    """Return all figures of these streams' groups and of dead-letter streams."""
    found: list[Measured] = []
    for each in seen.streams:
        for one in each.groups:
            if group in (None, one.name):
                found += _figures(one, seen.at_ms)
        if "groups" in each.missing:
            found += _unknown(each.key, group, each.missing["groups"])
    for key, why in seen.refused.items():  # it may be a dead-letter stream
        found += [*_unknown(key, group, why), Measured("dead", key, None, None, why=why)]
    return found if letters is None else found + _dead(seen, letters, stream)


def _unknown(stream: str, group: str | None, why: str) -> list[Measured]:
    """Return unknown figures for the groups of a stream that cannot be read."""
    figures: tuple[Figure, ...] = ("lag", "behind", "pending", "pending-age", "unowned")
    return [Measured(figure, stream, group, None, why=why) for figure in figures]


def _dead(seen: StreamsSeen, letters: LettersSeen, only: str | None) -> list[Measured]:
    """Return the number of dead letters by stream, also 0, so that a graph does not end after the last one."""
    if letters.why is not None:
        return [Measured("dead", "", None, None, why=letters.why)]
    found = {stream.key: 0 for stream in seen.streams if stream.key.endswith(SUFFIX)}
    found |= {one.key: one.letters for one in letters.streams}
    found = found or {"" if only is None else dead_key(only): 0}
    return [Measured("dead", key, None, count) for key, count in found.items()]


def overdue(found: "Iterable[StreamSchedules]", only: str | None) -> list[Measured]:
    """Return the delay of the first schedule of each stream; 0 if none waits, so that a graph does not end."""
    known = [Measured("overdue", one.stream, None, one.overdue_ms, why=one.why) for one in found]
    return known or [Measured("overdue", only or "", None, 0)]


def _figures(one: GroupStatus, now_ms: int) -> list[Measured]:
    lag, where = one.lag, (one.stream, one.name)
    return [
        Measured("lag", *where, lag.entries, lag.at_least, lag.at_most, lag.why),
        _age("behind", one, one.oldest_undelivered, now_ms),
        Measured("pending", *where, one.pending),
        _age("pending-age", one, one.oldest_pending, now_ms),
        Measured("unowned", *where, one.unowned, why="it was not told" if one.unowned is None else ""),
    ]


def _age(figure: Figure, one: GroupStatus, entry: OldestEntry, now_ms: int) -> Measured:
    return Measured(figure, one.stream, one.name, entry.age(now_ms), why=entry.why_no_age or "")


def undecided(seen: StreamsSeen, group: str | None, bounds: CheckBounds) -> list[GroupStatus]:
    """Return the groups with an unknown lag, if its bounds do not decide the status."""
    every = [one for stream in seen.streams for one in stream.groups if group in (None, one.name)]
    return [one for one in every if _status(_figures(one, seen.at_ms)[0], bounds) == "unknown"]


def _status(one: Measured, bounds: CheckBounds) -> CheckStatus:
    """Return the status of a figure by its value, or by its bounds if both give the same status."""
    if one.value is not None:
        return bounds.status(one.value)
    least = bounds.status(one.at_least)
    if least == "critical" or (one.at_most is not None and bounds.status(one.at_most) == least):
        return least
    return "unknown"
