"""Figures against thresholds, for monitoring systems: ok, warning, critical, or unknown with the reason. Pure.

A figure that is not known exactly is decided by its bounds where they suffice. A lag of at least 500 is above 100 in
any case.
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

Figure = Literal["lag", "behind", "pending", "pending-age", "unowned", "dead", "overdue"]
"""The checked figure: entries not delivered and the age of the oldest, pending entries and the age of the oldest,
pending ones without a holder, dead letters, the delay of the first schedule.
"""

FIGURES: tuple[Figure, ...] = ("lag", "behind", "pending", "pending-age", "unowned", "dead", "overdue")

AGES: frozenset[Figure] = frozenset({"behind", "pending-age", "overdue"})
"""Figures in milliseconds; the others are counts."""


@dataclass(frozen=True, slots=True)
class CheckBounds:
    """Thresholds above which a figure is a warning, and critical."""

    warning: int | None = None  # This much or more; None for never
    critical: int | None = None  # This much or more; None for never

    def status(self, value: int) -> CheckStatus:
        """The status of a figure of this size."""
        if self.critical is not None and value >= self.critical:
            return "critical"
        return "warning" if self.warning is not None and value >= self.warning else "ok"


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of a group, or of a dead-letter stream."""

    figure: Figure  # The figure
    stream: str  # Key of the stream; empty for dead letters of all, where there are none or they are not known
    group: str | None  # Name of the group; None for a dead-letter stream, and for schedules
    value: int | None  # Its value; None when it is not known
    at_least: int = 0  # It is no less
    at_most: int | None = None  # It is no more; None when nothing is known of that
    why: str = ""  # The reason why it is not known


@dataclass(frozen=True, slots=True)
class CheckedFigure:
    """One figure and what it is."""

    measured: Measured  # The figure
    bounds: CheckBounds  # Its thresholds
    status: CheckStatus  # Its status


def check(measured: Iterable[Measured], bounds: dict[Figure, CheckBounds]) -> list[CheckedFigure]:
    """Every figure that has thresholds, the worst first."""
    found = [
        CheckedFigure(one, bounds[one.figure], _status(one, bounds[one.figure]))
        for one in measured
        if one.figure in bounds
    ]
    return sorted(found, key=lambda one: _WORST_FIRST.index(one.status))


def worst(found: Iterable[CheckedFigure]) -> CheckStatus:
    """The worst of them; one that is critical counts more than one that is not known, which counts more than none."""
    there = {one.status for one in found}
    return next((status for status in _WORST_FIRST if status in there), "ok")


def measure(
    seen: StreamsSeen, group: str | None = None, letters: LettersSeen | None = None, stream: str | None = None
) -> list[Measured]:
    """Every figure of these streams' groups, and of dead-letter streams."""
    found: list[Measured] = []
    for each in seen.streams:
        for one in each.groups:
            if group in (None, one.name):
                found += _figures(one, seen.at_ms)
        if "groups" in each.missing:
            found += _unknown(each.key, group, each.missing["groups"])
    for key, why in seen.refused.items():  # it may be one of dead letters
        found += [*_unknown(key, group, why), Measured("dead", key, None, None, why=why)]
    return found if letters is None else found + _dead(seen, letters, stream)


def _unknown(stream: str, group: str | None, why: str) -> list[Measured]:
    """Every figure of the groups of a stream that cannot be looked at, whichever of them are checked."""
    figures: tuple[Figure, ...] = ("lag", "behind", "pending", "pending-age", "unowned")
    return [Measured(figure, stream, group, None, why=why) for figure in figures]


def _dead(seen: StreamsSeen, letters: LettersSeen, only: str | None) -> list[Measured]:
    """Dead letters by stream; also where there are none, or a graph of them would end when the last one is put back."""
    if letters.why is not None:
        return [Measured("dead", "", None, None, why=letters.why)]
    found = {stream.key: 0 for stream in seen.streams if stream.key.endswith(SUFFIX)}
    found |= {one.key: one.letters for one in letters.streams}
    found = found or {"" if only is None else dead_key(only): 0}
    return [Measured("dead", key, None, count) for key, count in found.items()]


def overdue(found: "Iterable[StreamSchedules]", only: str | None) -> list[Measured]:
    """The delay of the first schedule of each stream; 0 where none waits, so that a graph of it does not end."""
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
    """Groups whose lag is neither known nor decided by what it can be."""
    every = [one for stream in seen.streams for one in stream.groups if group in (None, one.name)]
    return [one for one in every if _status(_figures(one, seen.at_ms)[0], bounds) == "unknown"]


def _status(one: Measured, bounds: CheckBounds) -> CheckStatus:
    """The status of a figure: exactly, or by both its bounds where they agree."""
    if one.value is not None:
        return bounds.status(one.value)
    least = bounds.status(one.at_least)
    if least == "critical" or (one.at_most is not None and bounds.status(one.at_most) == least):
        return least
    return "unknown"
