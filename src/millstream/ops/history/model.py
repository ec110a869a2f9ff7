"""Series of figures as entries of three streams: their keys, names, columns and tables. PURE.

::

    millstream:{history}:10s     the chosen series, an entry every 10 seconds for 24 hours
    millstream:{history}:5m      the same series, an entry every 5 minutes for 30 days
    millstream:{history}:rest    all other series, an entry every 5 minutes for 24 hours
    millstream:{history}:writer  string: the process that writes, and the milliseconds until which others do not

An entry has the fields ``v`` (1) and ``text``, or ``zlib`` with the same text compressed. The text is a table: a line
for each subject, such as ``["group","orders","billing"] 12 300 4 1.5``. The JSON list has the subject's kind and names,
and :data:`COLUMNS` has the meaning of the numbers. ``-`` is unknown, ``3..9`` is unknown between two bounds.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

TEN, FIVE, REST = "millstream:{history}:10s", "millstream:{history}:5m", "millstream:{history}:rest"
LEASE = "millstream:{history}:writer"

TEN_MS, FIVE_MS = 10_000, 300_000
"""Milliseconds between two entries."""

KEPT_MS = {TEN: 86_400_000, FIVE: 30 * 86_400_000, REST: 86_400_000}
"""Milliseconds for which the entries of each stream are kept."""

BYTES = {TEN: 20_000_000, FIVE: 20_000_000, REST: 10_000_000}
"""Limit of each stream's memory on the server, 50 MB in all; the oldest entries go first."""

SERIES = 400
"""Limit of series that are written every 10 seconds."""

LARGEST = 8_000_000
"""Limit of one table in bytes."""

Subject: TypeAlias = tuple[str, ...]
"""The kind of a subject and its names, such as ``("group", "orders", "billing")``."""

Cell: TypeAlias = float | tuple[float, float] | None
"""A figure, the bounds of an unknown one, or None."""

Row: TypeAlias = tuple[Cell, ...]

TOTAL: Subject = ("total",)

COLUMNS: dict[str, tuple[str, ...]] = {
    "total": ("lag", "behind", "pending", "in", "out", "dead", "handled", "failed", "memory", "commands"),
    "handler": ("handled", "failed", "p95"),
    "group": ("lag", "behind", "pending", "out"),
    "stream": ("length", "in", "dead"),
    "version": ("workers",),
    "cut": ("oldest",),
}
"""Kind of a subject -> its columns: numbers of entries, rates per second, milliseconds and bytes."""

MEANS = frozenset({"in", "out", "handled", "failed", "commands"})
"""Columns whose figure of five minutes is the mean; of the others it is the highest one."""

_PLAIN = 1000  # largest size in bytes of a table that is not compressed
_DIGITS = 32  # largest number of characters of a figure
_HIGHEST = 1e18  # largest figure: any client may write higher ones, whose sums would be infinite
_LINE = 4000  # largest size of a line in bytes: any client may choose names of megabytes


def table(rows: Mapping[Subject, Row]) -> bytes:
    """Return the lines of some subjects; those that do not fit are left out, and those with very long names."""
    lines, size = [], 0
    for subject, row in rows.items():
        line = _name(subject) + b" " + " ".join(map(_text, row)).encode()
        if len(line) > _LINE:
            continue
        size += len(line) + 1
        if size > LARGEST:
            break
        lines.append(line)
    return b"\n".join(lines)


def packed(lines: bytes) -> tuple[str, bytes]:
    """Return the name and the value of a table's field."""
    return ("text", lines) if len(lines) <= _PLAIN else ("zlib", zlib.compress(lines))


def opened(flat: Sequence[bytes] | None) -> bytes | None:
    """Return the table of an entry; None if the fields are not those of a writer, whatever they are."""
    if flat is None or len(flat) % 2:
        return None
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if fields.get(b"v") != b"1":
        return None
    if (text := fields.get(b"text")) is not None:
        return b"\n" + text if len(text) <= LARGEST else None
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(fields.get(b"zlib", b""), LARGEST)
    except zlib.error:
        return None
    return b"\n" + found if reader.eof else None


def row_of(lines: bytes, subject: Subject) -> Row | None:
    """Return the figures of a subject in an opened table; None if it is missing or damaged."""
    start = b"\n" + _name(subject) + b" "
    at = lines.find(start)
    if at < 0:
        return None
    at += len(start)
    wide = len(COLUMNS[subject[0]])  # a later version may add columns
    cells = lines[at : at + _LINE].partition(b"\n")[0].split(b" ", wide)
    try:
        return tuple(map(_cell, cells[:wide])) if len(cells) >= wide else None
    except ValueError:
        return None


def named(lines: bytes, kind: str, most: int = 100) -> frozenset[Subject]:
    """Return the subjects of a kind among the first lines of this kind in an opened table."""
    found = set[Subject]()
    start, at = b'\n["' + kind.encode() + b'",', -1
    for _ in range(most):
        if (at := lines.find(start, at + 1)) < 0:
            break
        line = lines[at + 1 : at + _LINE].partition(b"\n")[0]
        try:
            name = json.loads(line[: line.find(b"] ") + 1])
        except (ValueError, RecursionError):
            continue
        if len(name) == (4 if kind == "handler" else 2) and all(isinstance(each, str) for each in name):
            found.add(tuple(name))
    return frozenset(found)


def merged(rows: Iterable[Row], columns: Sequence[str]) -> Row:
    """Return one row for the rows of five minutes, see :data:`MEANS`."""
    return tuple(_merged(cells, name) for name, cells in zip(columns, zip(*rows, strict=True), strict=True))


def _merged(cells: Sequence[Cell], column: str) -> Cell:
    known = [cell for cell in cells if isinstance(cell, int | float)]
    if not known:
        return cells[-1]
    return sum(known) / len(known) if column in MEANS else max(known)


def _name(subject: Subject) -> bytes:
    return json.dumps(subject, separators=(",", ":")).encode()


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, tuple):
        return "..".join(map(_text, cell))
    cell = min(cell, _HIGHEST)
    return str(int(cell)) if cell == int(cell) else f"{cell:.1f}" if cell >= 100 else f"{cell:.3g}"


def _cell(text: bytes) -> Cell:
    if text == b"-":
        return None
    least, dots, most = text.partition(b"..")
    if dots:
        return _number(least), _number(most)
    return _number(text)


def _number(text: bytes) -> float:
    if len(text) > _DIGITS:
        raise ValueError("too long")
    found = float(text)
    if not math.isfinite(found) or found < 0:
        raise ValueError("not a figure")
    return min(found, _HIGHEST)
