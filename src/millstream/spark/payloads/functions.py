"""``from_avro`` and ``from_confluent``: columns of bytes to columns of values, in Spark's Python workers.

A payload may be faulty: an unknown schema, another format, bytes missing or left over. It then becomes null in mode
PERMISSIVE, and ends the query in mode FAILFAST. A fault outside the payload, such as a registry that is away, ends the
query in both modes.
"""

import io
import json
import struct
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from millstream.errors import ConfigError, MillstreamError, NotLetInError, NotReachedError
from millstream.spark.payloads.avro_types import AvroColumns, Fit
from millstream.spark.payloads.registry import Registry, schema_of
from millstream.texts import plural

try:
    import fastavro
except ImportError:  # an optional extra
    fastavro = None  # type: ignore[assignment] # a module or None

from pyspark.sql.types import DataType

FAILFAST, PERMISSIVE = "FAILFAST", "PERMISSIVE"

_HEAD = struct.Struct(">bI")
"""Header of a payload with the id of its schema: a byte 0, and the id."""


class UndecodableError(MillstreamError):
    """A payload does not have the expected form; the message gives the reason and the schema.

    What to do: check the program that writes the payload. With `mode="PERMISSIVE"` such payloads are null.
    """

    exit_code: ClassVar[int] = 1


def from_avro(column: Column | str, schema: str, *, mode: str = FAILFAST) -> Column:
    """Return the values of payloads in Avro's binary format, without a schema header.

    Returns:
        A column; a struct for a record.
    """
    parsed = _parsed(schema)
    return _applied(column, parsed, None, mode)


def from_confluent(
    column: Column | str, registry: str, *, subject: str | None = None, schema: str | None = None, mode: str = FAILFAST
) -> Column:
    """Return the values of payloads of Confluent's serializers: a byte 0, the id of a schema, and Avro.

    Each payload is read with its writer's schema, which a worker fetches from the registry once. The column has the
    type of one schema: the subject's latest one now, or the given one.

    Returns:
        A column; a struct for a record.
    """
    found = Registry(registry)
    if (subject is None) == (schema is None):
        raise ConfigError(
            "from_confluent() has no schema. Give subject=, whose latest schema gives the columns, or schema=."
        )
    parsed = found.latest(subject) if subject is not None else _parsed(schema or "")
    return _applied(column, parsed, registry, mode)


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except (TypeError, ValueError):
        raise ConfigError(f"schema={schema!r:.80} is invalid. Write an Avro schema as JSON.") from None


def _applied(column: Column | str, schema: Any, registry: str | None, mode: str) -> Column:
    """Return the column of a function that runs in Spark's Python workers."""
    if mode.upper() not in (FAILFAST, PERMISSIVE):
        raise ConfigError(f"mode={mode!r} is invalid. Write {FAILFAST} or {PERMISSIVE}.")
    columns = AvroColumns(schema)
    _check(schema)
    permissive = mode.upper() == PERMISSIVE
    kind = columns.kind

    bytes_of = F.col(column) if isinstance(column, str) else column
    udf: Any = arrow_udf  # its type hints lack a function with an inferred kind
    made: Column = udf(lambda values: decoded(values, schema, kind, registry, permissive=permissive), kind)(
        bytes_of.cast("binary")
    )
    return made


def _check(schema: Any) -> None:
    if fastavro is None:
        raise ConfigError("Avro is read by fastavro, which is not installed. Run pip install 'millstream[avro]'.")
    try:
        fastavro.parse_schema(schema)
    except Exception as reason:  # noqa: BLE001 - several types of errors, all about the schema
        raise ConfigError(f"the Avro schema is invalid: {reason}") from None


def decoded(values: pa.Array, schema: Any, kind: DataType, registry: str | None, *, permissive: bool) -> pa.Array:
    """Return the values in payloads."""
    target = to_arrow_type(kind, timezone="UTC")
    reading = _Payloads(schema, AvroColumns(schema).fit, registry)
    rows = [None if data is None else reading.attempt(data, permissive=permissive) for data in values.to_pylist()]
    try:
        return pa.array(rows, target)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.chunked_array([_one(row, target, permissive=permissive) for row in rows], target).combine_chunks()


def _one(row: Any, target: pa.DataType, *, permissive: bool) -> pa.Array:
    """Return one value of a column in which some values do not fit, such as more than 32 bits in an ``int``."""
    try:
        return pa.array([row], target)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as reason:
        if permissive:
            return pa.nulls(1, target)
        raise UndecodableError(f"a payload's values do not fit its schema: {reason}") from None


class _Payloads:
    """Reads payloads, each with its writer's schema."""

    def __init__(self, schema: Any, fit: Fit | None, registry: str | None) -> None:
        self._schema = fastavro.parse_schema(schema)
        self._fit = fit
        self._registry = registry
        self._writers: dict[int, Any] = {}

    def attempt(self, data: bytes, *, permissive: bool) -> Any:
        """Return the value of a payload; if permissive, None for one that cannot be read."""
        try:
            return self._value(data)
        except UndecodableError:
            if permissive:
                return None
            raise

    def _value(self, data: bytes) -> Any:
        if self._registry is None:
            return self._read(io.BytesIO(data), self._schema, None, "the schema")
        if len(data) < _HEAD.size or data[0] != 0:
            raise UndecodableError(
                f"a payload begins with {data[:5].hex()!r} and not with a byte 0 and the id of a schema: it was not "
                "written by way of a schema registry; for Avro alone there is from_avro"
            )
        _, ident = _HEAD.unpack_from(data)
        return self._read(io.BytesIO(data[_HEAD.size :]), self._writer(ident), self._schema, f"schema {ident}")

    def _writer(self, ident: int) -> Any:
        if ident not in self._writers:
            assert self._registry is not None
            try:
                found = schema_of(self._registry, ident)
            except (NotReachedError, NotLetInError):
                raise
            except ConfigError as reason:
                raise UndecodableError(f"a payload was written with a schema that cannot be used: {reason}") from None
            if found is None:
                shown = Registry(self._registry).shown
                raise UndecodableError(f"a payload was written with schema {ident}, which {shown} does not have")
            self._writers[ident] = fastavro.parse_schema(found)
        return self._writers[ident]

    def _read(self, data: io.BytesIO, writer: Any, reader: Any, what: str) -> Any:
        try:
            found = fastavro.schemaless_reader(data, writer, reader)
            found = found if self._fit is None else self._fit(found)
        except Exception as reason:  # noqa: BLE001 - many types of errors, depending on the bytes
            size = len(data.getvalue())
            raise UndecodableError(f"a payload cannot be read by {what}: {_in_words(reason, size)}") from None
        if left := len(data.read()):
            raise UndecodableError(
                f"a payload cannot be read by {what}: {left} {'byte is' if left == 1 else 'bytes are'} left over"
            )
        return found


def _in_words(reason: Exception, size: int) -> str:
    """Return the meaning of an error of fastavro's, which names Python's lists and numbers."""
    text = str(reason)
    if isinstance(reason, EOFError) and text.startswith("Expected -"):
        return "a length in it is below 0: it is damaged, or was written with another schema"
    if isinstance(reason, EOFError) or (isinstance(reason, IndexError) and "string index" in text):
        whole = plural(size, "byte ends", "bytes end")
        return f"its {whole} before its values do: it was cut off, or was written with another schema"
    if isinstance(reason, IndexError):
        return "it has a choice of a union or an enum that the schema does not have: it was written with another one"
    return text or type(reason).__name__
