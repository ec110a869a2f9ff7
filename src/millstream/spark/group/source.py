"""Group mode: a query that shares a consumer group with its other readers, and the entries that a consumer holds.

Imported only if the options of ``format("millstream")`` choose it. It is a thin layer, like ``source``.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StructField, StructType

from millstream.errors import ConfigError
from millstream.spark.arrow.columns import Layout
from millstream.spark.group.model import ClaimPartition, GroupOptions
from millstream.spark.group.pending import held_parts
from millstream.spark.group.planner import GroupPlanner
from millstream.spark.group.reader import read_claim, with_deliveries
from millstream.spark.model.claims import dump, load
from millstream.spark.options import names
from millstream.spark.options.schema import checked_schema, entry_schema

if TYPE_CHECKING:
    import pyarrow as pa


DELIVERIES = StructField(names.DELIVERIES, LongType())


class GroupMode:
    """The schema and the readers of ``format("millstream")`` in group mode."""

    def __init__(self, options: GroupOptions) -> None:
        self._options = options

    def schema(self) -> StructType:
        """Return the schema of the plain read; a read of held entries adds their delivery counts."""
        plain = entry_schema(self._options.parsed.fields, headers=self._options.parsed.headers)
        return StructType([*plain, DELIVERIES]) if self._options.consumer else plain

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``: the entries that one consumer holds."""
        if not self._options.consumer:
            raise ConfigError(
                "option 'mode' is 'group', and a batch read would claim entries that nobody acknowledges. Use "
                "spark.readStream, millstream.spark.recover for what others have left, or name a 'consumer' to see "
                "what it holds."
            )
        return HeldReader(self._options, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for ``spark.readStream``."""
        if self._options.consumer:
            raise ConfigError(
                "option 'consumer' is for spark.read; a stream claims as consumers of its own 'queryName'"
            )
        return GroupReader(self._options, checked_schema(self._options.parsed, schema))


class HeldReader(DataSourceReader):
    """The entries that a consumer holds, read without changing anything."""

    def __init__(self, options: GroupOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        Layout.of(_without_deliveries(schema), headers=options.parsed.headers)

    def partitions(self) -> list[InputPartition]:
        """Return the partitions, by the entries that the consumer holds now."""
        consumer = self._options.consumer
        parts = held_parts(self._options)
        return [ClaimPartition(key, runs, consumer, counts) for key, runs, counts in parts] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one partition."""
        if not isinstance(partition, ClaimPartition):
            return iter(())
        layout = Layout.of(_without_deliveries(self._schema), headers=self._options.parsed.headers)
        batches = read_claim(self._options.parsed, layout, partition)
        return with_deliveries(batches, partition, self._schema)


def _without_deliveries(schema: StructType) -> StructType:
    # Rows and delivery counts are matched by id.
    if names.ID not in schema.fieldNames():
        raise ConfigError("the schema has no column id, which entries of a consumer are read with. Add 'id string'.")
    return StructType([column for column in schema if column.name != DELIVERIES.name])


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source in group mode. Spark keeps one at the driver for planning; tasks only read."""

    def __init__(self, options: GroupOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: GroupPlanner | None = None
        self._initial: dict[str, Any] | None = None
        Layout.of(schema, headers=options.parsed.headers)

    def _plan(self) -> GroupPlanner:
        if self._planner is None:
            self._planner = GroupPlanner(self._options)
            self._planner.connect()
        return self._planner

    def _load(self, raw: Mapping[str, Any]) -> Any:
        return load(raw, self._options.group, self._options.query)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch; Spark calls this twice."""
        if self._initial is None:
            self._initial = dump(self._plan().begin())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the cap of a micro-batch."""
        most = self._options.parsed.max_entries
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the entries that the whole run claims."""
        self._plan().target_now()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Claim and return the next batch; acknowledge ``start``, which is committed."""
        cap = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dump(self._plan().next_end(self._load(start), cap))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the waiting entries, and the number that others have taken, for the query's progress."""
        return self._plan().report or None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        claim = self._load(end)
        parts = self._plan().parts(self._load(start), claim)
        return [ClaimPartition(key, runs, claim.consumer) for key, runs in parts]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one partition; the same ones in every attempt."""
        assert isinstance(partition, ClaimPartition)
        return read_claim(
            self._options.parsed, Layout.of(self._schema, headers=self._options.parsed.headers), partition
        )

    def commit(self, end: Mapping[str, Any]) -> None:
        """Acknowledge a committed batch, unless :meth:`latestOffset` did before."""
        self._plan().settle(self._load(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
