"""The archive job: a Structured Streaming query with batches that the store commits, and trimming beside it.

Only the manifest decides up to which entry a stream is archived. Each run has its own checkpoint, which begins at the
manifest's positions and is removed afterwards. So no second record can be ahead of the manifest. A query of a killed
driver may run on for a moment, but it shares no file with the next one. Within a run, the ranges of a batch come from
the offset that Spark logs before it runs the batch.
"""

import json
import logging
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import MillstreamError, NotFoundError, UsageError
from millstream.paths import archive_place
from millstream.spark.archiving.directory import MANIFEST, SCRATCH, Folder
from millstream.spark.archiving.files import MADE, SOURCE_SCHEMA, WritePlan, file_of, write_batches
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.archiving.store import UNTRIMMED, ArchiveSettings, ArchiveStore, Progress
from millstream.spark.archiving.tables.shape import Wanted, part_of
from millstream.spark.model.offsets import MAX_PART, ZERO, Id, Offset, StreamState, load
from millstream.spark.monitoring.error_text import last_words
from millstream.spark.options import read as opts
from millstream.spark.read.stream_info import StreamInfo
from millstream.texts import plural

Tell = Callable[[str, int, int], None]
"""Reports progress: the name of the activity, the amount done, and the total."""

logger = logging.getLogger("millstream.spark")

LOOK_SECONDS = 0.2
_NEW_SECONDS = 30.0  # seconds between searches for new streams, while the query reads named streams
PARTS = 500
"""Approximate partitions of a batch: their files can be written and added to a table in some seconds."""

_SLICES, _ROUNDS = 64, 8
"""Slices of a stream's time that are searched for entries, and most rounds of slicing the non-empty ones again."""

_OURS = re.compile(
    r"(?:Config|Usage|DataLoss|NotFound|NotLetIn|NotReached|Storage|ObjectStore|NoConditionalPut)Error: "
)


class StandingStillError(MillstreamError):
    """Some streams are not the ones that were archived before, so the job neither archived nor trimmed them.

    It archived the others. The message has the names of those streams and the reasons.

    What to do: archive each of them into a new directory, or leave it out.
    """


class ArchiveError(MillstreamError):
    """Spark ended the job; the message is the last line of Spark's error.

    What to do: correct the cause in Spark's message, and run the job again. It continues after the archived entries.
    """


