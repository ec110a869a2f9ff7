"""Entries as rows of a table with a column for each field, and such rows as entries again, without loss.

A row holds typed values, for tools. From these values the entry may not be restored to the byte: its order of fields, a
repeated name, or ``12.50`` instead of ``12.5``. So each row is checked when it is written. If its values do not restore
the entry exactly, the row also holds the entry itself, as JSON in ``entry_json``. So an archive is lossless with any
columns.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.jsontext import fault, parse
from millstream.errors import StorageError
from millstream.spark.archiving.tables.columns import MOST_COLUMNS, ColumnType, TableColumn, extended, load_columns
from millstream.spark.archiving.tables.shape import Shape
from millstream.spark.arrow import arrays
from millstream.spark.arrow.columns import timestamps
from millstream.spark.arrow.format_values import texts
from millstream.spark.arrow.page import listed_array
from millstream.spark.arrow.parse_values import convert, nothing
from millstream.texts import is_utf8

MARK = b"millstream.columns"
"""Key of a file's metadata that holds its columns."""

LARGEST = 2**63 - 1
"""Largest half of an id in a file: ids have unsigned 64-bit halves, for which Delta and Iceberg have no type."""

_LAST_MS = 253_402_300_799_999
_FIXED: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
_INFERRED = (
    # Only values whose text can be restored: 007 or a number of twenty digits is a name, not an amount
    ("bigint", r"^(?:0|-?[1-9][0-9]{0,18})$"),
    ("double", r"^-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,16})?(?:[eE][+-]?[0-9]{1,3})?$"),
    ("boolean", r"^(?:true|false)$"),
)
_YEARS = {"timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999), "date": (-719_162, 2_932_896)}
"""Years 1 to 9999, in the unit of the type: table libraries support no others, and would fail on a file's bounds."""
_ESCAPED = r"[^ !#-\[\]-~]"
"""Pattern of a character that JSON escapes."""

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column."""
    if kind in _FIXED:
        return _FIXED[kind]
    digits, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return pa.decimal128(int(digits), int(scale))


def initial(shape: Shape) -> tuple[TableColumn, ...]:
    """Return the first columns of a new stream's table."""
    return extended((), {name: kind for name, kind in shape.fields if kind is not None})


def file_schema(shape: Shape, columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the schema of a file, with numbered columns for Iceberg: the entry's own first, then the fields'.

    A catalog numbers the parts of a list after all columns of a new table, so the files do that too.
    """
    own: list[pa.Field] = [
        pa.field("id", pa.string()),
        pa.field("id_ms", pa.int64()),
        pa.field("id_seq", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
    if shape.raw:
        last = first_number(shape) - 1
        pair = [_numbered(pa.field(name, pa.binary()), at) for at, name in ((last - 1, "name"), (last, "value"))]
        own.append(pa.field("fields", pa.list_(_numbered(pa.field("element", pa.struct(pair)), last - 2))))
    else:
        own.append(pa.field("entry_json", pa.string()))
    if shape.table is not None:
        own.append(pa.field("stream", pa.string()))
    rest = [pa.field(column.name, arrow_type(column.type)) for column in columns]
    first = first_number(shape)
    fields = [_numbered(field, at) for at, field in enumerate(own, 1)]
    fields += [_numbered(field, at) for at, field in enumerate(rest, first)]
    return pa.schema(fields, {MARK: json.dumps([column.json for column in columns])})


def first_number(shape: Shape) -> int:
    """Return the number of the first column of a field."""
    return (9 if shape.raw else 6) + (shape.table is not None)


def _numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(number)})


# --- entries to rows -------------------------------------------------------------------------------------------------


class DamagedFileError(StorageError):
    """A data file of an archive was changed after it was written.

    What to do: restore the file from a backup.
    """


class Shaped(NamedTuple):
    """Entries converted to rows, with the columns and the values that do not fit."""

    rows: pa.Table  # Rows with the columns of :func:`file_schema`
    columns: tuple[TableColumn, ...]  # Existing columns, and new ones for values that fit none of them
    unfit: dict[str, int]  # Number of non-empty values that are in none of the columns, by field
    seen: set[str]  # Fields of the entries that the archive's form names


def shaped(rows: pa.Table, shape: Shape, known: Sequence[TableColumn], stream: str = "") -> Shaped:
    """Convert entries of a stream to rows, with the columns that they need."""
    ms, seq, fields = (rows[name].combine_chunks() for name in ("id_ms", "id_seq", "fields"))
    found = _Fields(fields, shape, known)
    halves = [half.cast(pa.string()) for half in (ms, seq)]
    own = [
        pc.binary_join_element_wise(*halves, "-"),
        *(pc.min_element_wise(half, pa.scalar(LARGEST, pa.uint64())).cast(pa.int64()) for half in (ms, seq)),
        timestamps(ms.to_numpy()),
        fields if shape.raw else found.left_over(fields),
    ]
    if shape.table is not None:
        own.append(pa.repeat(stream, len(fields)))
    schema = file_schema(shape, found.columns)
    others = [found.arrays.get(column.name, pa.nulls(len(fields), arrow_type(column.type))) for column in found.columns]
    made = [array.cast(field.type) for array, field in zip([*own, *others], schema, strict=True)]
    return Shaped(pa.Table.from_arrays(made, schema=schema), found.columns, found.unfit, found.seen)


class _Fields:
    """Makes the columns of some entries' fields."""

    def __init__(self, fields: pa.Array, shape: Shape, known: Sequence[TableColumn]) -> None:
        self.columns = tuple(known)
        self._first: dict[str, int] = {}
        self._note_first()
        self.arrays: dict[str, pa.Array] = {}
        self.unfit: dict[str, int] = {}
        self.seen: set[str] = set()
        self._shape = shape
        self._named = {name for name, _ in shape.fields}
        self._exact = np.ones(len(fields), bool)
        rows, names, values = parts(fields)
        ranks = np.full(len(rows), -1)
        for name, hits in _by_name(names):
            field = _text(name)
            if field in self._named:
                self.seen.add(field)
            if field is None or not self._wanted(field) or not self._has_place(field):
                continue
            place = np.zeros(len(fields), np.int64)
            absent = np.ones(len(fields), bool)
            place[rows[hits]] = hits  # for a repeated name, the last value counts, as in a live read
            absent[rows[hits]] = False
            if self._fill(field, values.take(pa.array(place, mask=absent)).view(pa.string())):
                ranks[hits] = self._rank(field)
        self._exact[rows[ranks < 0]] = False
        unordered = (rows[1:] == rows[:-1]) & (ranks[1:] <= ranks[:-1])
        self._exact[rows[1:][unordered]] = False

    def _wanted(self, field: str) -> bool:
        return self._shape.columns == "all" or field in self._named

    def _has_place(self, field: str) -> bool:
        """Return True if a field has a column or may get one; a field without one costs no more work."""
        return len(self.columns) < MOST_COLUMNS or field in self._first

    def _rank(self, field: str) -> int:
        return self._first[field]

    def _note_first(self) -> None:
        """Note the index of each field's first column, which every name of a batch is looked up by."""
        for place, column in enumerate(self.columns):
            self._first.setdefault(column.field, place)

    def _fill(self, field: str, source: pa.Array) -> bool:
        """Put a field's values into its columns; return False if it has no column."""
        given = source.is_valid()
        left = source
        text = pa.nulls(len(source), pa.binary())
        inferred = self._shape.columns != "schema"
        for column in [column for column in self.columns if column.field == field]:
            left, text = self._put(column, left, text)
        kind = _type_of(left) if inferred else None
        if kind is not None:
            before = self.columns
            self.columns = extended(before, {field: kind})
            self._note_first()
            for column in self.columns[len(before) :]:
                left, text = self._put(column, left, text)
        same = pc.fill_null(pc.equal(text, source.view(pa.binary())), False)
        self._exact &= pc.or_(same, pc.invert(given)).to_numpy(zero_copy_only=False)
        has_column = field in self._first
        unfit = pc.sum(pc.greater(pc.binary_length(left), 0)).as_py()
        if has_column and unfit:
            self.unfit[field] = unfit
        return has_column

    def _put(self, column: TableColumn, left: pa.Array, text: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Put the fitting values into a column; return the others, and the text that the columns restore so far."""
        fits = left
        if self._shape.columns != "schema" or column.type == "string":
            fits = pc.if_else(_mask(left, column.type), left, nothing())
        values, _ = convert(fits, arrow_type(column.type))
        if column.type == "double":
            values = pc.if_else(pc.is_finite(values), values, pa.nulls(1, pa.float64())[0])
        if column.type in _YEARS:
            values = _of_known_years(values, column.type)
        self.arrays[column.name] = values
        rest = pc.if_else(values.is_valid(), nothing(), left)
        return rest, pc.coalesce(text, texts(values, column.name))

    def left_over(self, fields: pa.Array) -> pa.Array:
        """Return JSON of the entries that their columns would not restore exactly; null for the others."""
        wanted = np.flatnonzero(~self._exact)
        place = np.zeros(len(fields), np.int64)
        place[wanted] = np.arange(len(wanted))
        return documents_of(fields.take(pa.array(wanted))).take(pa.array(place, mask=self._exact))


def documents_of(fields: pa.Array) -> pa.Array:
    """Return each entry's fields as JSON, a list of names and values; bytes outside UTF-8 become lone surrogates.

    Text that JSON does not escape, which is the usual case, is joined in bulk: a fifth of the cost of one by one.
    """
    rows, names, values = parts(fields)
    counts = np.bincount(rows, minlength=len(fields))
    plain = counts > 0
    for words in (names, values):
        plain[rows[pc.match_substring_regex(words, _ESCAPED).to_numpy(zero_copy_only=False)]] = False
    pairs = pc.binary_join_element_wise(names.view(pa.string()), values.view(pa.string()), '", "')
    ends = pa.array(np.cumsum([0, *counts], dtype=np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, pairs), '"], ["')
    quick = pc.binary_join_element_wise('[["', joined, '"]]', "")
    others = np.flatnonzero(~plain)
    found: list[str | None] = [None] * len(fields)
    for at, row in zip(others.tolist(), fields.take(pa.array(others)).to_pylist(), strict=True):
        found[at] = json.dumps([[_word(pair["name"]), _word(pair["value"])] for pair in row])
    return pc.if_else(pa.array(plain), quick, pa.array(found, pa.string()))


def parts(fields: pa.Array) -> tuple[Any, pa.Array, pa.Array]:
    """Return the row, the name and the value of every field of some entries."""
    counts = pc.list_value_length(fields).to_numpy()
    names, values = fields.flatten().flatten()
    return np.repeat(np.arange(len(counts)), counts), names, values


def _by_name(names: pa.Array) -> Iterator[tuple[bytes, Any]]:
    """Yield each name with its positions, in the order of first appearance."""
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(coded.dictionary)))
    begin = 0
    for name, end in zip(coded.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield name, order[begin:end]
        begin = end


def _text(name: bytes) -> str | None:
    """Return a field's name as text; None if it is too long or not UTF-8, so that it cannot have a column."""
    return name.decode() if len(name) <= 1024 and is_utf8(name) else None


def _mask(values: pa.Array, kind: str) -> pa.Array:
    """Return a mask of the values that have an inferred type."""
    pattern = dict(_INFERRED).get(kind)
    if pattern is not None:
        return pc.fill_null(pc.match_substring_regex(values.view(pa.binary()), pattern), False)
    if kind == "string":
        return _readable(values)
    return values.is_valid()


def _readable(values: pa.Array) -> pa.Array:
    """Return a mask of the values that are UTF-8."""
    try:
        values.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value is not None and is_utf8(value) for value in values.view(pa.binary()).to_pylist()])
    return values.is_valid()


def _of_known_years(values: pa.Array, kind: str) -> pa.Array:
    """Return times with those outside the years 1 to 9999 as null."""
    low, high = _YEARS[kind]
    numbers = values.view(pa.int32() if kind == "date" else pa.int64())
    known = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high))
    return pc.if_else(known, values, pa.nulls(1, values.type)[0])


