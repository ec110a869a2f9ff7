"""Views: the state of a server as tables, on Redis and compatible servers.

A view is read when its rows are: two actions may see two states. Reading changes nothing, not even delivery counts and
idle times.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from millstream.errors import ConfigError
from millstream.spark.options.read import Options
from millstream.spark.views.columns import COLUMNS, ViewPartition
from millstream.spark.views.planner import plan
from millstream.spark.views.rows import read

if TYPE_CHECKING:
    import pyarrow as pa


class View:
    """One of the views, over the streams of a read's options."""

    def __init__(self, kind: str, parsed: Options) -> None:
        self.kind = kind
        self.parsed = parsed

    def schema(self) -> StructType:
        """Return all columns of the view."""
        return StructType([StructField(name, kind) for name, kind in COLUMNS[self.kind].items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``; ``schema`` may choose columns, but not change them."""
        known = COLUMNS[self.kind]
        for column in schema:
            if column.name not in known:
                raise ConfigError(
                    f"schema: the view {self.kind!r} has no column {column.name!r}; it has {', '.join(known)}"
                )
            if column.dataType != known[column.name]:
                raise ConfigError(
                    f"schema: column {column.name!r} of the view {self.kind!r} is {known[column.name].simpleString()}. "
                    "Declare it as that, or leave .schema(...) out."
                )
        return ViewReader(self.kind, self.parsed, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Raise: ``spark.readStream`` cannot read a view."""
        raise ConfigError(
            f"option 'view' is {self.kind!r} ({', '.join(schema.fieldNames())}), a state and not a stream. Use "
            "spark.read, repeatedly if needed."
        )


class ViewReader(DataSourceReader):
    """Plans and reads a view."""

    def __init__(self, kind: str, parsed: Options, schema: StructType) -> None:
        self._kind = kind
        self._parsed = parsed
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the shares of the tasks, by the present streams."""
        return list(plan(self._kind, self._parsed)) or [ViewPartition()]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one share."""
        keys = getattr(partition, "keys", ())
        return read(self._kind, self._parsed, self._schema, partition) if keys else iter(())  # type: ignore[arg-type] # Spark hands back our own