def archive(
    url: str,
    *streams: str,
    to: str | Path,
    spark: SparkSession | None = None,
    stop: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> list[Progress]:
    """Move streams to Parquet, Delta or Iceberg and trim them, as ``millstream archive`` does.

    For example::

        millstream.spark.archive("redis://127.0.0.1:6400/0", "orders", to="/data/archive", format="delta")

    Args:
        url: The server's URL.
        streams: Their keys.
        to: The archive's place: a path of this machine, a ``file:`` URL, or ``s3://``, ``gs://`` or ``abfss://``.
        spark: The session; a local one is made unless given.
        stop: As in :func:`run`.
        settings: The form of the archive (``format``, ``partition``, ``raw``, ``fields``, ``schema``, ``catalog``: see
            :class:`millstream.spark.archiving.tables.shape.Wanted`), and others of
            :class:`millstream.spark.archiving.store.ArchiveSettings`; ``once`` is true unless given.

    Returns:
        The result by stream.

    Raises:
        ConfigError: Spark finds no usable Java, ``to`` cannot hold an archive, or the archive there has another form;
            and those of :func:`run`.
    """
    forms = {name: settings.pop(name) for name in [each.name for each in fields(Wanted)] if name in settings}
    given: dict[str, Any] = {"once": True, "wanted": Wanted(**forms)} | settings
    chosen = ArchiveSettings(url, streams, archive_place(to), **given)
    from millstream.spark.sessions.local import session  # noqa: PLC0415 - most runs, and ``look``, need no PySpark

    return run(chosen, spark or session("millstream archive"), stop, lambda _what, _done, _all: None)


def run(
    settings: ArchiveSettings,
    spark: SparkSession,
    stop: Callable[[], bool],
    tell: Tell,
    say: Callable[[str], None] = logger.info,
) -> list[Progress]:
    """Run an archive job until it is complete (``once``) or ``stop`` returns True.

    Returns:
        The result by stream.
    """
    store = ArchiveStore(settings)
    with store.open():
        return _ArchiveRun(settings, spark, store, tell, say).drive(stop)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The work that a job would have on one stream now."""

    stream: str  # Key of the stream
    archive: int  # Entries that would be archived
    trim: int  # Entries that would then be removed from the stream
    left: int  # Entries that would stay
    held_by: str  # Reason why the first of them cannot be trimmed, in words


def look(settings: ArchiveSettings) -> list[Outlook]:
    """Return the work of a job if it began now. Changes nothing and does not start Spark."""
    store = ArchiveStore(settings)
    if store.folder.storage.exists(MANIFEST):
        store.manifest = store.folder.read()
    with closing(StreamInfo(opts.parse(settings.source))) as info:
        states = info.states(info.keys())
        store.inspect(states, info.entries)
        return [_outlook(settings, store, info, stream, state) for stream, state in sorted(states.items())]


def _outlook(
    settings: ArchiveSettings, store: ArchiveStore, info: StreamInfo, stream: str, state: StreamState | None
) -> Outlook:
    if stream in store.still:
        return Outlook(stream, 0, 0, 0 if state is None else state.length, store.still[stream])
    archive = waiting(store, stream, state)
    assert state is not None
    if not settings.trim:
        return Outlook(stream, archive, 0, state.length, UNTRIMMED if state.length else "")
    found = store.look(stream, ArchivePosition(state.last, state.added))
    trim = 0
    if found.limit is not None:
        trim = info.walk(stream, ZERO, found.limit.before, stride=1 << 62)[1]
    keep = settings.keep.entries
    if keep is not None and state.length - trim < keep:
        kept = f"the newest {plural(keep, 'entry is', 'entries are')} kept"
        trim, found = max(0, state.length - keep), replace(found, held_by=kept)
    return Outlook(stream, archive, trim, state.length - trim, found.held_by if state.length > trim else "")


def waiting(store: ArchiveStore, stream: str, state: StreamState | None) -> int:
    """Return the number of entries of a stream that are not archived yet."""
    if state is None:
        raise NotFoundError(f"stream {stream!r} does not exist on the server: correct the name")
    known = store.manifest.places.get(stream)
    return max(0, state.added - (known.n if known else state.removed))


def partitions_ahead(
    manifest: ArchiveManifest, stream: str, state: StreamState | None, firsts: Callable[[str, Id, Id], Id | None]
) -> int:
    """Return an upper bound on the number of table partitions for the entries to archive.

    If the bound may be too high, slices of the time are examined: one entry of another year must not count as years of
    partitions.
    """
    if state is None or state.first is None:
        return 0
    begin, end = max(state.first, manifest.place(stream).id).ms, state.last.ms

    def between(first: int, last: int) -> int:
        return max(0, part_of(manifest.shape, last) - part_of(manifest.shape, first) + 1)

    whole = between(begin, end)
    spans = [(begin, end)] if begin <= end else []
    for _ in range(_ROUNDS):
        if sum(between(*span) for span in spans) <= PARTS:
            break
        step = sum(last - first for first, last in spans) // _SLICES + 1
        slices = [(at, min(last, at + step - 1)) for first, last in spans for at in range(first, last + 1, step)]
        spans = [each for each in slices if firsts(stream, Id(each[0], 0).before, Id(each[1], MAX_PART)) is not None]
        if 2 * len(spans) > len(slices):  # nearly all slices have entries
            break
    return min(whole, sum(between(*span) for span in spans))


def batch_size(most: int, entries: int, parts: int) -> int:
    """Return the number of entries for a batch of about :data:`PARTS` partitions, each with a file or more.

    A job shows its progress after each batch, and loses the unfinished batch if it is killed. One batch with a year's
    hours takes minutes. An entry has one partition, so batches need never be smaller than that.
    """
    return most if parts <= PARTS else min(most, max(PARTS, entries * PARTS // parts))


class _ArchiveRun:
    """One run of a job."""

    def __init__(
        self,
        settings: ArchiveSettings,
        spark: SparkSession,
        store: ArchiveStore,
        tell: Tell,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._store = store
        self._tell = tell
        self._say = say
        self._name = uuid.uuid4().hex[:8]
        self._scratch = _scratch(store.folder)
        self._failed: BaseException | None = None
        self._named = frozenset[str]()  # streams that the query reads by name
        self._still = frozenset[str]()  # streams that were set aside when the query began
        self._total = 0

    def drive(self, stop: Callable[[], bool]) -> list[Progress]:
        shutil.rmtree(self._scratch, ignore_errors=True)
        while not self._ran(stop):
            self._name = uuid.uuid4().hex[:8]
        self._store.trim(stop)
        if self._settings.once and self._store.still:
            raise StandingStillError("; ".join(self._store.still.values()))
        return self._store.report()

    def _ran(self, stop: Callable[[], bool]) -> bool:
        """Run one query to its end; return False if another query with other streams must follow."""
        self._store.take_again()
        query = self._start()
        try:
            return self._trim_beside(query, stop)
        except Exception as error:
            if not self._spark_runs():
                return self._without_spark(stop)
            self._store.note(str(error))
            if not (isinstance(error, MillstreamError) and self._has_still()):
                raise
            return False
        finally:
            self._store.take_no_more()
            self._end(query)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._tell_progress()

    def _end(self, query: StreamingQuery) -> None:
        try:
            query.stop()
        except Exception:
            if self._spark_runs():
                raise

    def _spark_runs(self) -> bool:
        """Return True if Spark's Java process still runs: the signal that ends a job may have ended it too."""
        java = getattr(self._spark, "_jsc", None)
        try:
            return java is None or not java.sc().isStopped()
        except Exception:  # noqa: BLE001 - any error of the bridge to an ended process
            return False

    @staticmethod
    def _without_spark(stop: Callable[[], bool]) -> bool:
        """Return True if the job was to stop anyway when Java ended; else raise :class:`ArchiveError`."""
        if stop():
            return True
        raise ArchiveError(
            "Spark's Java process ended before the job: it was killed, or the memory was too small. Nothing is lost; "
            "run this again"
        ) from None

    def _start(self) -> StreamingQuery:
        source = self._spark.readStream.format("millstream").options(**self._options())
        writer = source.schema(SOURCE_SCHEMA).load().writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", f"file://{self._scratch}/{self._name}")
        if self._settings.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self._settings.every * 1000)} milliseconds").start()

    def _options(self) -> dict[str, str]:
        """Return the options of the read, with the archive's position in each stream."""
        settings = self._settings
        common = settings.source | {
            "maxEntriesPerTrigger": str(settings.per_batch),
            "failOnDataLoss": "false" if settings.skip_lost else "true",
        }
        self._total = sum(one.archived for one in self._store.report())
        with closing(StreamInfo(opts.parse(common))) as info:
            there = info.keys()
            states = info.states(there)
            self._store.inspect(states, info.entries)
            there = [stream for stream in there if stream not in self._store.still]
            if not there and self._store.still:
                raise StandingStillError("; ".join(self._store.still.values()))
            places = self._store.manifest.places
            starts: dict[str, Any] = {}
            parts = 0
            for stream in there:
                starts[stream] = places[stream].raw if stream in places else "earliest"
                self._total += waiting(self._store, stream, states[stream])
                if settings.once:
                    parts += partitions_ahead(self._store.manifest, stream, states[stream], info.first_in)
        self._named, self._still = frozenset(there), frozenset(self._store.still)
        if settings.streams or self._store.still:  # a pattern would include streams that were set aside
            ways = {"streamPattern", "partitionedStream"}
            common = {name: value for name, value in common.items() if name not in ways}
            common["stream"] = ",".join(there)
        common["maxEntriesPerTrigger"] = str(batch_size(settings.per_batch, self._total, parts))
        return common | {"startingOffsets": json.dumps(starts) if starts else "earliest"}

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Archive one micro-batch; Spark calls it."""
        try:
            ranges = self._offset(number)
            self._store.take(f"{self._name}-{number:06d}", ranges, partial(_write, frame))
        except BaseException as reason:
            self._failed = reason  # Spark would only pass on its text
            raise

    def _offset(self, number: int) -> Offset:
        """Return the ranges of the batch, as Spark has logged them."""
        path = self._scratch / self._name / "offsets" / str(number)
        lines = path.read_text().splitlines()
        if lines[0] != "v1" or len(lines) != 3:
            raise UsageError(f"Spark wrote an offset log that is not known here ({lines[0]}): nothing was archived")
        return load(json.loads(lines[2]))

    def _trim_beside(self, query: StreamingQuery, stop: Callable[[], bool]) -> bool:
        """Trim while the query runs: after each batch, and at intervals, since groups advance without new entries.

        Returns:
            False if the query must be replaced by one with other streams.
        """
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - only where Spark runs

        trimmed_at = looked_at = time.monotonic()
        generation = self._store.manifest.generation
        while not stop():
            try:
                ended = query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type] # fractions work, the stub says int
            except StreamingQueryException as error:
                raise self._reason(error) from None
            now, there = time.monotonic(), self._store.manifest.generation
            if there != generation or now - trimmed_at > self._settings.every:
                self._store.trim(stop)
                trimmed_at, generation = now, there
            self._tell_progress()
            if ended:
                return True
            if self._has_still():
                return False
            if now - looked_at > _NEW_SECONDS:
                looked_at = now
                if self._has_new_streams():
                    return False
        return True

    def _has_still(self) -> bool:
        """Return True if streams were put aside since this query began."""
        return self._still != self._store.still.keys()

    def _has_new_streams(self) -> bool:
        """Return True if there are streams that a query by names does not read."""
        if self._settings.streams or not self._store.still:
            return False
        with closing(StreamInfo(opts.parse(self._settings.source))) as info:
            return not self._named.union(self._store.still).issuperset(info.keys())

    def _tell_progress(self) -> None:
        done = sum(one.archived for one in self._store.report())
        self._tell("archived", done, max(done, self._total))
        for text in self._store.fresh_news():
            self._say(text)

    def _reason(self, error: Exception) -> BaseException:
        """Return the error that really ended the query."""
        if self._failed is not None and isinstance(self._failed, MillstreamError | OSError):
            return self._failed
        text, lost, _ = last_words(error).partition(". Set option 'failOnDataLoss'")
        return ArchiveError(_OURS.sub("", text) + (". --skip-lost continues without them" if lost else ""))


def _scratch(folder: Folder) -> Path:
    """Return the place of a run's checkpoint: the archive's directory or, in an object store, the driver's own disk."""
    local = folder.storage.local
    return Path(tempfile.mkdtemp(prefix="millstream-archive-")) if local is None else local / SCRATCH


def _write(frame: DataFrame, plan: WritePlan, label: str) -> Sequence[DataFile]:
    """Have Spark's tasks write a batch; return its files."""
    made = frame.mapInArrow(partial(write_batches, plan, label), MADE)
    return [file_of(row.file) for row in made.collect()]
