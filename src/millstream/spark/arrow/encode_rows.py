"""Rows of a DataFrame to XADD commands as RESP bytes, in bulk: Arrow joins the parts, no value becomes a Python object.

:class:`RowLayout` defines the meaning of a row's columns. :mod:`millstream.spark.write.staging` stores the commands,
and :mod:`millstream.spark.write.publish` sends them unchanged, so that the driver need not parse them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from millstream.client.payloads import envelope
from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow.format_values import texts, unwritable
from millstream.spark.model.offsets import MAX_PART, Id
from millstream.spark.options import names

BATCH_BYTES = 32 << 20
"""Approximate size of a portion of rows that is encoded at once, so that a task with large rows stays small."""

MOST_FIELDS = 100_000
"""Most fields of one row; a server refuses commands of more than a million arguments."""

_CRLF = b"\r\n"
# Form of an id for XADD; a missing second part means 0.
_ID = r"^(?P<ms>[0-9]{1,20})(?:-(?P<seq>[0-9]{1,20}))?$"

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class RowLayout:
    """The form in which each column of a DataFrame is written."""

    target: str | None  # Stream of all rows; None if the column ``stream`` contains it
    has_id: bool  # True if the column ``id`` contains the ids
    fields: tuple[str, ...]  # Columns that are fields; empty if the column ``fields`` contains them as a map
    headers: bool = False  # True if the columns ``headers`` and ``body`` form an envelope, the entry's only field

    @classmethod
    def of(cls, schema: StructType, target: str | None, *, headers: bool = False) -> "RowLayout":
        """Return the layout of a DataFrame."""
        kinds = {}
        for column in schema:
            try:
                kinds[column.name] = to_arrow_type(column.dataType, timezone="UTC")
            except Exception:  # noqa: BLE001 - PySpark's own error for a type that Arrow lacks
                kinds[column.name] = pa.null()
        _check_own(kinds, target, {column.name: column.dataType.simpleString() for column in schema})
        if headers:
            _check_envelope(kinds)
            return cls(target, "id" in kinds, (envelope.FIELD.decode(),), headers=True)
        by_map = "fields" in kinds and pa.types.is_map(kinds["fields"])
        fields = () if by_map else tuple(name for name in kinds if name not in (names.STREAM_COLUMN, names.ID))
        for name in fields:
            _check_not_taken(name)
        if by_map and (strangers := [name for name in kinds if name not in names.ENTRY]):
            raise ConfigError(
                f"column {strangers[0]!r} is next to the map 'fields', which is the whole entry. Put it into the "
                "map or drop it."
            )
        if not by_map and not fields:
            raise ConfigError(
                "there is no column to write. Add one: each column but 'stream' and 'id' becomes a field."
            )
        for name in fields:
            if problem := unwritable(kinds[name]):
                raise ConfigError(f"column {name!r} is {problem}, which a field cannot hold. Cast it to string.")
        return cls(target, "id" in kinds, fields)


def _check_own(kinds: dict[str, pa.DataType], target: str | None, shown: dict[str, str]) -> None:
    """Raise unless the columns ``stream``, ``id`` and ``fields`` have their fixed types.

    They mean the same as in a read, so that rows that were read can be written unchanged. If the option names the
    stream, a column of that name is ignored: it shows which stream the rows came from.
    """
    if target is None and "stream" not in kinds:
        kafka = " (Kafka's column 'topic': withColumnRenamed('topic', 'stream'))" if "topic" in kinds else ""
        raise ConfigError(
            f"option 'stream' is missing. Set .option('stream', 'orders'), or give each row a column 'stream'{kafka}."
        )
    for name in ("stream", "id"):
        if name in kinds and not pa.types.is_string(kinds[name]) and not (name == "stream" and target is not None):
            what = "the key of the stream to add to" if name == "stream" else "an entry id such as 1700000000000-0"
            raise ConfigError(
                f"column {name!r} is of type {shown[name]} and must be {what}, a string; to write it as a field, "
                f"rename it: withColumnRenamed('{name}', ...)"
            )
    kind = kinds.get("fields", pa.null())
    if pa.types.is_map(kind) and not (_is_text(kind.key_type) and _is_text(kind.item_type)):
        raise ConfigError(
            f"column 'fields' is of type {shown['fields']} and must be map<string,string> or map<string,binary>. Cast "
            "it."
        )


def _check_envelope(kinds: dict[str, pa.DataType]) -> None:
    """Raise unless the columns are those of entries in envelopes."""
    headers, body = (kinds.get(name) for name in names.ENVELOPE)
    fine = headers is not None and headers == pa.map_(pa.string(), pa.string())
    if not fine or body is None or not _is_text(body):
        raise ConfigError(
            "option 'includeHeaders' is given: it takes a column 'headers' of type map<string,string> and a column "
            "'body' of type binary or string, such as to_json(struct(...))"
        )
    if strangers := [name for name in kinds if name not in (*names.ENTRY[:3], *names.ENVELOPE)]:
        raise ConfigError(
            f"column {strangers[0]!r} is next to 'headers' and 'body', which are the whole entry. Put it into one "
            "of them or drop it."
        )


def _enveloped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with their envelope in one column."""
    bodies = batch.column(names.BODY).view(pa.binary()).to_pylist()
    made = []
    for headers, body in zip(batch.column(names.HEADERS).to_pylist(), bodies, strict=True):
        if body is None:
            raise UsageError("a row's column 'body' is null: give each row a body, or filter such rows out")
        known = {name: value for name, value in headers or () if value is not None}
        try:
            made.append(envelope.build(known, body))
        except ValueError as reason:
            raise UsageError(f"a row's column 'headers' cannot be written: {reason}") from None
    return batch.append_column(envelope.FIELD.decode(), pa.array(made, pa.binary()))


