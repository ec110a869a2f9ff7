"""Archive and live stream as one table: ``spark.read.format("millstream").option("archive", DIR)``.

The manifest has the id up to which a stream is archived; the stream is read from there on. So no entry is missing
between the two or read twice, even while an archive job runs. A task may find that the job has archived and trimmed its
entries, or merged its file. It then reads the manifest again, and finds them there.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.datasource import Filter as SparkFilter
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.spark.archiving.directory import Folder, NoArchiveError
from millstream.spark.archiving.files import archived
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model import offsets
from millstream.spark.model.bounds import Bounds, bounds_of
from millstream.spark.model.offsets import MAX_PART, ZERO, DataLossError, Id, Position, Range, StreamState
from millstream.spark.model.packing import packed, portions
from millstream.spark.options.read import Options, Where
from millstream.spark.read.pages import Pages
from millstream.spark.read.planner import Planner
from millstream.spark.read.reader import overtaken, report
from millstream.spark.read.stream_info import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("millstream.spark")

PART_BYTES = 64 << 20
"""Approximate bytes of archive files that one task reads."""

_LAST = Id(MAX_PART, MAX_PART)


@dataclass
class ArchivePart(InputPartition):
    """Archive files that one task reads."""

    stream: str  # Key of the stream
    after: Id  # Exclusive lower bound of the ids
    until: Id  # Inclusive upper bound of the ids
    paths: tuple[str, ...]  # Files at the time of planning


@dataclass
class TailPart(InputPartition):
    """Ranges of live streams that one task reads; empty if Spark needs a partition and there is nothing to read."""

    ranges: tuple[Range, ...] = ()


def reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return the reader for these options.

    Spark 4.3 keeps the last reader that got filters with the ``load()`` that made it. It gives that reader's rows to
    every later query of that DataFrame and to its other uses in the same query. So filters are pushed down only where
    an option asks for it.
    """
    return (PushdownReader if options.pushdown else ArchiveReader)(options, schema)


class ArchiveReader(DataSourceReader):
    """Reads archive and stream as a Spark data source."""

    def __init__(self, options: Options, schema: StructType) -> None:
        assert options.archive is not None
        self._options = options
        self._schema = schema
        self._folder = options.archive
        self._bounds = Bounds()
        Layout.of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the read: files, then live entries."""
        plan = _Plan(self._options, Folder(self._folder), self._bounds)
        try:
            found = plan.parts()
        except NoArchiveError as problem:
            raise ConfigError(f"option 'archive': {problem}") from None
        finally:
            plan.close()
        return found or [TailPart()]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one partition; the same ones in every attempt."""
        layout = Layout.of(self._schema)
        folder = Folder(self._folder)
        if isinstance(partition, ArchivePart):
            stream = partition.stream
            pages = archived(folder, stream, partition.after, partition.until, partition.paths, layout.want)
            yield from (layout.batch(stream, page) for page in pages)
        elif isinstance(partition, TailPart):
            for part in partition.ranges:
                pages = tail(self._options, folder, part, layout.want)
                yield from (layout.batch(part.key, page) for page in pages)


