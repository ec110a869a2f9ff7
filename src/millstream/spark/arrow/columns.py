"""From the columns of a page to record batches of a schema, with typed values where it names types.

A column is one of three things: the entry's origin (stream, id, timestamp), all of its fields in one value, or one
field by its name. The name alone decides. So a name that equals one of the entry's own columns except for upper and
lower case, which Spark ignores, is refused. It would otherwise be read as a field that no entry has.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from millstream.client.payloads import envelope
from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow import arrays
from millstream.spark.arrow.page import LISTED, Page, Want
from millstream.spark.arrow.parse_values import convert
from millstream.spark.options import names

_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, where Spark's timestamps end."""

_FIXED = {
    names.STREAM_COLUMN: pa.string(),
    names.ID: pa.string(),
    names.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    names.CORRUPT: pa.string(),
}
_MAP = pa.map_(pa.string(), pa.string())


@dataclass
class Layout:
    """The source of each column of a schema."""

    schema: pa.Schema  # Schema of the batches for Spark
    want: Want  # Parts of an entry that must be decoded
    typed: dict[str, pa.DataType] = field(default_factory=dict)  # Columns that are entry fields, with their types
    headers: bool = False  # True if envelopes are decoded

    @classmethod
    def of(cls, schema: StructType, *, headers: bool = False) -> "Layout":
        """Return the layout of a Spark schema."""
        target = as_arrow(schema)
        typed = {}
        pairs = listed = False
        for column in target:
            if column.name in _FIXED:
                if column.type != _FIXED[column.name]:
                    spark = "timestamp" if column.name == names.TIMESTAMP else "string"
                    raise ConfigError(
                        f"schema: column {column.name!r} is that of the entry, of type {spark}. "
                        "Declare it as that, or leave it out."
                    )
            elif headers and column.name in names.ENVELOPE:
                _check_envelope(column)
            elif column.name == names.FIELDS:
                pairs, listed = column.type == _MAP, column.type == LISTED
                if not pairs and not listed:
                    raise ConfigError(
                        "schema: column 'fields' must be map<string,string> or "
                        "array<struct<name:binary,value:binary>>. Declare it as that, or leave it out."
                    )
            else:
                if (own := names.column_of_an_entry(column.name)) is not None:
                    raise ConfigError(
                        f"schema: Spark reads column {column.name!r} as {own!r}, and a field of an entry is something "
                        f"else. Write it {own!r}, or read the field from the map, fields['{column.name}']."
                    )
                if not is_readable(column.type):
                    raise unreadable(schema[column.name])
                typed[column.name] = column.type
        headers = headers and not set(names.ENVELOPE).isdisjoint(target.names)
        fields = {*(name.encode() for name in typed), *((envelope.FIELD,) if headers else ())}
        return cls(target, Want(tuple(sorted(fields)), pairs, listed), typed, headers)

    def batch(self, stream: str, page: Page) -> pa.RecordBatch:
        """Return the record batch of a page."""
        rows = len(page.ids)
        bad: dict[str, Any] = {}
        opened = open_envelopes(page.fields[envelope.FIELD], bad) if self.headers else {}

        def made(column: pa.Field) -> pa.Array:
            if column.name in opened:
                return opened[column.name].view(column.type) if column.name == names.BODY else opened[column.name]
            return self._column(column.name, stream, page, rows, bad)

        return record_batch(self.schema, made, bad, rows, f"entries of {stream!r}")

    def _column(self, name: str, stream: str, page: Page, rows: int, bad: dict[str, Any]) -> pa.Array:
        """Return one column of a page; values that are not of its type are null, and noted in ``bad``."""
        if name in self.typed:
            return converted(page.fields[name.encode()], self.typed[name], name, bad)
        if name == names.STREAM_COLUMN:
            return arrays.again((stream.encode(),), rows)
        if name == names.ID:
            return page.ids
        if name == names.TIMESTAMP:
            return timestamps(page.times)
        if name == names.CORRUPT:
            return pa.nulls(rows, pa.string())
        return page.listed if self.want.listed else page.pairs


def converted(source: pa.Array, kind: pa.DataType, name: str, bad: dict[str, Any]) -> pa.Array:
    """Return a column of texts as another type; values that are not of that type are null, and noted in ``bad``."""
    found, mistaken = convert(source, kind)
    if mistaken is not None:
        bad[name] = (mistaken, source)
    return found


