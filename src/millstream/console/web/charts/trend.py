"""A value over the time it was watched, with its axes; where it was unknown, the bounds it lies between. Pure."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from millstream.console.watching.history import TrendPoint
from millstream.console.web.charts.paper import FIGURE, Point, below, frame, path, time_ticks, words
from millstream.scales import Scale, short, ticks

WIDTH, HEIGHT = 1100.0, 190.0
_LEFT, _GAP, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 12.0, 12.0, 24.0


def trend(moments: Sequence[TrendPoint], label: str, *, spans: bool = False) -> Markup:
    """The drawing; nothing where there are less than two readings.

    Args:
        moments: readings, times rising.
        label: what it shows, in words.
        spans: the values are milliseconds.
    """
    if len(moments) < 2:
        return Markup("")
    high = max(max(moment.most, moment.value or 0) for moment in moments)
    up = Scale(0, max(high, 1) * 1.05, HEIGHT - _BOTTOM, _TOP)
    marks = [(value, _mark(value, spans=spans)) for value in ticks(up.low, up.high, 4) if value == int(value)]
    left = max(_LEFT, _GAP + FIGURE * max(len(text) for _, text in marks))
    across = Scale(moments[0].at_ms, moments[-1].at_ms, left, WIDTH - _RIGHT)
    body = list(_axes(across, up, marks))
    for run in _runs(moments):
        if run[0].value is None:
            edge = [(across(m.at_ms), up(m.most)) for m in run]
            edge += [(across(m.at_ms), up(m.least)) for m in reversed(run)]
            body.append(f'<polygon points="{path(edge)}" class="band"/>')
            continue
        placed: list[Point] = [(across(m.at_ms), up(m.value or 0)) for m in run]
        filled = [(placed[0][0], up(0)), *placed, (placed[-1][0], up(0))]
        body.append(f'<polygon points="{path(filled)}" class="area"/>')
        body.append(f'<polyline points="{path(placed)}" class="line"/>')
    return frame(WIDTH, HEIGHT, body, label, "trend")


def _mark(value: float, *, spans: bool) -> str:
    """A value of the upward axis; from a second on, a length of time is in seconds."""
    if not spans:
        return short(value)
    return f"{value / 1000:,.12g} s" if value >= 1000 else f"{value:g} ms"


def _axes(across: Scale, up: Scale, marks: Sequence[tuple[float, str]]) -> Iterable[str]:
    """Lines across at round numbers and the words of both axes; drawn first, so that all else lies above."""
    for value, mark in marks:
        y = up(value)
        yield f'<line x1="{across.start}" x2="{across.end}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        yield words(across.start - _GAP, y + 4, mark, anchor="end")
    for at, text in time_ticks(across.low, across.high):
        yield below(across(at), up.start + 18, text, WIDTH)


def _runs(moments: Sequence[TrendPoint]) -> Iterable[list[TrendPoint]]:
    """Neighbours that are all known or all unknown; a run of unknowns begins at the last known one."""
    run: list[TrendPoint] = []
    for moment in moments:
        if run and (run[-1].value is None) != (moment.value is None):
            yield run
            run = []
        run.append(moment)
    if run:
        yield run
