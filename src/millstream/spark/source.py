"""``format("millstream")`` as Spark sees it. Thin: ``read.planner`` plans, ``read.reader`` reads, ``write`` writes.

This module is imported whenever Spark looks for any Python data source, so it imports almost nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyspark.sql import datasource
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.client import url as url_text
from millstream.errors import ConfigError, MillstreamError
from millstream.spark import dispatch, tables
from millstream.spark.model.bounds import Bounds, bounds_of
from millstream.spark.model.offsets import Range, dump, load
from millstream.spark.model.packing import packed
from millstream.spark.options import names, write
from millstream.spark.options import read as opts
from millstream.spark.options.schema import checked_schema, entry_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.spark.arrow.columns import Layout
    from millstream.spark.read.planner import Planner


T = TypeVar("T")


def _attempt(parse: Callable[[Mapping[str, str]], T], given: Mapping[str, str]) -> T | ConfigError:
    """Return the parsed options, or the error in them."""
    try:
        return parse(given)
    except ConfigError as problem:
        return problem


@dataclass
class RangePartition(datasource.InputPartition):
    """The ranges that one task reads; without ``ranges`` if Spark needs a partition and there is nothing to read."""

    ranges: tuple[Range, ...] = ()


class MillstreamSource(datasource.DataSource):
    """Streams of any server that speaks Redis Streams, as rows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._new_table = tables.declared(options) if names.of_a_table(options) else None
        if self._new_table is not None:
            options = tables.to_read(self._new_table, names.BATCH)
        nothing = ConfigError("options 'view', 'mode' and 'hashes' are for reading: leave them out of a write")
        self._reading: opts.Options | ConfigError = nothing
        self._writing: write.SinkOptions | ConfigError = nothing
        chosen = _attempt(dispatch.special_read, options)
        self.special = None if isinstance(chosen, ConfigError) else chosen
        if self.special is not None:
            return
        if not isinstance(chosen, ConfigError):
            options = {name: value for name, value in options.items() if name.lower() not in dispatch.CHOOSING}
        # The environment is read here, on the driver's machine: readers may run elsewhere. Spark does not yet show
        # whether it will read or write, so only options that are invalid for both cause an error here. Example: Spark
        # passes a query's name to the sink, but of the reads only mode 'group' accepts it.
        self._reading = chosen if isinstance(chosen, ConfigError) else _attempt(opts.parse_entries, options)
        self._writing = _attempt(write.parse, options)
        if str(self._reading).startswith(opts.NO_STREAM) and not tables.says_where(options):
            # It may be a table, whose options are known when Spark passes its columns
            self._reading = ConfigError(f"{opts.NO_STREAM}: set .option('stream', 'orders'). {tables.NOT_KEPT}")
            if not options and not url_text.url_of_environment():
                self._writing = ConfigError(f"{opts.NO_STREAM}: set .option('stream', 'orders'). {tables.NOT_WRITTEN}")
            return
        if isinstance(self._reading, ConfigError) and isinstance(self._writing, ConfigError):
            raise self._likelier(options)

    def _likelier(self, options: Mapping[str, str]) -> ConfigError:
        """Return the more useful of two errors if the options are valid neither for a read nor for a write."""
        given = {name.lower() for name in options}
        of_reads = names.options(names.BATCH, names.STREAM, names.VIEW, names.GROUP, names.LOOKUP)
        reads = {name.lower() for name in of_reads}
        writes = {name.lower() for name in names.options(names.WRITE, names.APPEND)}
        reading, writing = self._reading, self._writing
        assert isinstance(reading, ConfigError)
        assert isinstance(writing, ConfigError)
        if given & (writes - reads | {"checkpointlocation"}):
            return writing
        if given & (reads - writes - {"queryname"}):
            return reading
        suggested = "did you mean" in str(writing) and "did you mean" not in str(reading)
        return writing if suggested else reading

    @property
    def parsed(self) -> opts.Options:
        """The options of a read."""
        if isinstance(self._reading, ConfigError):
            raise self._reading
        return self._reading

    @property
    def parsed_sink(self) -> write.SinkOptions:
        """The options of a write."""
        if isinstance(self._writing, ConfigError):
            raise self._writing
        return self._writing

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format(...)`` takes."""
        return "millstream"

    def schema(self) -> StructType | str:
        """Return the columns: an entry's origin, and its fields as a map or, by the option ``fields``, as columns."""
        if self._new_table is None:
            return self._columns()
        if not self._new_table:  # a table gets its options from each query
            return entry_schema(())
        MillstreamSource(tables.to_read(self._new_table, names.STREAM))  # raises errors about the stream now
        return tables.kept(self._columns(), self._new_table)

    def _columns(self) -> StructType:
        """Return all columns that the options choose."""
        if self.special is not None:
            return self.special.schema()
        return entry_schema(self.parsed.fields, headers=self.parsed.headers)

    def _of_table(self, schema: StructType, plain: str) -> "MillstreamSource":
        """Return the source with the options of a table and those of the query."""
        stored = tables.stored(schema)
        if not stored or tables.says_where(self.options):
            return self
        tables.refuse_pushdown(self.options)
        return MillstreamSource(tables.to_read(stored, plain) | dict(self.options))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return the reader for ``spark.read``."""
        source = self._of_table(schema, names.BATCH)
        if source is not self:
            return source.reader(schema)
        if self.special is not None:
            return self.special.reader(schema)
        self.parsed.refuse(names.BATCH, "a batch read")
        if self.parsed.archive is not None:
            from millstream.spark.archiving import reader as union  # noqa: PLC0415 - Arrow and redis only where they are used

            return union.reader(self.parsed, checked_schema(self.parsed, schema))
        kind = FilteredReader if self.parsed.pushdown else BatchReader
        return kind(self.parsed, checked_schema(self.parsed, schema))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for ``spark.readStream``. Its first call raises a problem: see :class:`Refused`."""
        try:
            source = self._of_table(schema, names.STREAM)
            if source is not self:
                return source.streamReader(schema)
            if self.special is not None:
                return self.special.stream_reader(schema)
            self.parsed.refuse(names.STREAM, "a streaming query, which does not end")
            return StreamReader(self.parsed, checked_schema(self.parsed, schema))
        except MillstreamError as problem:
            return Refused(problem)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Return the writer for ``writeStream``."""
        from millstream.spark.write.sink import stream_sink  # noqa: PLC0415 - Arrow and the client only where rows are written

        return stream_sink(self.parsed_sink, schema, overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return the writer for ``write``."""
        from millstream.spark.write.sink import batch_sink  # noqa: PLC0415 - as above

        return batch_sink(self.parsed_sink, schema, overwrite=overwrite)


