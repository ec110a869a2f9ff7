"""Reading of the records of a data directory, whole or damaged, with bounded memory."""

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import zip_longest
from pathlib import Path

from millstream.errors import LogCorruptError, StorageError
from millstream.persistence.disk import Disk, DiskFile
from millstream.persistence.frame import HEADER_SIZE, FileHeader, FormatError
from millstream.persistence.inventory import ExaminedSegment, gap
from millstream.persistence.lockfile import NAME as LOCK
from millstream.persistence.manifest import NAME as MANIFEST
from millstream.persistence.manifest import (
    Manifest,
    SegmentEntry,
    is_pack_name,
    is_segment_name,
    is_snapshot_name,
    read_manifest,
)
from millstream.persistence.predecessor import effective_manifest
from millstream.persistence.segment import Scan, assess, open_file, read_header, salvage

RawRecord = tuple[int, bytes]
"""A record as stored in the log: position and payload."""

_KEPT = ("torn-", "cut-")


def expect_log(disk: Disk, directory: Path) -> None:
    """Raise an error unless the directory has files of a log: a mistyped path must not look like an empty log."""
    if not any(_is_ours(name) for name in disk.list(directory)):
        raise StorageError(f"{directory} has no log. Give a data directory.")


def _is_ours(name: str) -> bool:
    # Files with "torn-" and "cut-" were saved by starts and cuts
    kinds = (is_segment_name, is_snapshot_name, is_pack_name)
    return name in {MANIFEST, LOCK} or any(is_one(name) for is_one in kinds) or name.startswith(_KEPT)


def manifest_of(disk: Disk, directory: Path) -> Manifest | None:
    """Return the manifest, or None if no readable one exists."""
    try:
        return read_manifest(disk, directory)
    except (LogCorruptError, FormatError):
        return None


def log_files(disk: Disk, directory: Path) -> list[SegmentEntry]:
    """Return the log files in order, by the manifest that a start uses, or without one by their own headers."""
    manifest = manifest_of(disk, directory)
    if manifest is not None:
        return list(effective_manifest(disk, directory, manifest).segments)
    entries = []
    for name in filter(is_segment_name, disk.list(directory)):
        with closing(disk.open_read(directory / name)) as file, suppress(LogCorruptError, FormatError):
            header = read_header(file, directory / name)
            entries.append(SegmentEntry(name, header.first, header.identity))
    return entries


def records(disk: Disk, directory: Path, *, start: int = 1, past_damage: bool = False) -> Iterator[RawRecord]:
    """Yield the records from a position on, in order. A torn tail ends them, as at a start of the server."""
    entries = log_files(disk, directory)
    for entry, following in zip_longest(entries, entries[1:]):
        if following is not None and following.first <= start:
            continue
        for position, payload in _of_file(disk, directory, entry, following, past_damage=past_damage):
            if position >= start:
                yield position, payload


def _of_file(
    disk: Disk, directory: Path, entry: SegmentEntry, following: SegmentEntry | None, *, past_damage: bool
) -> Iterator[RawRecord]:
    path = directory / entry.name
    try:
        opened = open_file(disk, path, f"the records from {entry.first} on")
    except LogCorruptError:
        if past_damage:
            return
        raise
    with closing(opened) as file:
        if file.size() >= HEADER_SIZE and not past_damage:
            read_header(file, path)
        header = FileHeader.of(entry.identity, entry.first)
        scan = Scan(file, header, file.size())
        for run in scan.runs():
            yield from enumerate(run, header.first + scan.records - len(run))
        if past_damage:
            for _, position, payload in salvage(file, header, scan.end, scan.records):
                yield position, payload
        elif error := gap(directory, ExaminedSegment(entry, header, assess(scan)), following):
            raise error


def records_behind(disk: Disk, directory: Path, name: str, offset: int) -> Iterator[RawRecord]:
    """Yield the whole records that a cut at a byte of a file would lose, in that file and all later ones."""
    for entry in log_files(disk, directory):
        if entry.name < name:
            continue
        with suppress(FileNotFoundError), closing(disk.open_read(directory / entry.name)) as file:
            header = FileHeader.of(entry.identity, entry.first)
            begin = max(offset, HEADER_SIZE) if entry.name == name else HEADER_SIZE
            for _, position, payload in salvage(file, header, begin, scanned(file, header, begin).records):
                yield position, payload


def scanned(file: DiskFile, header: FileHeader, offset: int) -> Scan:
    """Return the scan of a file's whole frames before a byte. Its end is that byte if a frame ends there."""
    scan = Scan(file, header, min(offset, file.size()))
    for _ in scan.runs():
        pass
    return scan
