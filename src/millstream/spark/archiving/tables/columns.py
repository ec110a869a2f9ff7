"""The columns of a stream's table: their names and types, and the adding of new ones. PURE: no Arrow, no files.

A column never changes its type: not all formats could, and files would have to be rewritten. A field with values of a
new type gets a further column, named after the type: ``price``, then ``price_double``. Each value is in the first
column of its field that fits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError

MOST_COLUMNS = 500
"""Most columns of a table: a producer that invents field names must not add columns without end."""

OWN = ("id", "id_ms", "id_seq", "timestamp", "entry_json", "fields")
"""Columns of every table, which come from the entry and not from its fields."""

TAKEN = {*OWN, "stream", "date", "hour", "month", "day"}
"""Names that no field's column gets; the last five are names of folders and partitions."""
_WORDS = {
    "bigint": "bigint", "long": "bigint", "int": "bigint", "integer": "bigint", "double": "double", "float": "double",
    "boolean": "boolean", "bool": "boolean", "string": "string", "text": "string", "varchar": "string",
    "binary": "binary", "timestamp": "timestamp", "date": "date",
}  # fmt: skip
_DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s,`()]+))\s+([A-Za-z]+(?:\s*\([^)]*\))?)\s*(?:,|$)")


class ColumnType(str):
    """Type of a column.

    One of ``bigint``, ``double``, ``boolean``, ``string``, ``binary``, ``timestamp``, ``date`` and ``decimal(p,s)``.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> "ColumnType":
        """Return the type of this name; synonyms such as ``long`` are accepted."""
        word = text.strip().lower()
        if word in _WORDS:
            return super().__new__(cls, _WORDS[word])
        found = _DECIMAL.fullmatch(word)
        if found is None or not 0 <= int(found[2]) <= int(found[1]) <= 38 or not int(found[1]):
            known = ", ".join(sorted({*_WORDS.values()}))
            raise ValueError(f"{text!r} is not a type of a column: {known}, or decimal(18,2)")
        return super().__new__(cls, f"decimal({int(found[1])},{int(found[2])})")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column for values of one field and one type."""

    field: str  # Field of the values
    name: str  # Name of the column: the field's name if formats and tools allow it
    type: ColumnType  # Type of the values

    @property
    def json(self) -> list[str]:
        """The column as JSON, for manifest and files."""
        return [self.field, self.name, str(self.type)]


def load_columns(raw: Iterable[Sequence[Any]]) -> tuple[TableColumn, ...]:
    """Parse all columns of a table from their :attr:`TableColumn.json`."""
    found = tuple(TableColumn(field, name, ColumnType(kind)) for field, name, kind in raw)
    for column in found:
        (column.field + column.name).encode()  # files cannot contain lone surrogates
        if not column.name:
            raise ValueError("a column has no name")
    if len({column.name.lower() for column in found} | TAKEN) != len(found) + len(TAKEN):
        raise ValueError("two columns have one name")
    return found


def parse_schema(text: str) -> list[tuple[str, ColumnType]]:
    """Parse fields and their types from a text such as ``item string, price decimal(18,2)``."""
    found: dict[str, ColumnType] = {}
    at = 0
    while at < len(text):
        part = _COLUMN.match(text, at)
        if part is None:
            raise ConfigError(f"the schema is invalid at {text[at:].strip()!r}. Write name type, name type, ...")
        name = part[1] or part[2]
        if name in found:
            raise ConfigError(f"the schema is invalid: {name!r} is named twice. Remove one.")
        try:
            found[name] = ColumnType(part[3])
        except ValueError as reason:
            raise ConfigError(f"schema: column {name!r}: {reason}") from None
        at = part.end()
    if not found:
        raise ConfigError("the schema is empty. Write name type, name type, ...")
    return list(found.items())


def extended(known: Sequence[TableColumn], found: Mapping[str, ColumnType]) -> tuple[TableColumn, ...]:
    """Return these columns plus new ones for the found fields and types that have no column."""
    columns = list(known)
    taken = TAKEN | {column.name.lower() for column in columns}
    for field, kind in found.items():
        if len(columns) >= MOST_COLUMNS:
            break
        if any(column.field == field and column.type == kind for column in columns):
            continue
        name = _name(field)
        if any(column.field == field for column in columns):
            name = f"{name}_{kind.partition('(')[0]}"
        number, free = 2, name
        while free.lower() in taken:
            free, number = f"{name}_{number}", number + 1
        taken.add(free.lower())
        columns.append(TableColumn(field, free, kind))
    return tuple(columns)


def _name(field: str) -> str:
    """Return a column name that all formats and tools accept; letters of any language stay."""
    name = re.sub(r"\W", "_", field)[:128] or "_"
    return f"_{name}" if name[0].isdigit() else name


def joined(types: Iterable[ColumnType]) -> ColumnType:
    """Return a type that fits values of all of these types."""
    kinds = set(types)
    if len(kinds) == 1:
        return kinds.pop()
    if "binary" in kinds:
        return ColumnType("binary")
    return ColumnType("double" if kinds == {"bigint", "double"} else "string")


def agreed(known: Sequence[TableColumn], made: Iterable[Sequence[TableColumn]]) -> tuple[tuple[TableColumn, ...], bool]:
    """Return common columns for a batch whose files were written by independent tasks.

    Returns:
        The columns, and True if all files have them already. If not, the batch is written again with these columns.
    """
    every = [tuple(columns) for columns in made]
    longest = max(every, key=len, default=tuple(known))
    if len({(one.field) for one in longest[len(known) :]}) == len(longest) - len(known) and all(
        longest[: len(columns)] == columns for columns in every
    ):
        return longest, True
    found: dict[str, list[ColumnType]] = {}
    for columns in every:
        for column in columns[len(known) :]:
            found.setdefault(column.field, []).append(column.type)
    return extended(known, {field: joined(types) for field, types in found.items()}), False