class PushdownReader(ArchiveReader):
    """An :class:`ArchiveReader` for one query, with filters; it needs ``spark.sql.python.filterPushdown.enabled``."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:  # noqa: N802 - Spark's name
        """Keep the bounds that filters set for ids; Spark applies all filters again."""
        self._bounds = bounds_of(filters)
        return filters


# --- planning --------------------------------------------------------------------------------------------------------


class _Plan:
    """Plans the partitions of archive and streams, for one moment."""

    def __init__(self, options: Options, folder: Folder, bounds: Bounds) -> None:
        self._options = options
        self._folder = folder
        self._bounds = bounds
        self._info = StreamInfo(options)
        self._planner = Planner(options)

    def close(self) -> None:
        self._info.close()
        self._planner.close()

    def parts(self) -> list[InputPartition]:
        """Return the partitions of a moment without a gap between archive and streams.

        It plans again if the job has archived more meanwhile.
        """
        while True:
            manifest, states = self._moment()
            found = self._planned(manifest, states)
            again = self._folder.read()
            if all(again.place(stream) == manifest.place(stream) for stream in states):
                return found
            # Entries may have been archived and trimmed before the first live entries were read.

    def _planned(self, manifest: ArchiveManifest, states: Mapping[str, StreamState]) -> list[InputPartition]:
        streams = self._streams(manifest, states)
        starts = self._places(self._options.starting or "earliest", "startingOffsets", states, streams, ZERO)
        ends = self._places(self._options.ending, "endingOffsets", states, streams, _LAST)
        files: list[InputPartition] = []
        live: list[Range] = []
        seen = 0
        for stream in streams:
            place, state = manifest.place(stream), states.get(stream)
            wanted = self._bounds.within(starts[stream], ends[stream])
            after, until = wanted.range(_ends(manifest, stream, state)) if self._bounds.wants(stream) else (_LAST, ZERO)
            if after >= until:
                continue
            chosen = manifest.of(stream, after, min(until, place.id))
            seen += len(chosen)
            files += self._file_parts(stream, after, min(until, place.id), chosen)
            if state is not None and max(after, place.id) < min(until, state.last):
                start, end = max(after, place.id), min(until, state.last)
                live.append(Range(stream, start, end, place.n, offsets.estimated_rows(state, start, end)))
        logger.info(
            "archive %s: %d of %d files to read, and %d of %d live streams",
            self._folder.root, seen, sum(file.stream in streams for file in manifest.files), len(live), len(states),
        )  # fmt: skip
        tails = packed(self._planner.parts(live), self._options.min_partitions, self._options.max_per_partition)
        return [*files, *map(TailPart, tails)]

    def _moment(self) -> tuple[ArchiveManifest, Mapping[str, StreamState]]:
        """Return manifest and streams of a moment at which every entry was in the archive or in its stream."""
        manifest = self._folder.read()
        while self._options.live_tail:
            states = self._info.states(self._info.keys())
            problem = next(filter(None, (self._gap(manifest, key, state) for key, state in states.items())), None)
            if problem is None:
                return manifest, {key: state for key, state in states.items() if state is not None}
            again = self._folder.read()
            if again.generation == manifest.generation:
                raise problem
            manifest = again  # the job archived and trimmed between the two reads
        return manifest, {}

    def _gap(
        self, manifest: ArchiveManifest, stream: str, state: StreamState | None
    ) -> DataLossError | ConfigError | None:
        place = manifest.place(stream)
        if state is None and self._options.streams and place.id == ZERO:
            return ConfigError(
                f"option 'stream': {stream!r} is neither on {self._options.shown_url} nor in the archive"
            )
        return gap(self._options, stream, place, state)

    def _streams(self, manifest: ArchiveManifest, states: Mapping[str, StreamState]) -> list[str]:
        named = self._options.streams
        if named:
            return list(named)
        return sorted({*states, *filter(self._options.reads, manifest.places)})

    def _places(
        self, where: Where, option: str, states: Mapping[str, StreamState], streams: Iterable[str], other: Id
    ) -> dict[str, Id]:
        """Return the id of an option in each stream; ``other`` where the option names no position."""
        words = {"earliest": ZERO, "latest": _LAST}
        found = {}
        for stream in streams:
            place = where if isinstance(where, str) else where.get(stream, where.get("*", other))
            if isinstance(place, Position):
                place = place.id
            if place == "latest" and option == "startingOffsets":
                place = states[stream].last if stream in states else _LAST
            found[stream] = words[place] if isinstance(place, str) else place
        return found

    def _file_parts(self, stream: str, after: Id, until: Id, files: Sequence[DataFile]) -> Iterator[ArchivePart]:
        size = PART_BYTES
        if self._options.min_partitions is not None:
            size = min(size, 1 + sum(file.bytes for file in files) // self._options.min_partitions)
        for run in portions(files, attrgetter("bytes"), size):
            # Each part ends with its last file, so that it reads only its own rows, even from merged files.
            low, high = max(after, run[0].first.before), min(until, run[-1].last)
            yield ArchivePart(stream, low, high, tuple(each.path for each in run))


def _ends(manifest: ArchiveManifest, stream: str, state: StreamState | None) -> list[Id]:
    """Return the first and last ids of all readable entries of a stream."""
    files = [file for file in manifest.files if file.stream == stream]
    found = [files[0].first, files[-1].last] if files else []
    return found + ([state.first, state.last] if state is not None and state.first is not None else [])


def gap(options: Options, stream: str, place: ArchivePosition, state: StreamState | None) -> DataLossError | None:
    """Return the error for a stream that does not continue its archive; None if it does, or if options allow a gap."""
    at = Position(ZERO, 0, place.id, place.n, place.holes)
    back = offsets.how_it_went_back(at, state)
    if back is not None:
        return DataLossError(
            f"stream {stream!r} does not follow on its archive, which ends at {place.id} (entry {place.n}): {back}. "
            "Set option 'liveTail' to 'false' to read the archive alone"
        )
    loss = offsets.find_loss(stream, at, state) if state is not None else None
    if loss is None or place.id == ZERO:
        return None  # a stream without archived entries has no gap
    text = f"between the archive and the live stream there is a gap: {loss}"
    if loss.certain and options.fail_on_loss:
        return DataLossError(f"{text}. Set option 'failOnDataLoss' to 'false' to read without them")
    logger.warning("%s; reading goes on", text)
    return None


# --- reading ---------------------------------------------------------------------------------------------------------


def tail(options: Options, folder: Folder, whole: Range, want: Want) -> Iterator[Page]:
    """Yield the live entries of a range; entries that were archived and trimmed meanwhile come from the archive."""
    pages = Pages(options.url, whole.key, whole.start, whole.end, replica=options.from_replica)
    warned = False
    try:
        while not pages.done:
            before = pages.cursor
            pages.ask()
            page, first = pages.decode(pages.receive(), want)
            if not pages.doubtful and overtaken(whole, before, page, first):
                manifest = folder.read()
                if manifest.place(whole.key).id >= before:
                    pages.close()
                    whole = yield from _caught_up(options, folder, manifest, replace(whole, start=before), want)
                    pages = Pages(options.url, whole.key, whole.start, whole.end, replica=options.from_replica)
                    continue
                report(options, whole, warn=not warned)
                warned = True
            if page is not None:
                yield page
    finally:
        pages.close()


def _caught_up(
    options: Options, folder: Folder, manifest: ArchiveManifest, whole: Range, want: Want
) -> Generator[Page, None, Range]:
    """Yield the part of a range that is archived by now; return the later part, checked to continue the archive."""
    while True:
        place = manifest.place(whole.key)
        until = min(place.id, whole.end)
        files = [file.path for file in manifest.of(whole.key, whole.start, until)]
        yield from archived(folder, whole.key, whole.start, until, files, want)
        whole = replace(whole, start=until)
        if until == whole.end:
            return whole
        first, problem = _follows(options, whole, place)
        manifest = folder.read()
        if manifest.place(whole.key) == place:  # nothing more was archived, so nothing more was trimmed
            if problem is not None:
                raise problem
            return replace(whole, first=first)


def _follows(options: Options, whole: Range, place: ArchivePosition) -> tuple[Id | None, DataLossError | None]:
    """Return the first entry of a range at the archive's end, and the error if the stream does not continue it."""
    with closing(StreamInfo(options)) as info:
        first = info.firsts({whole.key: (whole.start, whole.end)})[whole.key]
        return first, gap(options, whole.key, place, info.states([whole.key])[whole.key])
