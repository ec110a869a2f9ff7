"""Spark queries and archives, from their own reports. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from millstream.ops.streams.status import StreamStatus
from millstream.ops.words import NEVER, milliseconds, order
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile

STILL_MS = 300_000
"""Milliseconds of silence after which a query makes no progress; three times its longest pause if that is more."""


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """The position of a query in one stream."""

    stream: str  # Key of the stream
    id: str  # Id of the last entry in a finished batch
    n: int  # Number of entries ever added up to that entry
    latest_n: int | None  # Number of entries ever added at the end of the batch; None if unknown

    @property
    def at_ms(self) -> int:
        """The time at which that entry was added, in wall milliseconds."""
        return milliseconds(self.id)

    @property
    def behind(self) -> int | None:
        """Number of entries after it at the end of the batch; None if unknown."""
        return None if self.latest_n is None else max(self.latest_n - self.n, 0)


@dataclass(frozen=True, slots=True)
class QuerySample:
    """One of the last micro-batches; unknown values are None."""

    at_ms: float  # End of the batch, wall milliseconds
    input_rows_per_second: float | None  # Rows received per second
    rows_per_second: float | None  # Rows processed per second
    batch_ms: float | None  # Duration in milliseconds
    rows: float | None  # Number of rows in the batch
    lag: float | None  # Number of entries in no finished batch


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The last batch that a query wrote to streams, from its commit record."""

    version: int  # Number of the batch
    streams: tuple[str, ...]  # Streams in which a part of the batch is not yet published; empty if all is published


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The latest known state of a query (``spark/monitoring/store.py``)."""

    id: str  # Id of the query
    name: str | None  # Name given by the query's author
    run: str | None  # Id of this run
    driver: str  # Process that drives the query
    host: str | None  # Host of that process
    pid: int | None  # Process id on that host
    state: str  # State: ``running``, ``stopped``, ``failed``, or ``gone`` if its driver no longer sends reports
    started_ms: int | None  # Start time, wall milliseconds
    at_ms: int | None  # Time of this report, wall milliseconds
    batch: int | None  # Number of the last micro-batch
    rows: int | None  # Rows of that batch
    total_rows: int | None  # Rows of this run
    rows_per_second: float | None  # Rows processed per second
    input_rows_per_second: float | None  # Rows received per second
    batch_ms: int | None  # Duration of the last batch in milliseconds
    phases: Mapping[str, int]  # Milliseconds of the last batch by Spark's phase, the longest first
    lag: int | None  # Number of entries in no finished batch
    places: tuple[QueryPlace, ...]  # Position in each stream that it reads without a group
    watermark_ms: int | None  # Watermark, wall milliseconds
    state_rows: int | None  # Number of rows in its state
    recent: tuple[QuerySample, ...]  # The last batches
    error: str | None  # Its last error
    sink: SinkBatch | None = None  # Last batch written to streams; None if there is none

    @property
    def title(self) -> str:
        """The query's name for people: its own name, or the beginning of its id."""
        return self.name or self.id[:8]

    def still_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds since its last report if that is unusually long; otherwise None."""
        if self.state != "running" or self.at_ms is None:
            return None
        ends = [sample.at_ms for sample in self.recent]
        pause = max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
        age = now_ms - self.at_ms
        return age if age >= max(STILL_MS, 3 * pause) else None

    @property
    def is_lost(self) -> bool:
        """True if the query failed or its driver is gone."""
        return self.state in {"failed", "gone"}


@dataclass(frozen=True, slots=True)
class QueriesSeen:
    """All queries that reported to a server, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    queries: tuple[QueryStatus, ...] = ()  # Queries, the latest report first
    why: str | None = None  # Reason why the queries are unknown; None if they are known

    @property
    def lost(self) -> tuple[QueryStatus, ...]:
        """Queries that failed or are gone, except those that run again under the same name."""
        running = {query.name for query in self.queries if query.name and not query.is_lost}
        return tuple(query for query in self.queries if query.is_lost and query.name not in running)

    def readers(self, stream: str) -> list[tuple[QueryStatus, QueryPlace]]:
        """Return the queries that are not stopped and read a stream, with their positions."""
        wanted = [query for query in self.queries if query.state != "stopped"]
        return [(query, place) for query in wanted for place in query.places if place.stream == stream]


