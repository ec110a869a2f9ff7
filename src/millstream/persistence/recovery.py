"""Opening a data directory: verify everything, cut and report a torn tail, refuse damage, then yield the records."""

import errno
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Data, Disk, DiskFile, datasync, put
from millstream.persistence.frame import HEADER_SIZE, Entropy, FileHeader
from millstream.persistence.inventory import (
    ExaminedSegment,
    Meter,
    Progress,
    gap,
    payloads_of,
    size_of,
    strays,
    take_inventory,
)
from millstream.persistence.manifest import Manifest, SegmentEntry, SnapshotEntry, read_manifest, segment_name
from millstream.persistence.predecessor import predecessor
from millstream.persistence.segment import CHUNK, TailState
from millstream.persistence.snapshot import snapshot_payloads
from millstream.texts import plural


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings and repairs of opening a data directory."""

    records: int  # Number of whole records, all of which are durable now
    bytes: int  # Bytes of the log files that contain them
    segments: int  # Number of log files
    first: int  # Position of the first record (or of the next one, if there is none)
    last: int  # Position of the last record; ``first - 1`` if there is none
    torn_bytes: int = 0  # Number of bytes cut from the end of the last file; 0 if it was intact
    # Whole records among those bytes: written after a lost record, but never confirmed as durable
    torn_records: int = 0
    torn_offset: int = 0  # Offset of the cut in the last file
    torn_path: Path | None = None  # File with the cut bytes; None if nothing was cut
    torn_reason: str = ""  # Reason for the cut; empty if there was none
    snapshot_last: int = 0  # Position of the last record that the snapshot replaces; 0 without one
    snapshot_bytes: int = 0  # Bytes of the snapshot; 0 without one
    # Reason why the manifest's snapshot was not usable, so that its source log files were used; empty if it was usable
    fallback_reason: str = ""

    def sentence(self) -> str:
        """Return one line for a person: the recovered records and the cut."""
        text = f"{plural(self.records, 'record')} in {plural(self.segments, 'log file')} ({self.bytes} bytes)"
        if self.snapshot_last:
            first = plural(self.snapshot_last, "record")
            text = f"a snapshot of the first {first} ({self.snapshot_bytes} bytes) and {text}"
        if self.fallback_reason:
            text = f"{text}; the log files that a snapshot was made from are used in its place, nothing is lost"
        if not self.torn_path:
            return text
        return (
            f"{text}; {self.torn_reason}: cut the last {plural(self.torn_bytes, 'byte')}"
            f" ({plural(self.torn_records, 'whole record')} among them) and kept them in {self.torn_path}"
        )


@dataclass(slots=True)
class RecoveredLog:
    """The records found when the data directory was opened."""

    _disk: Disk
    _directory: Path
    _snapshot: SnapshotEntry | None
    _files: list[ExaminedSegment]
    report: RecoveryReport  # Findings and repairs
    _on_progress: Progress | None

    def payloads(self) -> Iterator[bytes]:
        """Yield the snapshot's payloads, then each record's in order, from position ``report.first`` on.

        Memory is bounded by the largest payload.
        """
        base = self.report.snapshot_bytes
        meter = Meter("load", base + sum(found.result.end for found in self._files), self._on_progress)
        if self._snapshot is not None:
            yield from snapshot_payloads(self._disk, self._directory, self._snapshot, meter.at)
            meter.base += base
        for found in self._files:
            yield from payloads_of(self._disk, self._directory, found, meter.at)
            meter.base += found.result.end
        meter.finish()


@dataclass(slots=True)
class Opened:
    """The state with which the log continues after recovery."""

    manifest: Manifest  # Manifest, as on disk
    file: DiskFile  # Last log file, open for appending
    header: FileHeader  # Header of that file
    size: int  # Size of that file in bytes
    last: int  # Position of the last record
    sealed: bool  # True if nothing was written since the last seal
    sizes: dict[str, int]  # Sizes of the log's other files in bytes, by name


def write_whole(disk: Disk, path: Path, data: Data) -> None:
    """Create a file with this content on the medium; its name is durable after ``sync_directory``."""
    with closing(disk.create(path)) as file:
        put(file, data)
        datasync(file)


def stage_segment(
    disk: Disk, directory: Path, first: int, entropy: Entropy
) -> tuple[SegmentEntry, FileHeader, DiskFile]:
    """Create a new, empty log file. It belongs to the log once its name is durable and a manifest names it.

    It stays open for appending: after the manifest names it, nothing may prevent the log from continuing in it.
    """
    header = FileHeader.new(first, entropy)
    entry = SegmentEntry(segment_name(first), first, header.identity)
    file = disk.create(directory / entry.name)
    try:
        put(file, header.encode())
        datasync(file)
    except BaseException:
        file.close()
        raise
    return entry, header, file


def stage_manifest(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """Write the next manifest to the medium, under the name of a new manifest."""
    write_whole(disk, directory / manifests.NEW_NAME, manifest.encode())


def name_manifest(disk: Disk, directory: Path) -> None:
    """Replace the manifest by the staged one, in one atomic step; durable after ``sync_directory``."""
    disk.rename(directory / manifests.NEW_NAME, directory / manifests.NAME)


def switch_manifest(disk: Disk, directory: Path, manifest: Manifest) -> None:
    """Replace the manifest durably; no process may have another one in memory."""
    stage_manifest(disk, directory, manifest)
    name_manifest(disk, directory)
    disk.sync_directory(directory)


def begin_segment(disk: Disk, directory: Path, first: int, entropy: Entropy, manifest: Manifest) -> Manifest:
    """Make the log consist of one new, empty file, durably; everything else in the manifest stays."""
    entry, _, file = stage_segment(disk, directory, first, entropy)
    file.close()
    disk.sync_directory(directory)
    begun = replace(manifest, segments=(entry,))
    switch_manifest(disk, directory, begun)
    return begun


def recover(
    disk: Disk, directory: Path, entropy: Entropy, on_progress: Progress | None = None
) -> tuple[Opened, RecoveredLog]:
    """Make a locked data directory ready for appending; return its state and the durable records found."""
    # The last process may have died between a rename and the sync of its directory, so make the present names durable.
    disk.sync_directory(directory)
    manifest = read_manifest(disk, directory)
    if manifest is None:
        _sync_parents(disk, directory)
    leftovers = strays(disk, directory, manifest)
    if manifest is not None:
        _sync_tail(disk, directory / manifest.segments[-1].name)
    fallback_reason = ""
    try:
        found = _found(disk, directory, manifest or Manifest(()), on_progress)
    except LogCorruptError as error:
        before = predecessor(disk, directory, manifest) if manifest else None
        if before is None:
            raise
        manifest, fallback_reason = before, str(error)
        _fall_back(disk, directory, manifest, leftovers)
        leftovers = strays(disk, directory, manifest)
        found = _found(disk, directory, manifest, on_progress)
    for name in leftovers:
        disk.remove(directory / name)
    if manifest is None:
        manifest = begin_segment(disk, directory, 1, entropy, Manifest(()))
        found = [one for one, _ in take_inventory(disk, directory, manifest)]
    elif leftovers:
        disk.sync_directory(directory)
    opened, recovery = _open_tail(disk, directory, manifest, found, on_progress)
    recovery.report = replace(recovery.report, fallback_reason=fallback_reason)
    return opened, recovery


def _found(disk: Disk, directory: Path, manifest: Manifest, on_progress: Progress | None) -> list[ExaminedSegment]:
    """Return the examined log files; raise if one does not continue the one before."""
    found = []
    for one, following in take_inventory(disk, directory, manifest, on_progress):
        if error := gap(directory, one, following):
            raise error
        found.append(one)
    return found


def _fall_back(disk: Disk, directory: Path, manifest: Manifest, leftovers: list[str]) -> None:
    """Make this the manifest, durably, before anything else uses it."""
    if manifests.NEW_NAME in leftovers:
        disk.remove(directory / manifests.NEW_NAME)
    switch_manifest(disk, directory, manifest)


def _sync_parents(disk: Disk, directory: Path) -> None:
    """Make the names of a new data directory and of its parents durable.

    The process that created them may have died before it synced them, and a later start cannot detect that.
    """
    for above in directory.absolute().parents:
        try:
            disk.sync_directory(above)
        except OSError as error:
            if error.errno == errno.EIO:
                raise
            # not readable for this user, or cannot be synced: another user created it long ago


def _sync_tail(disk: Disk, path: Path) -> None:
    """Make the file's content the same in memory and on the medium before it is read.

    Bytes that a killed process had written but not synced become durable first, since a start will show them as
    recovered. Bytes that a failed sync left only in memory, marked as clean, are dropped.
    """
    with suppress(FileNotFoundError), closing(disk.open_append(path)) as file:  # take_inventory reports it
        datasync(file)
        file.drop_cache()


def _open_tail(
    disk: Disk, directory: Path, manifest: Manifest, found: list[ExaminedSegment], on_progress: Progress | None
) -> tuple[Opened, RecoveredLog]:
    last = found[-1]
    result = last.result
    path = directory / last.entry.name
    torn_path = None
    file = disk.open_append(path)
    try:
        if result.state is TailState.TORN:
            if result.rest:
                torn_path = _keep_aside(disk, directory, file, last)
            file.truncate(result.end)
            if last.header is None:
                put(file, FileHeader.of(last.entry.identity, last.entry.first).encode())
            datasync(file)
    except BaseException:
        file.close()
        raise
    records = sum(one.result.records for one in found)
    first = manifest.segments[0].first
    made = manifest.snapshot
    sizes = {one.entry.name: one.result.end for one in found[:-1]}
    if made is not None:
        sizes[made.name] = size_of(disk, directory / made.name)
    report = RecoveryReport(
        records,
        sum(one.result.end for one in found),
        len(found),
        first,
        first + records - 1,
        torn_bytes=result.rest,
        torn_records=result.whole_behind,
        torn_offset=result.end,
        torn_path=torn_path,
        torn_reason=result.reason,
        snapshot_last=0 if made is None else made.last,
        snapshot_bytes=0 if made is None else sizes[made.name],
    )
    header = last.header or FileHeader.of(last.entry.identity, last.entry.first)
    size = max(result.end, HEADER_SIZE)
    opened = Opened(manifest, file, header, size, report.last, result.sealed, sizes)
    return opened, RecoveredLog(disk, directory, made, found, report, on_progress)


def _keep_aside(disk: Disk, directory: Path, file: DiskFile, last: ExaminedSegment) -> Path:
    """Copy the bytes that will be cut into a file of their own, durably."""
    result = last.result
    path = free_name(disk, directory, f"torn-{last.entry.name}-{result.end}")
    with closing(disk.create(path)) as aside:
        copy_from(file, aside, result.end, result.size)
        datasync(aside)
    disk.sync_directory(directory)
    return path


def free_name(disk: Disk, directory: Path, stem: str) -> Path:
    """Return a path with this beginning of its name that does not exist yet."""
    names = set(disk.list(directory))
    return directory / next(name for n in range(len(names) + 1) if (name := f"{stem}-{n}") not in names)


def copy_from(old: DiskFile, new: DiskFile, start: int, end: int) -> None:
    """Append the bytes of a file between two offsets to another file."""
    for at in range(start, end, CHUNK):
        put(new, old.read_at(at, min(CHUNK, end - at)))
