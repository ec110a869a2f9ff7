"""Spark queries and archives, as they reported themselves. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from millstream.ops.streams.status import StreamStatus
from millstream.ops.words import NEVER, milliseconds, order
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile

STILL_MS = 300_000
"""A query makes no progress if it is silent for this time, and for three times as long as it ever was."""


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """The position of a query in one stream."""

    stream: str  # Its key
    id: str  # Id of the last entry in a finished batch
    n: int  # Entries that had been added to the stream up to there
    latest_n: int | None  # Entries that had been added in all when the batch ended; None where that is not known

    @property
    def at_ms(self) -> int:
        """The time at which that entry was added, wall milliseconds."""
        return milliseconds(self.id)

    @property
    def behind(self) -> int | None:
        """Entries after it when the batch ended; None where that is not known."""
        return None if self.latest_n is None else max(self.latest_n - self.n, 0)


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One of the last micro-batches; unknown values are None."""

    at_ms: float  # End of the batch, wall milliseconds
    input_rows_per_second: float | None  # Rows that came in
    rows_per_second: float | None  # Rows that were processed
    batch_ms: float | None  # Its duration
    rows: float | None  # Number of its rows
    lag: float | None  # Entries that no finished batch had


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The last batch that a query wrote into streams, by its commit record."""

    version: int  # Its number
    streams: tuple[str, ...]  # Those in which some of it is not published yet; empty when all of it is


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The last that is known of a query (``spark/monitoring/store.py``)."""

    id: str  # Id of the query
    name: str | None  # Name that its author gave it
    run: str | None  # Id of this run
    driver: str  # The process that drives it
    host: str | None  # Host of that process
    pid: int | None  # The process there
    state: str  # ``running``, ``stopped``, ``failed``, or ``gone`` where its driver says nothing more
    started_ms: int | None  # Time of its start, wall milliseconds
    at_ms: int | None  # Time of this report
    batch: int | None  # The last micro-batch
    rows: int | None  # Rows of that batch
    total_rows: int | None  # Rows of this run
    rows_per_second: float | None  # Rows that it processes
    input_rows_per_second: float | None  # Rows that come in
    batch_ms: int | None  # Duration of the last batch
    phases: Mapping[str, int]  # Milliseconds of that by phase, in Spark's words, the longest first
    lag: int | None  # Entries that no finished batch has
    places: tuple[QueryPlace, ...]  # Its position in each stream that it reads by itself
    watermark_ms: int | None  # Its watermark, wall milliseconds
    state_rows: int | None  # Rows that it keeps as state
    recent: tuple[QuerySample, ...]  # The last batches
    error: str | None  # Its last
    sink: SinkBatch | None = None  # Its last batch that went into streams; None for none

    @property
    def title(self) -> str:
        """The name for people: its own, or the beginning of its id."""
        return self.name or self.id[:8]

    def still_ms(self, now_ms: int) -> int | None:
        """Time since its last report in milliseconds, if that is longer than usual for it; None otherwise."""
        if self.state != "running" or self.at_ms is None:
            return None
        ends = [sample.at_ms for sample in self.recent]
        pause = max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
        age = now_ms - self.at_ms
        return age if age >= max(STILL_MS, 3 * pause) else None

    @property
    def is_lost(self) -> bool:
        """True if it should run and does not."""
        return self.state in {"failed", "gone"}


@dataclass(frozen=True, slots=True)
class QueriesSeen:
    """All queries that reported to a server, read at one moment."""

    at_ms: int  # Wall milliseconds when they were asked for
    queries: tuple[QueryStatus, ...] = ()  # Those that reported last first
    why: str | None = None  # The reason why nothing is known of them; None when it is

    @property
    def lost(self) -> tuple[QueryStatus, ...]:
        """The queries that should run and do not; a query that runs again under its name is not lost."""
        running = {query.name for query in self.queries if query.name and not query.is_lost}
        return tuple(query for query in self.queries if query.is_lost and query.name not in running)

    def readers(self, stream: str) -> list[tuple[QueryStatus, QueryPlace]]:
        """The queries that read a stream by themselves, or should, with their place in it."""
        wanted = [query for query in self.queries if query.state != "stopped"]
        return [(query, place) for query in wanted for place in query.places if place.stream == stream]


