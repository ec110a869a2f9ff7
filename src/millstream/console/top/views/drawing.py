"""From a view to lines of a given width: which columns fit, how wide each is, what a filter leaves. Pure.

Whatever stands in a cell, it is one line, moves no cursor and is no markup: the characters are drawn as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len, set_cell_size

from millstream.console.changes.writing import shell_line
from millstream.console.top.views.view import TopPlace, TopView, ViewColumn, ViewRow, ViewSection
from millstream.scales import GAP, Need, fit
from millstream.texts import in_one_line

Kind = Literal["title", "head", "row", "empty", "blank"]

_MARGIN = 2
"""Cells before a row, in which its mark stands."""

_NARROW = 14  # cells that a name has at least
COMMAND_GOES_ON = "    "
"""Before what goes on of a command line that is longer than a line."""

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """One line, or those of one row.

    Attributes:
        kind: what it is.
        text: with ends of lines in it where a row has more than one.
        row: that it shows; None where it shows none.
    """

    kind: Kind
    text: str
    row: ViewRow | None = None


def drawn(view: TopView, width: int, wanted: str = "", height: int | None = None) -> list[DrawnLine]:
    """The sections of a view.

    Args:
        view: what is shown.
        width: cells of the terminal.
        wanted: only rows with this in them, in any case.
        height: lines of the terminal; None for no end.
    """
    lines: list[DrawnLine] = []
    for section in view.sections:
        rows = [row for row in section.rows if fits(row, wanted)]
        if not rows and not section.empty and not wanted:
            continue
        lines += [DrawnLine("blank", "")] if lines else []
        drawn_lines = list(_section(section, rows, width))
        if section.whole is not None and height is not None and not wanted:
            drawn_lines = _quarter(section, section.whole, drawn_lines, width, height // 4)
        lines += drawn_lines
    return lines


def _quarter(section: ViewSection, whole: TopPlace, lines: list[DrawnLine], width: int, most: int) -> list[DrawnLine]:
    """A section in so many lines: without what stands below its rows, and then without the last rows.

    Args:
        section: it is of.
        whole: where all of it is.
        lines: all of it.
        width: cells of the terminal.
        most: lines.
    """
    if _height(lines) <= most:
        return lines
    head = [line for line in lines if line.row is None]
    rows = [replace(line, text=line.text.partition("\n")[0]) for line in lines if line.row is not None]
    kept = max(most - len(head) - 1, 1)
    left = f"{len(rows) - kept:,} more, and " if len(rows) > kept else ""
    said = f"  … {left}what helps: Enter here, or `:{whole.view}`"
    row = ViewRow(f"{section.title} whole", (said,), whole)
    return [*head, *rows[:kept], DrawnLine("row", cut(said, width), row)]


def _height(lines: Sequence[DrawnLine]) -> int:
    return sum(line.text.count("\n") + 1 for line in lines)


def fits(row: ViewRow, wanted: str) -> bool:
    """Whether a row has a text in it, in any case."""
    return not wanted or wanted.casefold() in "\n".join((*row.cells, *row.under)).casefold()


def figures(view: TopView, width: int) -> list[str]:
    """The figures and notes of a view, as many to a line as fit."""
    lines: list[str] = []
    for name, value in view.figures:
        text = in_one_line(f"{name} {value}")
        if lines and cell_len(lines[-1]) + 3 + cell_len(text) <= width:
            lines[-1] += f"   {text}"
        else:
            lines.append(cut(text, width))
    return lines + [line for note in view.notes for line in folded(note, width)]


def shell(view: TopView, width: int) -> str:
    """The command line that shows the same."""
    return cut(f"$ {shell_line(view.command_lines[0])}", width) if view.command_lines else ""


def sparkline(values: Sequence[float], count: int = 8) -> str:
    """The last values as bars, zero at the bottom; nothing where there are less than two, or all are zero."""
    values = values[-count:]
    high = max(values, default=0)
    if len(values) < 2 or high <= 0:
        return ""
    return "".join(_BARS[min(int(max(value, 0) / high * len(_BARS)), len(_BARS) - 1)] for value in values)


def cut(text: str, width: int) -> str:
    """A text in so many cells; where it is longer, its end is left out and said to be."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def cells(text: str) -> int:
    """How wide a text is on a terminal."""
    return cell_len(text)


def folded(text: str, width: int) -> Iterator[str]:
    """A text of any length in lines of so many cells, broken between words where it can be; its indent stays."""
    text = in_one_line(text)
    indent = text[: min(len(text) - len(text.lstrip(" ")), width // 2)]
    line = ""
    for word in text.lstrip(" ").split(" "):
        joined = f"{line} {word}" if line else indent + word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        line = indent + word
        while cell_len(line) > width:
            head = set_cell_size(line, width).rstrip()
            yield head
            line = line[len(head) :]
    yield line


def _section(section: ViewSection, rows: Sequence[ViewRow], width: int) -> Iterator[DrawnLine]:
    count = f" ({len(rows)} of {len(section.rows)})" if len(rows) != len(section.rows) else ""
    yield DrawnLine("title", cut(in_one_line(section.title.upper()) + count, width))
    if not rows:
        said = "Nothing fits the filter." if section.rows else section.empty
        yield DrawnLine("empty", "  " + cut(said, width - _MARGIN))
        return
    columns = section.columns
    cells = [[in_one_line(cell) for cell in row.cells] for row in rows]
    widths = fit(list(_needs(columns, cells)), width - _MARGIN)
    if any(column.heading for column in columns):
        yield DrawnLine("head", "  " + _line([column.heading.upper() for column in columns], columns, widths))
    for row, texts in zip(rows, cells, strict=True):
        mark = row.mark or " "
        if len(columns) == 1:  # a text, which is shown whole
            line, *more = folded(texts[0], width - _MARGIN)
            first = [f"{mark} {line}", *(f"  {each}" for each in more)]
        else:
            first = [cut(f"{mark} {_line(texts, columns, widths)}".rstrip(), width)]
        under = [f"    {line}" for text in row.under for line in _under(text, width - 4)]
        yield DrawnLine("row", "\n".join([*first, *under]), row)


def _under(text: str, width: int) -> list[str]:
    """A line below a row; what goes on of a command line stands further in, so that it is seen to."""
    first, *rest = folded(text, width)
    if not text.startswith("$ "):
        return [first, *rest]
    further = folded(" ".join(rest), width - len(COMMAND_GOES_ON)) if rest else ()
    return [first, *(f"{COMMAND_GOES_ON}{line}" for line in further)]


def _needs(columns: Sequence[ViewColumn], rows: Iterable[Sequence[str]]) -> Iterator[Need]:
    for column, texts in zip(columns, zip(*rows, strict=True), strict=True):
        heading = cell_len(column.heading)
        yield Need(max(heading, *map(cell_len, texts)), heading, column.rank, column.prose, _NARROW)


def _line(texts: Sequence[str], columns: Sequence[ViewColumn], widths: dict[int, int]) -> str:
    return (" " * GAP).join(_padded(cut(texts[at], width), width, columns[at].right) for at, width in widths.items())


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
