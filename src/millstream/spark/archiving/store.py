"""The part of an archive job that needs no Spark: commits batches, merges small files, trims, and reports progress.

One store at a time holds the archive's lock. Its manifest is the one on disk, or the previous one while the manifest is
being replaced; trimming relies on that.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from millstream.errors import ConfigError, UsageError
from millstream.failpoints import reach
from millstream.spark.archiving.begun_anew import Entries, other_entry
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.files import TARGET_BYTES, WritePlan, merge
from millstream.spark.archiving.leftovers import as_its_table, sweep
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile, mergeable, rows_of
from millstream.spark.archiving.tables.columns import MOST_COLUMNS, TableColumn, agreed
from millstream.spark.archiving.tables.folders import table_folder
from millstream.spark.archiving.tables.publishing import RETAIN_MS, expire, listed, prepare, publish
from millstream.spark.archiving.tables.shape import Shape, Wanted, choose, part_of
from millstream.spark.archiving.tables.table import TableChangedError, TableFile, TablePlan
from millstream.spark.archiving.trim import Keep, ReplacedError, Trimmed, Trimmer
from millstream.spark.model import offsets
from millstream.spark.model.offsets import ZERO, Position, StreamState, parse_id
from millstream.spark.options import read as opts
from millstream.spark.read.stream_info import StreamInfo
from millstream.texts import plural

_MERGED_AT_ONCE = 100
"""Runs of files that are merged before the manifest names the new files: a kill loses at most this work."""

_STILL = "it is neither archived nor trimmed. Archive it into a new directory"

UNTRIMMED = "nothing is trimmed"
"""The obstacle to trimming in a stream that a job does not trim."""

_NAMED = 10
"""Most columns that a message names."""


@dataclass(frozen=True)
class ArchiveSettings:
    """The settings of an archive job."""

    url: str = field(repr=False)  # URL of the server
    streams: tuple[str, ...]  # Keys of the streams; empty with a pattern or a partitioned stream
    to: Path | str  # Location of the archive: a directory, or a URL in an object store
    pattern: str | None = None  # Glob of keys, instead of ``streams``
    once: bool = False  # True to end when the entries present at the start are archived
    every: float = 10.0  # Seconds between batches
    per_batch: int = 200_000  # Largest number of entries in a batch
    trim: bool = True  # True to trim the streams
    keep: Keep = field(default_factory=Keep)  # Archived entries that stay in a stream
    skip_lost: bool = False  # True to continue if other clients trimmed entries before they were archived
    target_bytes: int = TARGET_BYTES  # Approximate size of a file
    wanted: Wanted = field(default_factory=Wanted)  # Form of the archive
    retain_ms: int = RETAIN_MS  # Milliseconds for which merged files are kept, if the archive has tables
    partitioned: str | None = None  # Name of a partitioned stream, instead of ``streams``

    @property
    def source(self) -> dict[str, str]:
        """The options for reading these streams."""
        named = {"stream": ",".join(self.streams), "streamPattern": self.pattern, "partitionedStream": self.partitioned}
        return {"url": self.url} | {name: value for name, value in named.items() if value}


@dataclass
class Progress:
    """The result of a job for one stream."""

    stream: str  # Key of the stream
    archived: int = 0  # Entries archived by this job
    upto: str = "0-0"  # Last archived id
    total: int = 0  # Entries in the archive
    trimmed: int = 0  # Entries removed from the stream by this job
    left: int | None = None  # Entries in the stream after the last trim
    held_by: str = ""  # Reason why the next entry cannot be trimmed, in words
    news: list[str] = field(default_factory=list)  # Messages about new columns, and about values that fit none


class ArchiveStore:
    """The archive of a running job."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings
        self._trimmer = Trimmer(settings.url, settings.keep)
        self._progress: dict[str, Progress] = {}
        self._fresh: deque[str] = deque()
        self._doubtful: frozenset[str] = frozenset()
        """Streams with entries that the manifest counts as archived, but that are in no file of it."""
        self.still: dict[str, str] = {}
        """Streams that are no longer archived or trimmed, with the reasons; the job continues with the others."""
        self._unfit: set[tuple[str, str]] = set()
        """Streams and fields for which it was reported that values fit no column."""
        self.folder = Folder(settings.to)
        self.manifest = ArchiveManifest()
        self._counted = self.manifest, Counter[str]()
        self._safe = self.manifest
        """The last manifest that all tables are known to match: streams are trimmed up to it."""
        self.busy = threading.Lock()
        """Held while a batch is archived: a job ends between batches, not during one."""
        self._closed = False
        self._took = False
        """True once a batch was begun: its tasks may write files for a while."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the archive: lock it, read its manifest, remove the leftovers of a killed job."""
        with self.folder.locked():
            there = self.folder.read() if self.folder.storage.exists(MANIFEST) else None
            shape = self._shape(there)
            prepare(shape, self.folder.storage)
            self.manifest = self.folder.begin(shape)
            try:
                self._publish_first()
                self._sweep()
                self._drop_retired()
                for stream in self.manifest.places:
                    self._progress_of(stream)
                yield
            except BaseException:
                if there is None and not self._took:
                    self.folder.forget()
                raise
            finally:
                self._trimmer.close()

    def _shape(self, there: ArchiveManifest | None) -> Shape:
        """Return the form to work in; an archive without archived entries may still get another form."""
        wanted = self._settings.wanted
        if there is not None:
            try:
                return self._of_this_table(choose(there.shape, wanted))
            except ConfigError:
                if there.places:
                    raise
        shape = choose(None, wanted)
        return shape if shape.format == "parquet" else replace(shape, table=self._settings.partitioned)

    def _of_this_table(self, shape: Shape) -> Shape:
        """Return the form of an archive; raise an error if its one table is that of other streams."""
        if shape.table in (None, self._settings.partitioned):
            return shape
        raise ConfigError(
            f"the archive is one table, that of the partitioned stream {shape.table!r}. Give --partitioned "
            f"{shape.table}, or archive into a new directory."
        )

    def _sweep(self) -> None:
        with closing(StreamInfo(opts.parse({"url": self._settings.url, "streamPattern": "*"}))) as info:
            swept = sweep(self.folder, self.manifest, self._streams(), info.entries)
        self.manifest = swept.manifest
        self._doubtful = swept.doubtful
        for stream, text in swept.news.items():
            self._tell(stream, text)

    def _streams(self) -> set[str]:
        """Return the streams of the archive, and those that this job names, which may be new."""
        return {*self.manifest.places, *self._settings.streams}

    # --- archived entries --------------------------------------------------------------------------------------------

    def inspect(self, states: Mapping[str, StreamState | None], entries: Entries) -> None:
        """Find the streams that continue at the archive's end; the others are left alone from now on."""
        for stream, state in states.items():
            at = self.manifest.places.get(stream)
            if at is None:
                self._tell_removed(stream, state)
            elif stream not in self.still and (reason := self._contradiction(stream, at, state, entries)):
                self.stand_still(stream, reason)

    def stand_still(self, stream: str, reason: str) -> None:
        """Stop archiving and trimming a stream in this job."""
        self.still[stream] = reason
        self._fresh.append(reason)

    def note(self, error: str) -> None:
        """Stop archiving a stream that went back, if an error of the source reports that."""
        for stream in self._streams() - set(self.still):
            _, found, reason = error.partition(f"stream {stream!r} went back: ")
            if found:
                reason = reason.partition(". It was")[0].partition(". Start")[0]
                self.stand_still(stream, f"{found}{reason}. It was deleted and created again; {_STILL}")

    def _tell_removed(self, stream: str, state: StreamState | None) -> None:
        if state is not None and state.removed:
            entries = plural(state.removed, "entry was", "entries were")
            self._tell(stream, f"{entries} trimmed or deleted before the archive begins, which has none of them")

    def _contradiction(
        self, stream: str, at: ArchivePosition, state: StreamState | None, entries: Entries
    ) -> str | None:
        """Return the reason why entries would wrongly count as archived, or be skipped; None without one."""
        reason = offsets.how_it_went_back(Position(ZERO, 0, at.id, at.n), state)
        if reason is not None:
            return (
                f"stream {stream!r} went back: it is archived up to {at.id} (entry {at.n}), but {reason}. It was "
                f"deleted and made again, or restored from an older state; {_STILL}"
            )
        if state is None or state.first is None or state.first > at.id:
            return None
        other = other_entry(self.folder, self.manifest, stream, entries)
        if other is None:
            return None
        return (
            f"stream {stream!r} is not the one that was archived: its entry {other} is not in the archive as it is in "
            f"the stream, and the archive goes up to {at.id}. It was deleted and created again, or the archive's "
            f"manifest was edited: restore the manifest in that case; else {_STILL}"
        )

    def take(
        self, label: str, ranges: Mapping[str, Position], write: Callable[[WritePlan, str], Sequence[DataFile]]
    ) -> None:
        """Archive one batch: all of it, or nothing."""
        with self.busy:
            if self._refuses(ranges):
                return
            self._took = True
            reach("batch")
            files, columns = self._written(label, write)
            if self._refuses(ranges):
                self.folder.remove(file.path for file in files)
                return
            self._check_rows(ranges, files)
            self.folder.storage.sync_names(*(file.path for file in files))
            reach("written")
            begun = {file.stream for file in self.manifest.files}
            self._switch(self.manifest.with_batch(ranges, files, columns))
            rows = rows_of(files)
            for stream in {*ranges, *rows}:
                self._progress_of(stream).archived += rows[stream]
            for stream in sorted({*rows} - begun):
                self._tell_folder(stream)
            self._publish({file.stream for file in files})
            self._merge(label)
            self._drop_retired()

    def _refuses(self, ranges: Mapping[str, Position]) -> bool:
        """Return True if the next query must archive this batch: this query ends, or reads stopped streams."""
        self._closed = self._closed or any(stream in self.still for stream in ranges)
        return self._closed

    def _check_rows(self, ranges: Mapping[str, Position], files: Sequence[DataFile]) -> None:
        """Refuse a batch with more entries of a stream than were added to it: they are of a new stream of that name."""
        rows = rows_of(files)
        for stream, at in ranges.items():
            if rows[stream] > at.n - at.start_n:
                self.folder.remove(file.path for file in files)
                reason = (
                    f"stream {stream!r} went back: {plural(rows[stream], 'entry follows', 'entries follow')} "
                    f"{at.start}, and only {at.n - at.start_n} were added. It was deleted and created again; {_STILL}"
                )
                self.stand_still(stream, reason)
                raise UsageError(reason)

    def _written(
        self, label: str, write: Callable[[WritePlan, str], Sequence[DataFile]]
    ) -> tuple[Sequence[DataFile], dict[str, tuple[TableColumn, ...]]]:
        """Return a batch's files, those of a table with the same columns, and the columns of each table."""
        plan = self._plan()
        while True:
            files = write(plan, label)
            tables: dict[str, list[DataFile]] = {}
            for file in files:
                tables.setdefault(plan.shape.table_of(file.stream), []).append(file)
            found = {
                name: agreed(plan.of(name), [file.columns for file in of_table]) for name, of_table in tables.items()
            }
            columns = {name: made for name, (made, _) in found.items()}
            if all(same for _, same in found.values()):
                self._tell_columns({tables[name][0].stream: made for name, made in columns.items()})
                self._tell_unfit(files)
                self._tell_absent(files)
                return files, columns
            self.folder.remove(file.path for file in files)
            plan = replace(plan, columns={**plan.columns, **columns})

    def _plan(self) -> WritePlan:
        return WritePlan(self.folder.root, self.manifest.shape, self.manifest.columns, self._settings.target_bytes)

    def _tell_columns(self, columns: Mapping[str, tuple[TableColumn, ...]]) -> None:
        for stream, now in columns.items():
            before = self.manifest.columns.get(self.manifest.shape.table_of(stream), ())
            if not before:
                self._tell_names(stream, now)
            for column in now[len(before) :] if before else ():
                known = [one.name for one in before if one.field == column.field]
                beside = f": its values no longer fit {', '.join(known)}" if known else ""
                text = f"new column {column.name} ({column.type}) for field {column.field!r}{beside}"
                self._tell(stream, text)
            if len(now) == MOST_COLUMNS > len(before):
                self._tell(stream, f"its table has {MOST_COLUMNS} columns and gets no more; {self._whole()}")

    def _tell_names(self, stream: str, columns: Sequence[TableColumn]) -> None:
        """Report the columns of a new table with names other than their fields', in one sentence with some of them."""
        other = [f"{column.name} for {column.field!r}" for column in columns if column.name != column.field]
        if other:
            more = [f"and {len(other) - _NAMED} more"] if len(other) > _NAMED else []
            self._tell(stream, f"columns with other names than their fields: {', '.join(other[:_NAMED] + more)}")

    def _tell_unfit(self, files: Iterable[DataFile]) -> None:
        """Report values that fit no column, once for each field: a producer that sends one sends more."""
        unfit: Counter[tuple[str, str]] = Counter()
        for file in files:
            unfit.update({(file.stream, name): count for name, count in file.unfit.items()})
        for (stream, name), count in unfit.items():
            if (stream, name) not in self._unfit:
                self._unfit.add((stream, name))
                values = plural(count, "value")
                self._tell(stream, f"{values} of field {name!r} in a batch fit none of its columns; {self._whole()}")

    def _tell_absent(self, files: Sequence[DataFile]) -> None:
        """Report fields that the form names but none of a stream's first entries has: a name may be misspelt."""
        for stream in sorted({file.stream for file in files} - {file.stream for file in self.manifest.files}):
            first = [file for file in files if file.stream == stream]
            rows, seen = sum(file.rows for file in first), frozenset[str]().union(*(file.seen for file in first))
            if names := [repr(name) for name, _ in self.manifest.shape.fields if name not in seen]:
                which = f"field{'s' if len(names) > 1 else ''} {', '.join(names)}"
                self._tell(
                    stream,
                    f"none of its first {plural(rows, 'entry', 'entries')} has the {which}, which the archive's form "
                    "names: where that is misspelt, archive into a new directory",
                )

    def _tell_folder(self, stream: str) -> None:
        folder = table_folder(self.manifest.shape, stream)
        if folder.removeprefix("stream=") != stream:
            self._tell(stream, f"it is in the folder {folder}")

    def _whole(self) -> str:
        return f"such entries are whole in the column {'fields' if self.manifest.shape.raw else 'entry_json'}"

    def _tell(self, stream: str, text: str) -> None:
        sentence = f"stream {stream!r}: {text}"
        self._progress_of(stream).news.append(sentence)
        self._fresh.append(sentence)

    def fresh_news(self) -> Iterator[str]:
        """Yield the messages since the last call; batches may be archived meanwhile."""
        while self._fresh:
            yield self._fresh.popleft()

    def take_again(self) -> None:
        """Accept batches again, because another query begins."""
        with self.busy:
            self._closed = False

    def take_no_more(self) -> None:
        """Accept no further batch; return when the present one is archived."""
        with self.busy:
            self._closed = True

    def _switch(self, new: ArchiveManifest) -> None:
        self.folder.switch(self.manifest, new)
        self.manifest = new

    def _progress_of(self, stream: str) -> Progress:
        found = self._progress.setdefault(stream, Progress(stream))
        found.upto = str(self.manifest.place(stream).id)
        found.total = self._rows()[stream]
        return found

    def _rows(self) -> Counter[str]:
        """Return the archived entries by stream; cached for each manifest, since streams and files may be many."""
        counted, rows = self._counted
        if counted is not self.manifest:
            rows = rows_of(self.manifest.files)
            self._counted = self.manifest, rows
        return rows

    def _publish(self, streams: Iterable[str]) -> None:
        """Update the tables of streams to the manifest; from then on their entries may be trimmed."""
        if self.manifest.shape.format != "parquet":
            for name in dict.fromkeys(map(self.manifest.shape.table_of, streams)):
                plan = self._table(name)
                if plan.files:
                    publish(plan, self.folder.storage)
        self._safe = self.manifest

    def _publish_first(self) -> None:
        """Update the tables to the manifest, or the manifest to tables that are newer, as after a restore."""
        tables: dict[str, list[str]] = {}
        for stream in sorted({*self._streams(), *self._matching()}):
            tables.setdefault(self.manifest.shape.table_of(stream), []).append(stream)
        for streams in tables.values():
            try:
                for stream in streams:
                    if stream not in self.manifest.places:
                        self._follow_table(stream)
                self._publish(streams)
            except TableChangedError:
                followed = [self._follow_table(stream) for stream in streams]
                if not any(followed):
                    raise
                self._publish(streams)

    def _matching(self) -> list[str]:
        if self._settings.streams or self.manifest.shape.format == "parquet":
            return []
        with closing(StreamInfo(opts.parse(self._settings.source))) as info:
            return info.keys()

    def _follow_table(self, stream: str) -> bool:
        """Add a table's changes that the manifest lacks; return True if there were any."""
        plan = self._table(self.manifest.shape.table_of(stream))
        there = listed(plan, self.folder.storage)
        made = as_its_table(self.folder, self.manifest, stream, plan, there, int(time.time() * 1000))
        if made is None:
            return False
        before, place = self._rows()[stream], made.places[stream]
        with closing(StreamInfo(opts.parse({"url": self._settings.url, "stream": stream}))) as info:
            state = info.states([stream])[stream]
            if state is not None and state.last >= place.id:
                most = state.added - info.walk(stream, place.id, state.last, stride=1 << 62)[1]
                place = replace(place, holes=place.holes + max(0, most - place.n - place.holes))
        self._switch(replace(made, places={**made.places, stream: place}))
        self._tell(
            stream,
            f"the manifest was older than the table, as one of a backup is: {self._rows()[stream] - before} entries up "
            f"to {place.id} that the table has were taken over",
        )
        return True

    def _table(self, name: str) -> TablePlan:
        """Return the plan of a table by its name: a stream, or the one that all streams share."""
        manifest = self.manifest
        place = table_folder(manifest.shape, name)
        folder = f"{place}/"
        files = [
            TableFile(file.path.removeprefix(folder), file.stream, file.rows, file.bytes, file.first.ms, file.last)
            for file in manifest.files
            if manifest.shape.table_of(file.stream) == name
        ]
        retired = frozenset(path.removeprefix(folder) for path, _ in manifest.retired if path.startswith(folder))
        columns = manifest.columns.get(name, ())
        by_path = {file.path: file for file in files}
        return TablePlan(name, place, manifest.shape, columns, by_path, retired, manifest.generation)

    def _merge(self, label: str) -> None:
        """Merge small files, many runs for each change of the manifest, which must be written as a whole."""
        kept = self.manifest.shape.format != "parquet"
        runs = list(self._mergeable())
        for begin in range(0, len(runs), _MERGED_AT_ONCE):
            merged = self.manifest
            some = runs[begin : begin + _MERGED_AT_ONCE]
            for run in some:
                new = merge(self._plan(), run, f"{label}-merged")
                self.folder.storage.sync_names(*(file.path for file in new))
                reach("merged")
                merged = merged.with_merged(run, new, int(time.time() * 1000) if kept else None)
            self._switch(merged)
            self._publish({run[0].stream for run in some})
            if not kept:  # a reader that began earlier finds its rows in the new file
                self.folder.remove(file.path for run in some for file in run)

    def _drop_retired(self) -> None:
        """Remove merged files that no reader of a table can still be reading."""
        before = int(time.time() * 1000) - self._settings.retain_ms
        old = [path for path, when in self.manifest.retired if when < before]
        if not old:
            return
        for name in dict.fromkeys(map(self.manifest.shape.table_of, self.manifest.places)):
            if any(path.startswith(f"{self._table(name).folder}/") for path in old):
                expire(self._table(name), self.folder.storage, before)
                reach("expired")
        self._switch(self.manifest.without_retired(before))
        self._safe = self.manifest
        self.folder.remove(old)

    def _mergeable(self) -> Iterator[list[DataFile]]:
        shape = self.manifest.shape
        for (stream, part), files in groupby(
            self.manifest.files, lambda file: (file.stream, part_of(shape, file.first.ms))
        ):
            closed = part_of(shape, self.manifest.place(stream).id.ms) > part  # the partition can no longer grow
            yield from mergeable(list(files), closed=closed, target=self._settings.target_bytes)

    # --- trimmed entries ---------------------------------------------------------------------------------------------

    def trim(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Remove archived entries that no group needs from the streams, and count the remaining ones."""
        manifest = self._safe
        if self._settings.trim:
            self.folder.see()
        for stream in self._mine(manifest.places):
            progress = self._progress_of(stream)
            if not self._settings.trim or stream in self._doubtful or stream in self.still:
                progress.left = self._trimmer.left(stream)
                progress.held_by = UNTRIMMED if progress.left else ""
                continue
            try:
                check = partial(self._check_first, stream)
                found = self._trimmer.trim(stream, manifest.places[stream], check, stop)
            except ReplacedError as error:
                self.stand_still(stream, str(error))
                continue
            progress.trimmed += found.count
            progress.left, progress.held_by = found.left, found.held_by

    def _check_first(self, stream: str, first: str) -> None:
        """Raise if a stream with this first entry is not the archived one."""
        if first and parse_id(first) <= self._safe.place(stream).id:
            with closing(StreamInfo(opts.parse({"url": self._settings.url, "stream": stream}))) as info:
                reason = self._contradiction(
                    stream, self._safe.place(stream), info.states([stream])[stream], info.entries
                )
            if reason:
                raise ReplacedError(reason)

    def look(self, stream: str, archived: ArchivePosition) -> Trimmed:
        """Return the result of a trim, without trimming, if the stream were archived up to this position."""
        return self._trimmer.look(stream, archived)

    def _mine(self, streams: Iterable[str]) -> list[str]:
        """Return the archive's streams that belong to this job; other streams may be deleted on purpose."""
        named = self._settings.streams
        return [stream for stream in sorted(streams) if not named or stream in named]

    def report(self) -> list[Progress]:
        """Return the result of the job, stream by stream."""
        return [self._progress[stream] for stream in self._mine(self._progress)]
