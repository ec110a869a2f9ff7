"""An archive beside the streams it was made of: how far each is archived, what waits, what keeps the rest. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millstream.console.model.names import NEVER, order
from millstream.console.model.streams import StreamStatus
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile

NEWEST = 20
"""Data files that are told of, the newest."""


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """One stream of an archive.

    Attributes:
        stream: its key.
        upto: everything up to this id is archived.
        entries: in the archive.
        files: that hold them.
        bytes: of these files.
        first: id of the oldest entry in the archive; None for none.
        waiting: entries added and not archived yet; None where the server does not tell.
        kept: entries that are archived and still in the stream; None as above.
        held_by: what keeps the oldest of those in the stream, in words; empty where nothing does.
        why: why nothing is known of the stream itself; None when it is.
    """

    stream: str
    upto: str
    entries: int
    files: int
    bytes: int
    first: str | None
    waiting: int | None = None
    kept: int | None = None
    held_by: str = ""
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """What one run of the job wrote, and nobody has merged into other files since.

    Attributes:
        run: its name, with which those of its files begin.
        files: that it wrote.
        entries: in them.
        bytes: of them.
        last: id of the newest entry in them.
    """

    run: str
    files: int
    entries: int
    bytes: int
    last: str


@dataclass(frozen=True, slots=True)
class ArchiveSeen:
    """An archive, read at one moment.

    Attributes:
        at_ms: wall milliseconds when it was looked at.
        path: of its directory.
        changed_ms: when its manifest was last written; None where that is not known.
        generation: how often it was written.
        streams: by key.
        runs: the one with the newest entries first.
        newest: the newest data files.
        why: why nothing is known of it; None when it is.
    """

    at_ms: int
    path: str
    changed_ms: int | None = None
    generation: int = 0
    streams: tuple[ArchivedStream, ...] = ()
    runs: tuple[ArchiveRun, ...] = ()
    newest: tuple[DataFile, ...] = ()
    why: str | None = None


def archived_streams(
    manifest: ArchiveManifest, live: Mapping[str, StreamStatus], refused: Mapping[str, str]
) -> tuple[ArchivedStream, ...]:
    """Each stream of an archive.

    Args:
        manifest: of the archive.
        live: the streams themselves, as they are now.
        refused: why others could not be read.
    """
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
    """One of them.

    Args:
        key: of the stream.
        place: how far it is archived.
        files: that hold its entries, by id.
        live: the stream itself.
        why: why it could not be read.
    """
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
    """Which group keeps the oldest entry of a stream that is archived, in words; empty where none does.

    Args:
        stream: as it is now.
        upto: everything up to this id is archived.
    """
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
    """What each run wrote, by the names of its files: ``<run>-<batch>-<rest>.parquet``."""
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
