"""The calls that Spark makes to read hashes: columns, and a number of tasks that follows the number of keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import MapType, StringType, StructField, StructType

from millstream.errors import ConfigError
from millstream.spark.hashes.options import HashOptions
from millstream.spark.hashes.scan import HashLayout, read, shares

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class HashPart(InputPartition):
    """One task's share of the keys."""

    number: int  # Number of this share, from 0
    of: int  # Number of shares


class Hashes:
    """A read of hashes."""

    def __init__(self, options: HashOptions) -> None:
        self._options = options

    def schema(self) -> StructType:
        """Return the columns: the key, and all fields as a map."""
        text = StringType()
        return StructType([StructField(self._options.key_column, text), StructField("fields", MapType(text, text))])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        return HashReader(self._options, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Raise: ``spark.readStream`` cannot read hashes."""
        raise ConfigError(
            f"option 'hashes' is {self._options.pattern!r} ({', '.join(schema.fieldNames())}), a state and not a "
            "stream. Use spark.read, and join that with a stream."
        )


class HashReader(DataSourceReader):
    """Plans and reads hashes."""

    def __init__(self, options: HashOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        HashLayout.of(schema, options)

    def partitions(self) -> list[InputPartition]:
        """Return the shares by the present number of keys; each task finds its own keys when it reads."""
        count = shares(self._options)
        return [HashPart(number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one share, with the present fields of the hashes."""
        assert isinstance(partition, HashPart)
        return read(self._options, self._schema, partition.number, partition.of)
