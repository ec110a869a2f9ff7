"""The few SVG drawings that the page needs: lines over time, bars, a heat map. Colours are the page's CSS variables.

Every drawing has a fixed view box and scales with its column, so that it stays sharp and fits a telephone.

By hand, and not by a plotting library: the page is one file that follows the reader's light or dark mode, which takes
colours that are CSS variables and text that stays text (decision 34 has the comparison). Functions here know places,
sizes and words, and nothing of flights: what is drawn is chosen in ``document``.
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
        name: shown at its end.
        color: a CSS colour.
        points: x and y, x rising.
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
    """A drawing as wide as all of them; the page scales it."""
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
    """Lines over time, or over what ``axes`` says.

    Args:
        series: the lines.
        label: what the drawing shows, in words.
        x_ticks: places and words of the horizontal axis; round numbers without.
        marks: vertical lines; their words stand above, in as many rows as keep them apart.
        unit: after the numbers of the vertical axis.
        axes: names of the horizontal and the vertical axis; empty where the page around it says what they are.
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
        near_end = x > WIDTH * 0.6  # its words would run out of the drawing, so they stand on the other side
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
    """A row for each mark's words so that no two overlap; and how many rows there are."""
    ends: list[list[tuple[float, float]]] = []
    chosen = []
    for mark in marks:
        # SVG cannot be asked how wide words are: 6.4 is about the width of a letter
        x, length = across(mark.x), 6.4 * len(mark.text) + 10
        span = (x - length, x) if x > WIDTH * 0.6 else (x, x + length)
        row = next((i for i, taken in enumerate(ends) if all(span[1] < a or span[0] > b for a, b in taken)), len(ends))
        if row == len(ends):
            ends.append([])
        ends[row].append(span)
        chosen.append(row)
    return chosen, len(ends)


def _names(series: Sequence[Series], across: Scale, up: Scale) -> Iterable[str]:
    """Each line's name at its end, moved apart where two would overlap."""
    last = -math.inf
    # From the top down (SVG counts downwards), each name at least a line below the one before
    for one in sorted(series, key=lambda one: up(one.points[-1][1])):
        y = max(up(one.points[-1][1]) + 4, last + 15)
        last = y
        yield words(across.end + 8, y, one.name, "name", "start", f"fill:{one.color}")


def area(points: Sequence[tuple[float, float]], label: str, color: str) -> str:
    """A filled curve.

    Args:
        points: x and y, x rising; at least one.
        label: what it shows, for screen readers.
        color: of line and area, as CSS has it.
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
    """A bar: its name, its value, and the words at its end."""

    name: str
    value: float
    words: str
    color: str = "var(--c1)"


def bars(rows: Sequence[Bar], label: str, *, left: float = 210) -> str:
    """Horizontal bars, one below the other.

    Args:
        rows: from the top. A value below zero (airlines that leave early) gets the shortest bar there is, and its
            words say what it is.
        label: what it shows, for screen readers.
        left: where bars begin, in the drawing's units; the names stand before it.
    """
    across = Scale(0, max((row.value for row in rows), default=1) or 1, left, WIDTH - 250)
    body = []
    for index, row in enumerate(rows):
        y = index * STEP
        width = max(across(max(row.value, 0)) - left, 1)  # a bar of no length would look like one left out
        body.append(words(left - 10, y + STEP * 0.62, row.name, "label", "end"))
        body.append(
            f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="{STEP - 9}" rx="3" style="fill:{row.color}"/>'
        )
        body.append(words(left + width + 8, y + STEP * 0.62, row.words, "value"))
    return drawing(len(rows) * STEP + 4, body, label)


def heat(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[float | None]], label: str, unit: str
) -> str:
    """A table of colours, from none to the strongest.

    Args:
        rows: names of the rows.
        columns: names of the columns.
        cells: a value for each row and column; None where there is none.
        label: what the drawing shows.
        unit: what a value means, after the number, for the pointer.
    """
    left, top, high = 52.0, 22.0, 30.0
    wide = (WIDTH - left - 4) / len(columns)
    known = [value for row in cells for value in row if value is not None]
    low, most = (min(known), max(known)) if known else (0.0, 1.0)
    body = [words(left + wide * (i + 0.5), 14, name, "tick", "middle") for i, name in enumerate(columns)]
    for y, (name, row) in enumerate(zip(rows, cells, strict=True)):
        body.append(words(left - 10, top + high * y + 19, name, "tick", "end"))
        for x, value in enumerate(row):
            # From the least to the most, not from zero: means lie close together, and would all look alike
            share = 0.0 if value is None else (value - low) / ((most - low) or 1)
            style = "fill:var(--grid)" if value is None else f"fill:var(--heat);fill-opacity:{0.06 + 0.94 * share:.3f}"
            meaning = "no flights" if value is None else f"{value:.1f} {unit}"
            body.append(
                f'<rect x="{left + wide * x + 1:.1f}" y="{top + high * y + 1:.1f}" width="{wide - 2:.1f}" '
                f'height="{high - 2:.1f}" rx="3" style="{style}">'
                f"<title>{escape(f'{name} {columns[x]}: {meaning}')}</title></rect>"
            )
    return drawing(top + high * len(rows) + 4, body, label)