def _check_not_taken(name: str) -> None:
    """Raise if a read would take this column's name for one of an entry's own columns."""
    own = names.column_of_an_entry(name)
    if own not in (None, names.FIELDS) or (own != name and own is not None):
        raise ConfigError(
            f"column {name!r} would be read as an entry's own {own!r}. Rename it, "
            f"withColumnRenamed('{name}', ...), or drop it."
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


@dataclass
class Commands:
    """Some rows as XADD commands."""

    data: memoryview  # Commands, one after another
    bounds: Ints  # Position of each command, and the end of the last one
    words: Ints  # Number of arguments of each command
    targets: Ints | None  # Stream of each row, as an index into ``names``; None if all belong to ``names[0]``
    names: list[str]  # Names of the streams
    ids: list[Id] | None  # Id of each row; None if the server generates them


def encode(batch: pa.RecordBatch, layout: RowLayout) -> Iterator[Commands]:
    """Yield the commands of a batch, in portions that fit into memory."""
    portions = max(1, -(-batch.nbytes // BATCH_BYTES))
    step = max(1, -(-batch.num_rows // portions))
    for start in range(0, batch.num_rows, step):
        yield _encode(batch.slice(start, step), layout)


def _encode(batch: pa.RecordBatch, layout: RowLayout) -> Commands:
    """Return the commands of some rows; one call of Arrow joins the parts of all rows."""
    if layout.headers:
        batch = _enveloped(batch)
    rows = batch.num_rows
    head: list[Any]
    if layout.target is None:
        numbers, names = _targets(batch.column("stream"))
        keys = batch.column("stream").view(pa.binary())
        head = [b"$4\r\nXADD\r\n$", _sizes(keys), keys, _CRLF]
    else:
        numbers, names = None, [layout.target]
        head = [b"$4\r\nXADD\r\n" + bulk(layout.target.encode())]
    ids = None
    if layout.has_id:
        column = batch.column("id")
        ids = _ids(column)
        raw = column.view(pa.binary())
        head += [b"$", _sizes(raw), raw, _CRLF]
    else:
        head.append(b"$1\r\n*\r\n")
    counts, body = _by_column(batch, layout.fields) if layout.fields else _by_map(batch.column("fields"))
    _check_counts(counts)
    words = counts * 2 + 3
    # If all rows have the same number of fields, all bytes up to the first value are constant.
    alike = rows > 0 and int(counts.min()) == int(counts.max())
    size: list[Any] = [b"*%d\r\n" % words[0]] if alike else [b"*", _digits(pa.array(words)), _CRLF]
    joined = _join([*size, *head, *body], rows)
    bounds = np.frombuffer(joined.buffers()[1], np.int32, rows + 1, joined.offset * 4).astype(np.int64)
    return Commands(memoryview(joined.buffers()[2]), bounds, words, numbers, names, ids)


def bulk(word: bytes) -> bytes:
    """Return a command's argument as a RESP bulk string."""
    return b"$%d\r\n%s\r\n" % (len(word), word)


_SIZES = pa.array([b"%d\r\n" % size for size in range(4096)], pa.binary())
"""Lengths below 4,096 as text with the end of line: one part less to join, and joining is the main cost."""


def _sizes(values: pa.Array) -> pa.Array:
    """Return the text between the ``$`` and each value; null where the value is null."""
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest >= len(_SIZES):
        return pc.binary_join_element_wise(_digits(lengths), pa.scalar(_CRLF, pa.binary()), pa.scalar(b"", pa.binary()))
    return _SIZES.take(lengths)


def _digits(numbers: pa.Array) -> pa.Array:
    """Return numbers as text in binary; joining needs binary, and Arrow has no direct cast."""
    return pc.cast(numbers, pa.string()).view(pa.binary())


def _join(parts: list[Any], rows: int) -> pa.Array:
    """Join all parts of each row; a part that is null in a row is left out there."""
    merged: list[Any] = []
    for part in parts:  # adjacent constants are merged
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    made = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in merged]
    if all(isinstance(part, pa.Scalar) for part in made):
        made[0] = pa.repeat(made[0], rows)
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*made, nothing, null_handling="replace", null_replacement=b"")


# --- fields ----------------------------------------------------------------------------------------------------------


def _by_column(batch: pa.RecordBatch, names: tuple[str, ...]) -> tuple[Ints, list[Any]]:
    """Return the number of fields of each row, and their parts; a null column adds no field to its row."""
    counts = np.zeros(batch.num_rows, np.int64)
    parts: list[Any] = []
    for name in names:
        values = texts(batch.column(name), name)
        words = [bulk(name.encode()) + b"$", _sizes(values), values, _CRLF]
        if values.null_count == 0:
            counts += 1
            parts += words
        elif values.null_count < len(values):
            counts += np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), np.int64)
            made = [pa.scalar(word, pa.binary()) if isinstance(word, bytes) else word for word in words]
            parts.append(pc.binary_join_element_wise(*made, pa.scalar(b"", pa.binary())))
    return counts, parts


def _by_map(fields: pa.MapArray) -> tuple[Ints, list[Any]]:
    """Return the number of fields of each row, and their parts, from the column ``fields``.

    A null value adds no field.
    """
    rows = len(fields)
    offsets = np.asarray(fields.offsets.to_numpy(), np.int64)
    # A null map may still have values behind it.
    present = np.asarray(pc.is_valid(fields).to_numpy(zero_copy_only=False), bool)
    sizes = np.where(present, np.diff(offsets), 0)
    begin, end = int(offsets[0]), int(offsets[-1])
    keys, items = (part.slice(begin, end - begin).view(pa.binary()) for part in (fields.keys, fields.items))
    kept = np.asarray(pc.is_valid(items).to_numpy(zero_copy_only=False), bool) & np.repeat(present, np.diff(offsets))
    if not kept.all():
        keys, items = keys.filter(pa.array(kept)), items.filter(pa.array(kept))
        row_of = np.repeat(np.arange(rows), np.diff(offsets))
        sizes = np.bincount(row_of[kept], minlength=rows)
    words = _join([b"$", _sizes(keys), keys, b"\r\n$", _sizes(items), items, _CRLF], len(keys))
    starts = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes, out=starts[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(starts), words), pa.scalar(b"", pa.binary()))
    return sizes.astype(np.int64), [joined]