def _type_of(values: pa.Array) -> ColumnType | None:
    """Return the type that fits all these values; None if all are empty, since an empty value may mean none."""
    present = values.filter(pc.fill_null(pc.greater(pc.binary_length(values), 0), False))
    if not len(present):
        return None
    for kind, pattern in _INFERRED:
        alike = pc.match_substring_regex(present.view(pa.binary()), pattern)
        if pc.all(alike).as_py() and not convert(present, _FIXED[kind])[0].null_count:
            return ColumnType(kind)
    return ColumnType("string" if pc.all(_readable(present)).as_py() else "binary")


def _word(part: bytes) -> str:
    """Return bytes as text for JSON: a byte outside UTF-8 becomes a lone surrogate, which no text has."""
    return part.decode("utf-8", "surrogateescape")


# --- rows to entries -------------------------------------------------------------------------------------------------


def columns_of(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a file, from its metadata."""
    try:
        return load_columns(parse((schema.metadata or {})[MARK]))
    except (KeyError, ValueError, TypeError, AttributeError) as reason:
        raise DamagedFileError(f"a file of the archive does not say which columns it has ({fault(reason)})") from None


def entries_of(batch: pa.RecordBatch, columns: Sequence[TableColumn]) -> pa.Array:
    """Return the entries' fields as a :data:`LISTED` array, from ``entry_json`` or from the batch's columns."""
    documents = batch.column("entry_json")
    whole = documents.is_valid().to_numpy(zero_copy_only=False)
    rows, ranks, names, values = [], [], [], []
    firsts: dict[str, int] = {}
    for at, column in enumerate(columns):
        rank = firsts.setdefault(column.field, at)
        if column.name not in batch.schema.names:
            continue
        text = texts(batch.column(column.name), column.name)
        there = np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False) & ~whole)
        rows.append(there)
        ranks.append(np.full(len(there), rank))
        names.append(arrays.again((column.field.encode(),), len(there)).view(pa.binary()))
        values.append(text.take(pa.array(there)))
    for row in np.flatnonzero(whole).tolist():
        pairs = _pairs(documents[row].as_py())
        rows.append(np.full(len(pairs), row))
        ranks.append(np.arange(len(pairs)))
        names.append(pa.array([name for name, _ in pairs], pa.binary()))
        values.append(pa.array([value for _, value in pairs], pa.binary()))
    offsets = np.zeros(batch.num_rows + 1, np.int32)
    if not rows:
        return listed_array(pa.array(offsets), pa.array([], pa.binary()), pa.array([], pa.binary()))
    every = np.concatenate(rows)
    order = pa.array(np.lexsort((np.concatenate(ranks), every)))
    np.cumsum(np.bincount(every, minlength=batch.num_rows), out=offsets[1:])
    return listed_array(pa.array(offsets), pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order))


def _pairs(document: str) -> list[tuple[bytes, bytes]]:
    try:
        return [(_bytes(name), _bytes(value)) for name, value in parse(document)]
    except (ValueError, TypeError, AttributeError):
        raise DamagedFileError("an entry in the archive is damaged: its entry_json is not what was written") from None


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")