def record_batch(
    schema: pa.Schema, made: Callable[[pa.Field], pa.Array], bad: dict[str, Any], rows: int, whose: str
) -> pa.RecordBatch:
    """Return the columns in one batch, and add the column of values that could not be converted last."""
    found = []
    for column in schema:
        array = made(column)
        if array.null_count and not column.nullable:
            raise UsageError(f"schema: column {column.name!r} is NOT NULL, but {whose} have no such value")
        found.append(array)
    # Last of all columns: the others must first report the values that they could not convert
    if names.CORRUPT in schema.names:
        found[schema.names.index(names.CORRUPT)] = corrupt(bad, rows)
    return pa.RecordBatch.from_arrays(found, schema=schema)


def _check_envelope(column: pa.Field) -> None:
    """Raise unless a column of an entry's envelope has its fixed type."""
    fine = column.type == _MAP if column.name == names.HEADERS else column.type in (pa.binary(), pa.string())
    if not fine:
        wanted = "map<string,string>" if column.name == names.HEADERS else "binary or string"
        raise ConfigError(
            f"schema: column {column.name!r} is of the entry's envelope and of type {wanted}. Declare it as that, or "
            "leave the option 'includeHeaders' out."
        )


def open_envelopes(source: pa.Array, bad: dict[str, Any]) -> dict[str, pa.Array]:
    """Return the headers and bodies of entries, by column; null for an entry without an envelope."""
    headers: list[list[tuple[str, str]] | None] = []
    bodies: list[bytes | None] = []
    damaged = []
    for row, data in enumerate(source.view(pa.binary()).to_pylist()):
        found = None
        try:
            found = None if data is None else envelope.parse(data)
        except ValueError:
            damaged.append(row)
        headers.append(None if found is None else list(found.headers.items()))
        bodies.append(None if found is None else found.body)
    if damaged:
        bad[envelope.FIELD.decode()] = (damaged, source)
    return {names.HEADERS: pa.array(headers, _MAP), names.BODY: pa.array(bodies, pa.binary())}


def as_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, in UTC whatever the session's time zone is: ids count milliseconds in UTC."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError:  # the error names a type, perhaps a nested one, but no column
        for column in schema:
            try:
                to_arrow_schema(StructType([column]), timezone="UTC")
            except PySparkTypeError:
                raise unreadable(column) from None
        raise


def unreadable(column: StructField) -> ConfigError:
    """Return the error for a column with a type that no field can be converted to."""
    kind = column.dataType.simpleString()
    return ConfigError(
        f"schema: column {column.name!r} is of type {kind}, which no field can be read as: declare it string and cast "
        "that"
    )


def is_readable(kind: pa.DataType) -> bool:
    """Return True if text can be converted to this type; otherwise every value would be null."""
    if pa.types.is_nested(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        variant = any(part.metadata and b"variant" in part.metadata for part in parts)
        return not variant and all(is_readable(part.type) for part in parts)
    is_ = pa.types
    plain = (
        is_.is_string, is_.is_binary, is_.is_integer, is_.is_floating, is_.is_decimal, is_.is_boolean, is_.is_date,
        is_.is_timestamp,
    )  # fmt: skip
    return any(fits(kind) for fits in plain)


def timestamps(times: np.ndarray[Any, np.dtype[np.uint64]]) -> pa.Array:
    """Return milliseconds as Spark's timestamps; null past the year 9999, where timestamps end but ids do not."""
    late = times > _LAST_MS
    if not late.any():
        return arrays.moments(times.astype(np.int64) * 1000)
    micros = np.where(late, 0, times).astype(np.int64) * 1000
    return pa.array(micros, type=pa.timestamp("us", tz="UTC"), mask=late)


def moments(values: Sequence[int | None]) -> pa.Array:
    """Return milliseconds, some of them None, as Spark's timestamps."""
    micros = [None if value is None or not 0 <= value <= _LAST_MS else value * 1000 for value in values]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def corrupt(bad: dict[str, Any], rows: int) -> pa.Array:
    """Return the values that could not be converted, as a JSON object for each row; null for rows without any."""
    found: list[dict[str, str] | None] = [None] * rows
    for name, (mistaken, source) in bad.items():
        values = source.view(pa.binary())
        for row in mistaken:
            mistakes = found[row] = found[row] or {}
            mistakes[name] = values[row].as_py().decode("utf-8", "replace")
    return pa.array([None if row is None else json.dumps(row, ensure_ascii=False) for row in found], pa.string())
