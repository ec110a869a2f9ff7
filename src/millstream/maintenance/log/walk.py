"""Walking over the records of a data directory, whole or damaged, with bounded memory. Only reads."""

from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.errors import LogCorruptError, StorageError
from millstream.persistence.disk import Disk, DiskFile
from millstream.persistence.frame import HEADER_SIZE, FileHeader, FormatError
from millstream.persistence.inventory import ExaminedSegment, gap
from millstream.persistence.lockfile import NAME as LOCK
from millstream.persistence.manifest import NAME as MANIFEST
from millstream.persistence.manifest import Manifest, SegmentEntry, is_segment_name, is_snapshot_name, read_manifest
from millstream.persistence.predecessor import effective_manifest
from millstream.persistence.segment import Scan, assess, read_header, salvage

Tick = Callable[[int], None]
RawRecord = tuple[int, bytes]
"""A record as the log has it: position and payload."""

_KEPT = ("torn-", "cut-")


def expect_log(disk: Disk, directory: Path) -> None:
    """Make sure that a directory is one of ours: a mistyped path must not look like an empty log."""
    if not any(_is_ours(name) for name in disk.list(directory)):
        raise StorageError(f"{directory} has no log. Give a data directory.")


def _is_ours(name: str) -> bool:
    # "torn-" and "cut-" are files that starts and cuts have kept aside
    return name in {MANIFEST, LOCK} or is_segment_name(name) or is_snapshot_name(name) or name.startswith(_KEPT)


def manifest_of(disk: Disk, directory: Path) -> Manifest | None:
    """The manifest, or None if there is none that can be read."""
    try:
        return read_manifest(disk, directory)
    except (LogCorruptError, FormatError):
        return None


def log_files(disk: Disk, directory: Path) -> list[SegmentEntry]:
    """The log files in order: as in the manifest of a start, or without one by their own headers."""
    manifest = manifest_of(disk, directory)
    if manifest is not None:
        return list(effective_manifest(disk, directory, manifest).segments)
    entries = []
    for name in filter(is_segment_name, disk.list(directory)):
        file = disk.open_read(directory / name)
        try:
            header = read_header(file, directory / name)
            entries.append(SegmentEntry(name, header.first, header.identity))
        except (LogCorruptError, FormatError):
            continue
        finally:
            file.close()
    return entries


def records(
    disk: Disk, directory: Path, *, start: int = 1, past_damage: bool = False, tick: Tick | None = None
) -> Iterator[RawRecord]:
    """The records from a position on, in order; a torn tail ends them, as it does at a start of the server."""
    entries = log_files(disk, directory)
    for number, entry in enumerate(entries):
        following = entries[number + 1] if number + 1 < len(entries) else None
        if following is not None and following.first <= start:
            continue
        for position, payload in _of_file(disk, directory, entry, following, past_damage=past_damage, tick=tick):
            if position >= start:
                yield position, payload


def _of_file(
    disk: Disk,
    directory: Path,
    entry: SegmentEntry,
    following: SegmentEntry | None,
    *,
    past_damage: bool,
    tick: Tick | None,
) -> Iterator[RawRecord]:
    path = directory / entry.name
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        if past_damage:
            return
        raise LogCorruptError(
            f"{path} is missing, which holds the records from {entry.first} on", path=str(path), offset=0
        ) from None
    try:
        if file.size() >= HEADER_SIZE and not past_damage:
            read_header(file, path)
        header = FileHeader.of(entry.identity, entry.first)
        scan = Scan(file, header, file.size())
        for run in scan.runs():
            yield from enumerate(run, header.first + scan.records - len(run))
            if tick is not None:
                tick(scan.end)
        if past_damage:
            for _, position, payload in salvage(file, header, scan.end, scan.records):
                yield position, payload
        elif error := gap(directory, ExaminedSegment(entry, header, assess(scan)), following):
            raise error
    finally:
        file.close()


def records_behind(disk: Disk, directory: Path, name: str, offset: int) -> Iterator[RawRecord]:
    """The whole records that cutting the log at a byte of a file would lose: there, and in every file that follows."""
    for entry in log_files(disk, directory):
        if entry.name < name:
            continue
        try:
            file = disk.open_read(directory / entry.name)
        except FileNotFoundError:
            continue
        header = FileHeader.of(entry.identity, entry.first)
        try:
            begin = max(offset, HEADER_SIZE) if entry.name == name else HEADER_SIZE
            for _, position, payload in salvage(file, header, begin, records_before(file, header, begin)):
                yield position, payload
        finally:
            file.close()


def records_before(file: DiskFile, header: FileHeader, offset: int) -> int:
    """Whole records of a file before a byte of it."""
    scan = Scan(file, header, min(offset, file.size()))
    for _ in scan.runs():
        pass
    return scan.records


def record_end(file: DiskFile, header: FileHeader, offset: int) -> int:
    """The end of the last whole frame at or before a byte of a file: that byte itself, if it is one."""
    scan = Scan(file, header, min(offset, file.size()))
    for _ in scan.runs():
        pass
    return scan.end
