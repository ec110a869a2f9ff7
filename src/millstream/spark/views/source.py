"""Views: the state of a server as tables, whichever server it is.

A view is read when its rows are: two actions may see two states. Reading changes nothing, delivery counts and idle
times included.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from millstream.spark.model.offsets import Id
    from millstream.spark.options.read import Options

_TEXT, _WHEN, _COUNT = StringType(), TimestampType(), LongType()

COLUMNS: dict[str, dict[str, DataType]] = {
    "groups": {
        "stream": _TEXT, "group": _TEXT, "consumers": _COUNT, "pending": _COUNT, "last_delivered_id": _TEXT,
        "entries_read": _COUNT, "lag": _COUNT,
    },
    "consumers": {
        "stream": _TEXT, "group": _TEXT, "consumer": _TEXT, "pending": _COUNT, "idle_ms": _COUNT,
        "inactive_ms": _COUNT,
    },
    "pending": {
        "stream": _TEXT, "group": _TEXT, "consumer": _TEXT, "id": _TEXT, "timestamp": _WHEN, "idle_ms": _COUNT,
        "deliveries": _COUNT, "delivered": _WHEN,
    },
    "dead": {
        "stream": _TEXT, "id": _TEXT, "group": _TEXT, "consumer": _TEXT, "deliveries": _COUNT, "reason": _TEXT,
        "error": _TEXT, "traceback": _TEXT, "published": _WHEN, "died": _WHEN, "returned": IntegerType(),
        "fields": MapType(_TEXT, _TEXT), "letter_stream": _TEXT, "letter_id": _TEXT,
    },
}  # fmt: skip
"""By view, its columns in order."""


@dataclass
class ViewPartition(InputPartition):
    """One task's share of a view.

    Attributes:
        keys: the streams whose groups or consumers are shown; empty where there is nothing to read.
        group: of the one stream, for pending entries.
        start: ids after this one, for pending entries and dead letters.
        end: ids up to this one.
    """

    keys: tuple[str, ...] = ()
    group: bytes = b""
    start: "Id | None" = None
    end: "Id | None" = None


class View:
    """One of the views, over the streams of a read's options.

    Args:
        kind: a key of :data:`COLUMNS`.
        parsed: the options.
    """

    def __init__(self, kind: str, parsed: "Options") -> None:
        self.kind = kind
        self.parsed = parsed

    def schema(self) -> StructType:
        """All columns of the view."""
        return StructType([StructField(name, kind) for name, kind in COLUMNS[self.kind].items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``; ``schema`` may narrow the columns, and not change them."""
        known = COLUMNS[self.kind]
        for column in schema:
            if column.name not in known:
                raise ConfigError(
                    f"schema: the view {self.kind!r} has no column {column.name!r}; it has {', '.join(known)}"
                )
            if column.dataType != known[column.name]:
                raise ConfigError(
                    f"schema: column {column.name!r} of the view {self.kind!r} is {known[column.name].simpleString()}: "
                    "declare it so or leave .schema(...) out"
                )
        return ViewReader(self.kind, self.parsed, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``: never.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"option 'view' is {self.kind!r} ({', '.join(schema.fieldNames())}), a state and not a stream: use "
            "spark.read, again and again if need be"
        )


class ViewReader(DataSourceReader):
    """Plans and reads a view.

    Args:
        kind: which.
        parsed: the options.
        schema: the columns wanted.
    """

    def __init__(self, kind: str, parsed: "Options", schema: StructType) -> None:
        self._kind = kind
        self._parsed = parsed
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The shares of the tasks, by what there is now."""
        from millstream.spark.views.planner import plan  # noqa: PLC0415 - the client only where it is used

        return list(plan(self._kind, self._parsed)) or [ViewPartition()]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one share."""
        from millstream.spark.views.reader import read  # noqa: PLC0415 - Arrow only where rows are made

        keys = getattr(partition, "keys", ())
        return read(self._kind, self._parsed, self._schema, partition) if keys else iter(())  # type: ignore[arg-type] # Spark hands back our own