def query_status(facts: Mapping[str, Any]) -> QueryStatus:
    """Return a query from its stored record, which was checked before."""
    known: dict[str, Any] = {each.name: facts.get(each.name) for each in fields(QueryStatus)}
    known["id"] = facts["id"].encode(errors="backslashreplace").decode()  # a URL cannot contain a lone surrogate
    known["phases"] = facts["phases"] or {}
    known["places"] = tuple(QueryPlace(**place) for place in facts["places"] or ())
    known["recent"] = tuple(QuerySample(*row) for row in facts["recent"] or ())
    known["sink"] = None
    return QueryStatus(**known)


NEWEST = 20
"""Limit of data files that are listed, the newest first."""


def held_by(stream: StreamStatus, upto: str) -> str:
    """Return the group that keeps the oldest archived entry of a stream, in words; empty if none does."""
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
    """The archive of one stream."""

    stream: str  # Key of the stream
    upto: str  # Id up to which all entries are archived
    entries: int  # Number of entries in the archive
    files: int  # Number of files with these entries
    bytes: int  # Size of these files in bytes
    first: str | None  # Id of the oldest entry in the archive; None for none
    waiting: int | None = None  # Number of entries that are not archived yet; None if not reported
    kept: int | None = None  # Number of archived entries that are still in the stream; None if not reported
    held_by: str = ""  # Group that keeps the oldest of these in the stream, in words; may be empty
    why: str | None = None  # Reason why the stream itself is unknown; None if it is known


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """The files of one run of the archive job, except files that were merged since."""

    run: str  # Name of the run, with which the names of its files begin
    entries: int  # Number of entries in its files
    files: int  # Number of files that it wrote
    bytes: int  # Size of these files in bytes
    last: str  # Id of the newest entry in these files


def newest(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return the files with the newest entries, the newest first."""
    return tuple(sorted(files, key=lambda file: file.last, reverse=True)[:NEWEST])


@dataclass(frozen=True, slots=True)
class ArchiveSeen:
    """An archive, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    path: str  # Path of the archive's directory
    changed_ms: int | None = None  # Time of the manifest's last write, wall milliseconds; None if unknown
    generation: int = 0  # Number of writes of the manifest
    streams: tuple[ArchivedStream, ...] = ()  # Streams by key
    runs: tuple[ArchiveRun, ...] = ()  # Runs, the one with the newest entries first
    newest: tuple[DataFile, ...] = ()  # The newest data files
    why: str | None = None  # Reason why the archive is unknown; None if it is known


def archived_streams(
    manifest: ArchiveManifest, live: Mapping[str, StreamStatus], refused: Mapping[str, str]
) -> tuple[ArchivedStream, ...]:
    """Return each stream of an archive with its present state."""
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
    """Return one stream of an archive with its present state."""
    waiting = kept = None
    held = ""
    if live is not None and live.entries_added is not None:
        waiting = max(live.entries_added - place.n, 0)
        kept = max(min(place.n - (live.entries_added - live.length), live.length), 0)
        held = held_by(live, str(place.id)) if kept else ""
    first = str(files[0].first) if files else None
    return ArchivedStream(key, str(place.id), *_amount(files), first, waiting, kept, held, why)


def _amount(files: Sequence[DataFile]) -> tuple[int, int, int]:
    """Return the number of entries, the number of files and their size in bytes."""
    return sum(file.rows for file in files), len(files), sum(file.bytes for file in files)


def archive_runs(files: Iterable[DataFile]) -> tuple[ArchiveRun, ...]:
    """Return the files of each run, found by their names: ``<run>-<batch>-<rest>.parquet``."""
    by_run: dict[str, list[DataFile]] = {}
    for file in files:
        by_run.setdefault(file.path.rpartition("/")[2].partition("-")[0], []).append(file)
    found = [ArchiveRun(run, *_amount(own), str(max(file.last for file in own))) for run, own in by_run.items()]
    return tuple(sorted(found, key=lambda run: order(run.last), reverse=True))
