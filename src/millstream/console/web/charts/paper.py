"""What every drawing of the console is made of: the frame, words, and points as SVG has them. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape
from rich.cells import cell_len

FIGURE = 7.5
"""The room of one letter in the words of an axis, which are figures and units."""

_BROAD = frozenset("MWmw@%&—…")

Point = tuple[float, float]
"""A time in milliseconds and a value; or two places on the paper."""

#: Seconds between the ticks of a time axis.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


def frame(width: float, height: float, body: Iterable[str], label: str, kind: str) -> Markup:
    """A drawing with a text for those who cannot see it.

    Args:
        width: in the drawing's units; the stylesheet scales it.
        height: the same.
        body: its elements; a later one covers an earlier one.
        label: what it shows; it is escaped.
        kind: its class in the stylesheet.
    """
    inside = "".join(body)
    return Markup(  # noqa: S704 - made of numbers and of escaped words, here and in the modules beside
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}">{inside}</svg>'
    )


def words(x: float, y: float, text: str, kind: str = "tick", anchor: str = "start") -> str:
    """Words at a place.

    Args:
        x: where the anchor is, from the left.
        y: the baseline, from the top.
        text: it is escaped.
        kind: its class in the stylesheet.
        anchor: which part of the words is at ``x``: ``start``, ``middle`` or ``end``.
    """
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def fitted(text: str, room: float) -> str:
    """A name as far as it has room on the paper, in the bold letters of the drawings.

    Args:
        text: in one line.
        room: in the drawing's units.
    """
    used, at = 0.0, 0
    for count, letter in enumerate(text, 1):
        used += 14.5 if letter in _BROAD or cell_len(letter) > 1 else 9.2
        if used <= room - 13:
            at = count
    return text if used <= room else text[:at] + "…"


def below(x: float, y: float, text: str, width: float) -> str:
    """Words below a place of an axis; near an edge of the paper they are moved so that none of them is cut off.

    Args:
        x: of the place.
        y: the baseline.
        text: it is escaped.
        width: of the paper.
    """
    half = len(text) * FIGURE / 2
    return words(min(max(x, half), width - half), y, text, anchor="middle")


def path(points: Sequence[Point]) -> str:
    """Places as the ``points`` of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def time_ticks(low_ms: float, high_ms: float, count: int = 6) -> list[tuple[float, str]]:
    """Round moments between two, with the words for each, in UTC.

    Args:
        low_ms: wall milliseconds.
        high_ms: the same, not before.
        count: about how many.
    """
    span = max((high_ms - low_ms) / 1000, 0.001)
    step = next((step for step in _STEPS if step * count >= span), _STEPS[-1])
    while span / step > 3 * count:  # years and more
        step *= 2
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43200 else "%-d %b"
    first = int(low_ms / 1000 // step + 1)
    return [(at * step * 1000.0, clock(at * step * 1000, form)) for at in range(first, int(high_ms / 1000 // step) + 1)]


def clock(at_ms: float, form: str = "%H:%M:%S") -> str:
    """A moment in UTC; one that no calendar has is shown as its number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms:.0f}"
