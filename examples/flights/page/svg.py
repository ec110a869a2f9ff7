"""The SVG drawings of the page: lines over time, bars, a heat map. Their colours are CSS variables of the page.

Every drawing has a fixed view box and scales with its column, so it stays sharp and fits a telephone.

The drawings are made without a plotting library, since the page follows the reader's light or dark mode. That takes
colours that are CSS variables, and text that stays text (decision 34 has the comparison). The functions here handle
positions, sizes and labels, and not flights; ``document`` chooses the data.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from millstream.scales import Scale, short, ticks
from millstream.web.charts import frame, grid, path, words

WIDTH, LINES, AREA, STEP = 920, 300, 90, 26
"""Width of every drawing; heights of lines, an area and one bar, in the drawing's own units."""


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        name: label at its end.
        color: a CSS colour.
        points: x and y; x grows.
    """

    name: str
    color: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """A vertical line with a text, at ``x``."""

    x: float
    text: str
    color: str


def drawing(height: float, body: Iterable[str], label: str) -> str:
    """Return a drawing of the common width; the page scales it."""
    return str(frame(WIDTH, height, body, label, "drawing"))


def line_chart(
    series: Sequence[Series],
    label: str,
    *,
    x_ticks: Sequence[tuple[float, str]] = (),
    marks: Sequence[Mark] = (),
    unit: str = "",
    axes: tuple[str, str] = ("", ""),
) -> str:
    """Draw lines over time, or over another axis.

    Args:
        series: the lines.
        label: description of the drawing, in words.
        x_ticks: positions and labels of the horizontal axis; None for round numbers.
        marks: vertical lines; their labels are above, in enough rows to keep them apart.
        unit: unit after the numbers of the vertical axis.
        axes: names of the horizontal and the vertical axis; empty if the page names them.
    """
    every = [point for one in series for point in one.points]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    low, high = min(0.0, *ys), max(ys)  # zero is always shown, so that heights can be compared
    rows, depth = _rows(marks, Scale(min(xs), max(xs), 52, WIDTH - 96))
    top = 14 + 16 * depth + (8 if axes[1] else 0)
    across = Scale(min(xs), max(xs), 52, WIDTH - 96)
    up = Scale(low, high or 1, LINES - 28, top)
    body = list(grid(across, up, ((value, short(value) + unit) for value in ticks(low, high or 1))))
    for value, text in x_ticks or [(x, short(x)) for x in ticks(min(xs), max(xs), 8)]:
        body.append(words(across(value), up.start + 20, text, "tick", "middle"))
    for mark, row in zip(marks, rows, strict=True):
        x, y = across(mark.x), 10 + 16 * row
        near_end = x > WIDTH * 0.6  # its label would leave the drawing, so it is on the other side
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{up.start}" class="mark" style="stroke:{mark.color}"/>'
        )
        anchor, beside = ("end", -5) if near_end else ("start", 5)
        body.append(words(x + beside, y, mark.text, "note", anchor, f"fill:{mark.color}"))
    for one in series:
        placed = path([(across(x), up(y)) for x, y in one.points])
        body.append(f'<polyline points="{placed}" class="line" style="stroke:{one.color}"/>')
    body += _names(series, across, up)
    below, above = axes
    body += [words((across.start + across.end) / 2, LINES + 10, below, "axis", "middle")] if below else []
    body += [words(across.start, top - 8, above, "axis")] if above else []
    return drawing(LINES + 16 if below else LINES, body, label)


def _rows(marks: Sequence[Mark], across: Scale) -> tuple[list[int], int]:
    """Return a row for each mark's label so that no two overlap, and the number of rows."""
    ends: list[list[tuple[float, float]]] = []
    chosen = []
    for mark in marks:
        # SVG does not give the width of a text: 6.4 is about the width of a letter
        x, length = across(mark.x), 6.4 * len(mark.text) + 10
        span = (x - length, x) if x > WIDTH * 0.6 else (x, x + length)
        row = next((i for i, taken in enumerate(ends) if all(span[1] < a or span[0] > b for a, b in taken)), len(ends))
        if row == len(ends):
            ends.append([])
        ends[row].append(span)
        chosen.append(row)
    return chosen, len(ends)


