"""Charts of figures over time: up to two lines, marks of events, and the values for the script that shows them.

A step without a reading breaks the line. A band lies between the lowest and the highest reading of a step, and marks
the bounds of an unknown lag. This module does no I/O.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup, escape

from millstream.ops.history.series import Mark
from millstream.ops.history.windows import StepValue, TimeRange
from millstream.ops.words import count, rate, size, span
from millstream.scales import Scale, short, ticks
from millstream.web.charts import below, clock, frame, grid, path, time_ticks

Unit: TypeAlias = Literal["count", "rate", "ms", "bytes"]

_WIDTH, _HEIGHT = 320.0, 132.0
_TOP, _BOTTOM, _RIGHT = 10.0, 22.0, 8.0
_FIGURE = 7.2
_APART = 5.0  # between two marks of a kind

_UNITS: dict[Unit, tuple[tuple[float, str], ...]] = {
    "ms": ((86_400_000, " d"), (3_600_000, " h"), (60_000, " min"), (1000, " s"), (1, " ms")),
    "bytes": ((1 << 30, " GB"), (1 << 20, " MB"), (1 << 10, " kB"), (1, " B")),
    "rate": ((1, "/s"),),
    "count": ((1, ""),),
}


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One figure over time."""

    name: str  # Title of the line
    steps: Sequence[StepValue | None]

    @property
    def last(self) -> StepValue | None:
        """The newest value; None if the range ends long after it."""
        known = [at for at, step in enumerate(self.steps) if step is not None]
        usual = known[-1] - known[-2] if len(known) > 1 else len(self.steps)  # some figures come every five minutes
        return self.steps[known[-1]] if known and len(self.steps) - 1 - known[-1] <= 3 * usual else None


def said(value: float | None, unit: Unit) -> str:
    """Return a value as text."""
    if unit == "ms":
        return "none" if value == 0 else span(value)
    if unit == "bytes":
        return size(None if value is None else round(value))
    return rate(value) if unit == "rate" else count(None if value is None else round(value))


def summary(lines: Sequence[PlotLine], unit: Unit) -> str:
    """Return the newest values as text; bounds for an unknown one."""
    found = []
    for line in lines:
        last = line.last
        if last is None:
            continue
        bounds = f"{said(last.least, unit)} to {said(last.most, unit)}"
        value = bounds if last.value is None else said(last.value, unit)
        found.append(f"{line.name} {value}" if len(lines) > 1 else value)
    return ", ".join(found)


def over_all(lines: Sequence[PlotLine], unit: Unit) -> str:
    """Return the mean of rates in the range, or the highest of other figures, as text."""
    found = []
    for line in lines:
        known = [step for step in line.steps if step is not None]
        if known and unit == "rate":
            found.append((line.name, said(sum(step.value or 0 for step in known) / len(known), unit)))
        elif known:
            found.append((line.name, said(max(step.most for step in known), unit)))
    texts = [f"{name} {text}" if len(lines) > 1 else text for name, text in found]
    return f"{'mean' if unit == 'rate' else 'highest'} {', '.join(texts)}" if texts else ""