class _Reads:
    """The part of both readers that tasks run."""

    def __init__(self, parsed: opts.Options, schema: StructType) -> None:
        self._parsed = parsed
        self._schema = schema
        self._layout()  # checks the schema

    def _layout(self) -> "Layout":
        from millstream.spark.arrow.columns import Layout  # noqa: PLC0415 - Arrow and numpy only where rows are made

        return Layout.of(self._schema, headers=self._parsed.headers)

    def read(self, partition: datasource.InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one partition; the same ones in every attempt."""
        assert isinstance(partition, datasource.InputPartition)
        ranges = getattr(partition, "ranges", ())
        if not ranges:
            return iter(())
        from millstream.spark.read.reader import read_ranges  # noqa: PLC0415 - as above

        return read_ranges(self._parsed, self._layout(), ranges)


def _partitions(parsed: opts.Options, ranges: list[Range]) -> list[datasource.InputPartition]:
    """Return the parts of a batch, packed for tasks."""
    return [RangePartition(each) for each in packed(ranges, parsed.min_partitions, parsed.max_per_partition)]


def _planner(parsed: opts.Options) -> "Planner":
    from millstream.spark.read.planner import Planner  # noqa: PLC0415 - the redis client only where it is used

    return Planner(parsed)


class BatchReader(_Reads, datasource.DataSourceReader):
    """A bounded read: from one place (the beginning by default) to another (the present end by default)."""

    _bounds: Bounds | None = None

    def partitions(self) -> list[datasource.InputPartition]:
        """Return the partitions of the whole read, planned once."""
        with closing(_planner(self._parsed)) as planner:
            ranges = planner.bounded(self._parsed.starting or "earliest", self._parsed.ending, self._bounds)
        return _partitions(self._parsed, ranges) or [RangePartition()]


class FilteredReader(BatchReader):
    """A :class:`BatchReader` for one query with filters that limit the read.

    Spark 4.3 keeps a reader that got filters with its ``load()``. It uses the reader for later queries of that
    DataFrame too, also for those without filters. So filters are used only if an option asks for it. In a session
    without ``spark.sql.python.filterPushdown.enabled`` Spark refuses this reader.
    """

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:  # noqa: N802 - Spark's name
        """Keep the bounds that filters set for ids, times and streams; Spark applies all filters again."""
        self._bounds = bounds_of(filters)
        return filters


class Refused(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Placeholder for the source of a query with invalid options.

    If ``streamReader`` raises, Spark 4.3 still stops the reader that it did not get. The resulting
    ``UnboundLocalError`` hides the first error as the last line. So Spark gets this reader, which raises the error at
    its first call.
    """

    def __init__(self, problem: MillstreamError) -> None:
        self._problem = problem

    def _raise(self, *_: object, **__: object) -> NoReturn:
        raise self._problem

    # The partitions too: Spark plans a repeated batch without a new offset
    initialOffset = latestOffset = partitions = read = prepareForTriggerAvailableNow = _raise  # noqa: N815 - Spark's


class StreamReader(_Reads, datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source. Spark keeps one at the driver for planning; tasks get copies and only read."""

    def __init__(self, parsed: opts.Options, schema: StructType) -> None:
        super().__init__(parsed, schema)
        self._planner: Planner | None = None
        self._initial: dict[str, Any] | None = None

    def _plan(self) -> "Planner":
        if self._planner is None:
            self._planner = _planner(self._parsed)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the beginning of a new query. Spark calls this twice, and must get the same."""
        if self._initial is None:
            self._initial = dump(self._plan().begin(self._parsed.starting or "latest"))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the cap of a micro-batch, or its least size: Spark's API takes only one. See :meth:`latestOffset`."""
        most, least = self._parsed.max_entries, self._parsed.min_entries
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the whole run."""
        self._plan().target_now()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; publish that entries before ``start`` are finished."""
        cap = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Trigger.Once reads all entries, whatever the options are.
        least = None if isinstance(limit, ReadAllAvailable) else self._parsed.min_entries
        return dump(self._plan().next_end(load(start), cap, least))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the last known ends of the streams, for the query's progress."""
        return dump(self._plan().latest) or None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[datasource.InputPartition]:
        """Return the partitions of a batch."""
        return _partitions(self._parsed, self._plan().ranges(load(start), load(end)))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark calls this one batch late, and never for the last one; see :meth:`latestOffset`."""

    def stop(self) -> None:
        """Close the connection."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