def _names(series: Sequence[Series], across: Scale, up: Scale) -> Iterable[str]:
    """Place each line's name at its end, moved apart if two would overlap."""
    last = -math.inf
    # From the top down (SVG counts downwards), each name at least a line below the one before
    for one in sorted(series, key=lambda one: up(one.points[-1][1])):
        y = max(up(one.points[-1][1]) + 4, last + 15)
        last = y
        yield words(across.end + 8, y, one.name, "name", "start", f"fill:{one.color}")


def area(points: Sequence[tuple[float, float]], label: str, color: str) -> str:
    """Draw a filled curve.

    Args:
        points: x and y, at least one pair; x grows.
        label: description for screen readers.
        color: a CSS colour for line and area.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = Scale(min(xs), max(xs), 52, WIDTH - 96), Scale(0, max(*ys, 1), AREA - 22, 8)
    base = up(0)
    outline = [(across(xs[0]), base), *((across(x), up(y)) for x, y in points), (across(xs[-1]), base)]
    body = [
        f'<polygon points="{path(outline)}" class="area" style="fill:{color}"/>',
        f'<line x1="{across.start}" x2="{across.end}" y1="{base:.1f}" y2="{base:.1f}" class="grid"/>',
        words(across.start - 8, up(up.high) + 8, short(round(up.high)), "tick", "end"),
        words(across.start - 8, base + 4, "0", "tick", "end"),
        words(across.end + 8, base - 4, "pending", "name", "start", f"fill:{color}"),
    ]
    return drawing(AREA, body, label)


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its value, and the label at its end."""

    name: str
    value: float
    words: str
    color: str = "var(--c1)"


def bars(rows: Sequence[Bar], label: str, *, left: float = 210) -> str:
    """Draw horizontal bars, one below the other.

    Args:
        rows: the bars from the top. A value below zero (airlines that leave early) gets the shortest bar, and its label
            has the value.
        label: description for screen readers.
        left: start of the bars in the drawing's units; the names are to the left of it.
    """
    across = Scale(0, max((row.value for row in rows), default=1) or 1, left, WIDTH - 250)
    body = []
    for index, row in enumerate(rows):
        y = index * STEP
        width = max(across(max(row.value, 0)) - left, 1)  # a bar without length would look like a missing one
        body.append(words(left - 10, y + STEP * 0.62, row.name, "label", "end"))
        body.append(
            f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="{STEP - 9}" rx="3" style="fill:{row.color}"/>'
        )
        body.append(words(left + width + 8, y + STEP * 0.62, row.words, "value"))
    return drawing(len(rows) * STEP + 4, body, label)


def heat(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[float | None]], label: str, unit: str
) -> str:
    """Draw a table of colours, from the lowest value to the highest.

    Args:
        rows: names of the rows.
        columns: names of the columns.
        cells: a value for each row and column, or None.
        label: description of the drawing.
        unit: unit after a number, for the pointer.
    """
    left, top, high = 52.0, 22.0, 30.0
    wide = (WIDTH - left - 4) / len(columns)
    known = [value for row in cells for value in row if value is not None]
    low, most = (min(known), max(known)) if known else (0.0, 1.0)
    body = [words(left + wide * (i + 0.5), 14, name, "tick", "middle") for i, name in enumerate(columns)]
    for y, (name, row) in enumerate(zip(rows, cells, strict=True)):
        body.append(words(left - 10, top + high * y + 19, name, "tick", "end"))
        for x, value in enumerate(row):
            # From the lowest to the highest, not from zero: the means are close together, and would all look alike
            share = 0.0 if value is None else (value - low) / ((most - low) or 1)
            style = "fill:var(--grid)" if value is None else f"fill:var(--heat);fill-opacity:{0.06 + 0.94 * share:.3f}"
            meaning = "no flights" if value is None else f"{value:.1f} {unit}"
            body.append(
                f'<rect x="{left + wide * x + 1:.1f}" y="{top + high * y + 1:.1f}" width="{wide - 2:.1f}" '
                f'height="{high - 2:.1f}" rx="3" style="{style}">'
                f"<title>{escape(f'{name} {columns[x]}: {meaning}')}</title></rect>"
            )
    return drawing(top + high * len(rows) + 4, body, label)