def plot(title: str, unit: Unit, lines: Sequence[PlotLine], marks: Sequence[Mark], window: TimeRange) -> Markup:
    """Return the chart; it has axes even without a reading. The script shows the values of a range with a name."""
    every = [step for line in lines for step in line.steps if step is not None]
    high = max((step.most for step in every), default=0) or 1
    divisor, suffix = next(one for one in _UNITS[unit] if high >= 2 * one[0] or one is _UNITS[unit][-1])
    up = Scale(0, high / divisor * 1.08, _HEIGHT - _BOTTOM, _TOP)
    brief = short if unit in {"count", "rate"} else "{:,.12g}".format  # 1,000 ms, not 1k ms
    levels = [(value, f"{brief(value)}{suffix}") for value in ticks(0, up.high, 3)]
    left = 12 + _FIGURE * max(len(text) for _, text in levels)
    across = Scale(window.start_ms, window.end_ms, left, _WIDTH - _RIGHT)
    body = list(grid(across, up, levels))
    for at, text in time_ticks(window.start_ms, window.end_ms, 3):
        body.append(below(across(at), _HEIGHT - 5, text, _WIDTH))
    body += _marks(marks, across)
    for number, line in enumerate(lines):
        body += _line(line, number, divisor, across, up)
    label = f"{title}: {summary(lines, unit) or ('none now' if every else 'no readings')}"
    if every:
        top = max(every, key=lambda step: step.most)
        label += f"; the highest is {said(top.most, unit)}, at {clock(top.at_ms, '%Y-%m-%d %H:%M')} UTC"
    values = [[line.name, [_value(step) for step in line.steps]] for line in lines]
    facts = {"unit": unit, "left": round(left / _WIDTH, 4), "right": 1 - _RIGHT / _WIDTH, "lines": values}
    drawn = frame(_WIDTH, _HEIGHT, body, label, "plot")
    if not window.name:  # its steps have no even width, so the script cannot show them
        return drawn
    data = escape(json.dumps(facts, separators=(",", ":")))
    return Markup(drawn.replace("<svg ", Markup('<svg tabindex="0" data-plot="{}" ').format(data), 1))  # noqa: S704 - escaped above


def _value(step: StepValue | None) -> float | list[float] | None:
    """Return a value for the script: with the lowest and highest reading if they differ from it, or are all."""
    if step is None:
        return None
    if step.value is None:
        return [_brief(step.least), _brief(step.most)]
    return _brief(step.value)


def _brief(value: float) -> float:
    return int(value) if value == int(value) else float(f"{value:.4g}")


def _line(line: PlotLine, number: int, divisor: float, across: Scale, up: Scale) -> Iterator[str]:
    kind = "" if not number else " second"
    for run in _runs(line.steps):
        band = [(across(s.at_ms), up(s.most / divisor)) for s in run]
        band += [(across(s.at_ms), up(s.least / divisor)) for s in reversed(run)]
        if any(step.most > step.least for step in run) and len(run) > 1:
            unknown = any(step.value is None for step in run)
            yield f'<polygon points="{path(band)}" class="{"band" if unknown else "spread"}{kind}"/>'
        placed = [(across(s.at_ms), up((s.most if s.value is None else s.value) / divisor)) for s in run]
        if len(run) == 1:
            yield f'<circle cx="{placed[0][0]:.1f}" cy="{placed[0][1]:.1f}" r="2" class="end{kind}"/>'
        elif run[0].value is not None:
            if not number:
                area = [(placed[0][0], up(0)), *placed, (placed[-1][0], up(0))]
                yield f'<polygon points="{path(area)}" class="area"/>'
            yield f'<polyline points="{path(placed)}" class="line{kind}"/>'


def _runs(steps: Sequence[StepValue | None]) -> Iterator[list[StepValue]]:
    """Yield neighbours that are all known or all unknown; a single missing step breaks nothing."""
    run: list[StepValue] = []
    gap = 0
    for step in steps:
        if step is None:
            gap += 1
            continue
        if run and (gap > 1 or (run[-1].value is None) != (step.value is None)):
            yield run
            run = []
        gap = 0
        run.append(step)
    if run:
        yield run


def _marks(marks: Sequence[Mark], across: Scale) -> Iterator[str]:
    drawn: dict[str, float] = {}
    for mark in sorted(marks, key=lambda mark: mark.at_ms):
        x = across(mark.at_ms)
        if max(across.start, drawn.get(mark.kind, 0) + _APART) <= x <= across.end:  # closer ones look like one
            drawn[mark.kind] = x
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_HEIGHT - _BOTTOM}" class="mark {mark.kind}"/>'
            yield f'<circle cx="{x:.1f}" cy="{_TOP - 6}" r="3" class="mark {mark.kind}"/>'