def query_status(facts: Mapping[str, Any]) -> QueryStatus:
    """A query by the record it keeps, which was checked."""
    known: dict[str, Any] = {each.name: facts.get(each.name) for each in fields(QueryStatus)}
    known["id"] = facts["id"].encode(errors="backslashreplace").decode()  # half a pair could not be in an address
    known["phases"] = facts["phases"] or {}
    known["places"] = tuple(QueryPlace(**place) for place in facts["places"] or ())
    known["recent"] = tuple(QuerySample(*row) for row in facts["recent"] or ())
    known["sink"] = None
    return QueryStatus(**known)


NEWEST = 20
"""Most data files that are listed, the newest."""


def held_by(stream: StreamStatus, upto: str) -> str:
    """The group that keeps the oldest archived entry of a stream, in words; empty where none does."""
    end, found = order(upto), []
    for group in stream.groups:
        pending, delivered = group.oldest_pending.id, group.last_delivered_id
        if pending is not None and order(pending) <= end:
            found.append((order(pending), f"{group.name} has {pending} pending"))
        if order(delivered) < end:
            words = "has read nothing" if delivered == NEVER else f"has read up to {delivered}"
            found.append((order(delivered), f"{group.name} {words}"))
    return min(found)[1] if found else ""


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """One stream of an archive."""

    stream: str  # Its key
    upto: str  # Everything up to this id is archived
    entries: int  # Entries in the archive
    files: int  # Files that hold them
    bytes: int  # Size of these files
    first: str | None  # Id of the oldest entry in the archive; None for none
    waiting: int | None = None  # Entries added and not archived yet; None where the server does not tell
    kept: int | None = None  # Entries that are archived and still in the stream; None as above
    held_by: str = ""  # The cause that keeps the oldest of those in the stream, in words; empty for none
    why: str | None = None  # The reason why nothing is known of the stream itself; None when it is


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """The files of one run of the job that were not merged into other files since."""

    run: str  # Its name, with which those of its files begin
    entries: int  # Entries in its files
    files: int  # Files that it wrote
    bytes: int  # Size of these files
    last: str  # Id of the newest entry in them


def newest(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """The files with the newest entries, the newest first."""
    return tuple(sorted(files, key=lambda file: file.last, reverse=True)[:NEWEST])


@dataclass(frozen=True, slots=True)
class ArchiveSeen:
    """An archive, read at one moment."""

    at_ms: int  # Wall milliseconds when it was looked at
    path: str  # Path of its directory
    changed_ms: int | None = None  # Time at which its manifest was last written; None where that is not known
    generation: int = 0  # Number of times that it was written
    streams: tuple[ArchivedStream, ...] = ()  # Streams by key
    runs: tuple[ArchiveRun, ...] = ()  # The one with the newest entries first
    newest: tuple[DataFile, ...] = ()  # The newest data files
    why: str | None = None  # The reason why nothing is known of it; None when it is


def archived_streams(
    manifest: ArchiveManifest, live: Mapping[str, StreamStatus], refused: Mapping[str, str]
) -> tuple[ArchivedStream, ...]:
    """Each stream of an archive."""
    files: dict[str, list[DataFile]] = {}
    for file in manifest.files:
        files.setdefault(file.stream, []).append(file)
    return tuple(
        _archived(key, place, files.get(key, []), live.get(key), refused.get(key))
        for key, place in sorted(manifest.places.items())
    )


def _archived(
    key: str, place: ArchivePosition, files: Sequence[DataFile], live: StreamStatus | None, why: str | None
) -> ArchivedStream:
    """One of them."""
    waiting = kept = None
    held = ""
    if live is not None and live.entries_added is not None:
        waiting = max(live.entries_added - place.n, 0)
        kept = max(min(place.n - (live.entries_added - live.length), live.length), 0)
        held = held_by(live, str(place.id)) if kept else ""
    first = str(files[0].first) if files else None
    return ArchivedStream(key, str(place.id), *_amount(files), first, waiting, kept, held, why)


def _amount(files: Sequence[DataFile]) -> tuple[int, int, int]:
    """Entries, files and bytes."""
    return sum(file.rows for file in files), len(files), sum(file.bytes for file in files)


def archive_runs(files: Iterable[DataFile]) -> tuple[ArchiveRun, ...]:
    """The files of each run, by their names: ``<run>-<batch>-<rest>.parquet``."""
    by_run: dict[str, list[DataFile]] = {}
    for file in files:
        by_run.setdefault(file.path.rpartition("/")[2].partition("-")[0], []).append(file)
    found = [ArchiveRun(run, *_amount(own), str(max(file.last for file in own))) for run, own in by_run.items()]
    return tuple(sorted(found, key=lambda run: order(run.last), reverse=True))
