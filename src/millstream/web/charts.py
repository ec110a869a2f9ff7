"""Charts as SVG. They use CSS classes instead of colours, so the stylesheet's light and dark themes apply.

The first half (frame, text, grid, time axis) does not depend on the console: the demo's page and the benchmarks use it
too. No chart of the console has style attributes, since its content security policy forbids them. This module does no
I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape
from rich.cells import cell_len

from millstream.scales import Scale

#: Width of one character in axis labels, which are figures and units.
_FIGURE = 7.7
_BROAD = frozenset("MWmw@%&—…")

Point = tuple[float, float]
"""A time in milliseconds and a value, or two coordinates in the drawing."""

#: Seconds between the ticks of a time axis.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def frame(width: float, height: float, body: Iterable[str], label: str, kind: str) -> Markup:
    """Return an SVG drawing with a label for screen readers."""
    inside = "".join(body)
    return Markup(  # noqa: S704 - made of numbers and of escaped text, here and in the callers
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}">{inside}</svg>'
    )


def words(x: float, y: float, text: str, kind: str = "tick", anchor: str = "start", style: str = "") -> str:
    """Return a text at a position."""
    css = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{css}>{escape(text)}</text>'


def grid(across: Scale, up: Scale, marks: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Yield a horizontal line for each value, with its label. Draw it first, so that all else lies above."""
    for value, mark in marks:
        y = up(value)
        yield f'<line x1="{across.start}" x2="{across.end}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        yield words(across.start - 8, y + 4, mark, anchor="end")


def fitted(text: str, room: float) -> str:
    """Return a name shortened to the given width, in the bold font of the charts."""
    used, at = 0.0, 0
    for count, letter in enumerate(text, 1):
        used += 14.5 if letter in _BROAD or cell_len(letter) > 1 else 9.2
        if used <= room - 13:
            at = count
    return text if used <= room else text[:at] + "…"


def below(x: float, y: float, text: str, width: float) -> str:
    """Return a label below a position of an axis.

    Near an edge of the drawing it is moved so that none of it is cut off.
    """
    half = len(text) * _FIGURE / 2
    return words(min(max(x, half), width - half), y, text, anchor="middle")


def path(points: Sequence[Point]) -> str:
    """Return positions as the ``points`` of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def time_ticks(low_ms: float, high_ms: float, count: int = 6) -> list[tuple[float, str]]:
    """Return round times between two times, with their labels in UTC."""
    span = max((high_ms - low_ms) / 1000, 0.001)
    step = next((step for step in _STEPS if step * count >= span), _STEPS[-1])
    while span / step > 3 * count:  # for ranges of years
        step *= 2
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%-d %b"
    first = int(low_ms / 1000 // step + 1)
    return [(at * step * 1000.0, clock(at * step * 1000, form)) for at in range(first, int(high_ms / 1000 // step) + 1)]


def clock(at_ms: float, form: str = "%H:%M:%S") -> str:
    """Return a time in UTC. A time that no calendar has is shown as its number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms:.0f}"


_WIDTH = 1100.0
_SPARK_WIDTH, _SPARK_HEIGHT = 96.0, 22.0
_ROW, _TOP, _LEFT, _RIGHT = 26.0, 8.0, 190.0, 12.0
"""Sizes in the drawing of groups: a row's height, the first row's position, the margins."""


def sparkline(points: Sequence[Point], label: str, *, hot: bool = False) -> Markup:
    """Return a small line of the last values; empty for fewer than two."""
    if len(points) < 2:
        return Markup("")
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across = Scale(min(xs), max(xs), 1, _SPARK_WIDTH - 3)
    # The range includes zero, so that a steady value does not look like a rise
    up = Scale(min(0.0, *ys), max(ys) or 1, _SPARK_HEIGHT - 2, 3)
    placed = [(across(x), up(y)) for x, y in points]
    base = up(min(0.0, *ys))
    filled = [(placed[0][0], base), *placed, (placed[-1][0], base)]
    x, y = placed[-1]
    body = [
        f'<polygon points="{path(filled)}" class="area"/>',
        f'<polyline points="{path(placed)}" class="line"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" class="end"/>',
    ]
    return frame(_SPARK_WIDTH, _SPARK_HEIGHT, body, label, "spark hot" if hot else "spark")


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of one group in a stream."""

    name: str  # Name for people
    delivered_ms: int | None  # Time of the last delivered entry; None if no present entry was delivered
    # Time at which the oldest pending entry was added; None if there is none or it is unknown
    pending_ms: int | None
    words: str  # Text for screen readers with the same content
    hot: bool = False  # True if it needs attention


def ground(standings: Sequence[Standing], first_ms: int, last_ms: int, more: int = 0) -> Markup:
    """Return the groups of a stream on one time axis, from its oldest entry to its newest."""
    across = Scale(first_ms, max(last_ms, first_ms + 1), _LEFT, _WIDTH - _RIGHT)
    body: list[str] = []
    for index, one in enumerate(standings):
        body += _row(one, _TOP + index * _ROW, across)
    bottom = _TOP + len(standings) * _ROW
    if more:
        body.append(words(_LEFT - 12, bottom + _ROW / 2 + 4, f"and {more:,} more", "name", "end"))
        bottom += _ROW
    for at, text in time_ticks(across.low, across.high, 7):
        body.append(below(across(at), bottom + 16, text, _WIDTH))
    label = "Position of each group between the oldest and the newest entry: " + "; ".join(
        f"{one.name}: {one.words}" for one in standings
    )
    return frame(_WIDTH, bottom + 24, body, label, "ground")


def _row(one: Standing, y: float, across: Scale) -> list[str]:
    """Return one group: a track for the whole stream, filled up to the group's position."""
    middle, wide = y + _ROW / 2, across.end - across.start
    body = [
        words(_LEFT - 12, middle + 4, fitted(one.name, _LEFT - 12), "name", "end"),
        f'<rect x="{across.start:.1f}" y="{middle - 5:.1f}" width="{wide:.1f}" height="10" rx="2" class="track"/>',
    ]
    if one.delivered_ms is not None:
        done = max(_inside(across, one.delivered_ms) - across.start, 2.0)
        body.append(
            f'<rect x="{across.start:.1f}" y="{middle - 5:.1f}" width="{done:.1f}" height="10" rx="2" class="done"/>'
        )
    if one.pending_ms is not None:
        x = _inside(across, one.pending_ms)
        kind = "pending hot" if one.hot else "pending"
        body.append(
            f'<path d="M{x - 5:.1f} {middle - 11:.1f} h10 l-5 7 z" class="{kind}"><title>oldest pending</title></path>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{middle - 5:.1f}" y2="{middle + 5:.1f}" class="{kind}"/>'
        )
    return body


def _inside(across: Scale, at_ms: int) -> float:
    """Return the position of a time; a time outside the axis is moved to the nearer end."""
    return min(max(across(at_ms), across.start), across.end)
