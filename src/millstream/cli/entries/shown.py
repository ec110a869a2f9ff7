"""Entries on standard output: readable lines, JSON, JSON lines, CSV, or the raw bytes of fields.

Entries arrive as they are read or added. So every format is written entry by entry, and the output is flushed before
the next wait.
"""

import os
import select
import sys
from collections.abc import Iterable, Sequence

from millstream.cli.shared.output import FORMATS, Column, Output, Table
from millstream.ops.payloads.choice import EntryChoice, row_of, values_of
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.words import EntryView
from millstream.printable import printable
from millstream.texts import in_one_line, json_text, size_text, time_text

ENTRY_FORMATS = (*FORMATS, "raw")

_CUT = 200
"""Largest number of characters of a value on a terminal."""

FIELDS = (Column("name"), Column("form", rank=1), Column("size", "bytes", rank=2), Column("value", "prose"))
_IDENTITY = (Column("stream"), Column("id"), Column("time_ms", "time"))


class EntryOutput:
    """The output of entries."""

    def __init__(
        self, form: str, choice: EntryChoice, names: Sequence[str], *, streams: Sequence[str] = (), whole: bool = False
    ) -> None:
        self._form = form
        self._choice = choice
        self._names = tuple(names)
        self._streams = streams  # Named streams; an entry of another stream (a partition) shows its key
        self._cut = None if whole or not sys.stdout.isatty() else _CUT

    def show(self, entries: Iterable[EntryView]) -> None:
        """Write the entries as they arrive."""
        if self._form == "table":
            for entry in entries:
                sys.stdout.write(self.line(entry) + "\n")
        elif self._form == "raw":
            for entry in entries:
                sys.stdout.buffer.write(self._raw(entry))
        elif self._form == "csv":
            columns = (*_IDENTITY, *(Column(name) for name in self._names or ("fields",)))
            Output("csv").table(Table("entries", columns, map(self._cells, entries)))
        else:
            columns = (*_IDENTITY, Column("fields"), Column("repeated"))
            Output(self._form).table(Table("entries", columns, map(self._row, entries)))

    def line(self, entry: EntryView) -> str:
        """Return an entry as one readable line."""
        payload = self._choice.payload(entry)
        parts = [time_text(_time(entry)), entry.id]
        if len(self._streams) > 1 or (self._streams and entry.stream not in self._streams):
            parts.insert(1, in_one_line(entry.stream))
        for name, value in values_of(payload, self._names):
            parts.append(f"{in_one_line(name)}={value_text(value, self._cut)}")
        return "  ".join(parts)

    def _row(self, entry: EntryView) -> tuple[object, ...]:
        return row_of(entry, self._choice.payload(entry), self._names)

    def _cells(self, entry: EntryView) -> tuple[object, ...]:
        stream, ident, time, fields, _ = self._row(entry)
        if not self._names:
            return stream, ident, time, fields
        assert isinstance(fields, dict)
        return stream, ident, time, *(fields.get(name) for name in self._names)

    def _raw(self, entry: EntryView) -> bytes:
        """Return the bytes of fields, separated by tabs. On a terminal, unprintable characters are escaped."""
        stored = dict(entry.fields)
        if not self._names:
            parts = [value for _, value in entry.fields]
        else:
            payload = self._choice.payload(entry)
            parts = []
            for name in self._names:
                exact = stored.get(name.encode(errors="surrogateescape"))
                parts.append(_raw_text(payload.at(name)) if exact is None else exact)
        line = b"\t".join(parts) + b"\n"
        return printable(line.decode(errors="surrogateescape")).encode() if sys.stdout.isatty() else line


def _time(entry: EntryView) -> int:
    return int(entry.id.partition("-")[0])


def value_text(value: object, cut: int | None = None) -> str:
    """Return a decoded value as one line. A long value is cut, and its size added."""
    if isinstance(value, bytes):
        shown, size = "0x" + (value if cut is None else value[:cut]).hex(), len(value)
    elif isinstance(value, str):
        shown, size = in_one_line(value if cut is None else value[: cut + 1]), len(value)
    else:
        text = json_text(value)
        shown, size = text, len(text)
    if cut is None or len(shown) <= cut:
        return shown
    return f"{shown[:cut]}... ({size_text(size)})"


def fields_table(payload: EntryPayload, form: str, cut: int | None = None) -> Table:
    """Return a row for each field of an entry. For people, its value has at most ``cut`` characters."""
    rows: list[tuple[object, ...]] = [(name, one.form, one.size, one.value) for name, one in payload.fields]
    if form == "table":
        rows = [
            (name, f"{one.form} ({one.note})" if one.note else one.form, one.size, value_text(one.value, cut))
            for name, one in payload.fields
        ]
    return Table("fields", FIELDS, rows)


def _raw_text(found: list[object]) -> bytes:
    """Return the value at a path into a field as bytes; empty if there is none."""
    if not found:
        return b""
    value = found[0] if len(found) == 1 else found
    if isinstance(value, bytes):
        return value
    return value.encode(errors="surrogateescape") if isinstance(value, str) else json_text(value).encode()


def flushed(reading: bool = False) -> None:
    """Flush standard output. With ``reading``, raise an error if its reader has ended."""
    sys.stdout.flush()
    if not reading:
        return
    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):  # the output is not an operating-system file, as in tests
        return
    poll = select.poll()
    poll.register(out, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError(os.strerror(32))