def _check_counts(counts: Ints) -> None:
    """Raise for a row that no server accepts: the task still knows the rows."""
    if len(counts) and int(counts.min()) < 1:
        raise UsageError(
            "a row has no field (every column, or the map, is null or empty), and an entry needs one: filter such rows "
            "out, or give them a value by coalesce"
        )
    if len(counts) and int(counts.max()) > MOST_FIELDS:
        raise UsageError(f"a row has {int(counts.max())} fields; an entry takes {MOST_FIELDS} at most here")


# --- target and id ---------------------------------------------------------------------------------------------------


def _targets(column: pa.Array) -> tuple[Ints, list[str]]:
    """Return the stream of each row as a number, and the streams; each name is checked once."""
    coded = column.dictionary_encode()
    try:
        names = coded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise UsageError("a row's column 'stream' is not UTF-8: give each row the key of a stream as text") from None
    if column.null_count or "" in names:
        raise UsageError("a row's column 'stream' is null or empty: give each row the key of a stream")
    return coded.indices.to_numpy().astype(np.int64), names


def _ids(column: pa.Array) -> list[Id]:
    """Return the id of each row."""
    if column.null_count:
        raise UsageError("a row's column 'id' is null: give each row an id, or drop the column to have them made")
    parts = pc.extract_regex(column, _ID)
    if parts.null_count:
        wrong = column.filter(pc.is_null(parts))[0].as_py()
        raise UsageError(
            f"a row's column 'id' is {wrong!r}, which is not an entry id such as 1700000000000-0: drop the column to "
            "have ids made, or rename it (withColumnRenamed('id', ...)) to write it as a field"
        )
    pairs = zip(parts.field(0).to_pylist(), parts.field(1).to_pylist(), strict=True)
    found = [Id(int(ms), int(seq or 0)) for ms, seq in pairs]
    for ident in found:
        if max(ident) > MAX_PART:
            raise UsageError(f"a row's column 'id' is {ident}, greater than any entry id")
        if ident == (0, 0):
            raise UsageError("a row's column 'id' is 0-0, below every entry id: ids begin at 0-1")
    return found
