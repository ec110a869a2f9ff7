"""An archive and its streams: the archived part of each, the waiting entries, the cause that keeps the rest. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.console.model.names import NEVER, order
from millstream.console.model.streams import StreamStatus
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile

NEWEST = 20
"""Most data files that are listed, the newest."""


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
    files: int  # Files that it wrote
    entries: int  # Entries in them
    bytes: int  # Size of these files
    last: str  # Id of the newest entry in them


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
    return ArchivedStream(
        key,
        str(place.id),
        sum(file.rows for file in files),
        len(files),
        sum(file.bytes for file in files),
        str(files[0].first) if files else None,
        waiting,
        kept,
        held,
        why,
    )


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


def archive_runs(files: Iterable[DataFile]) -> tuple[ArchiveRun, ...]:
    """The files of each run, by their names: ``<run>-<batch>-<rest>.parquet``."""
    by_run: dict[str, list[DataFile]] = {}
    for file in files:
        by_run.setdefault(file.path.rpartition("/")[2].partition("-")[0], []).append(file)
    found = [
        ArchiveRun(
            run,
            len(own),
            sum(file.rows for file in own),
            sum(file.bytes for file in own),
            str(max(file.last for file in own)),
        )
        for run, own in by_run.items()
    ]
    return tuple(sorted(found, key=lambda run: order(run.last), reverse=True))


def newest(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """The files with the newest entries, the newest first."""
    return tuple(sorted(files, key=lambda file: file.last, reverse=True)[:NEWEST])
