"""Examination of a data directory without changing it: the basis of recovery and of a check's report."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, DiskFile, disk_error, tried, tried_each
from millstream.persistence.frame import HEADER_SIZE, FileHeader, FormatError
from millstream.persistence.manifest import Manifest, SegmentEntry
from millstream.persistence.packs import expect_pack
from millstream.persistence.segment import Scan, ScanResult, TailState, assess, open_file, read_header
from millstream.persistence.snapshot import damage, examine_snapshot
from millstream.texts import plural

Progress = Callable[[str, int, int], None]
"""Callback with the present step (``"check"`` or ``"load"``), bytes done and total bytes, about once a megabyte."""

STEP = 1 << 20
_KINDS = (manifests.is_segment_name, manifests.is_snapshot_name, manifests.is_pack_name)


class Meter:
    """Counter of bytes that calls a :data:`Progress`, at most once a megabyte and at the end."""

    def __init__(self, what: str, total: int, tell: Progress | None) -> None:
        self._what = what
        self._total = total
        self._tell = tell
        self._reported = 0
        self.base = 0  # Bytes of the files before the present one

    def at(self, done: int) -> None:
        """Report the number of bytes done in the present file."""
        done += self.base
        if self._tell is not None and done - self._reported >= STEP:
            self._reported = done
            self._tell(self._what, done, self._total)

    def finish(self) -> None:
        """Report that all bytes are done."""
        if self._tell is not None:
            self._tell(self._what, self._total, self._total)


@dataclass(frozen=True, slots=True)
class ExaminedSegment:
    """One log file with the results of its examination."""

    entry: SegmentEntry  # Entry of the file in the manifest
    header: FileHeader | None  # Header of the file; None if the file is shorter
    result: ScanResult  # Contents of the file


def examine(
    disk: Disk, directory: Path, entry: SegmentEntry, tick: Callable[[int], None] | None = None
) -> ExaminedSegment:
    """Read one log file to its end."""
    with _opened(disk, directory, entry) as (file, header):
        size = file.size()
        if header is None:
            reason = f"the file header is cut short: {size} of {HEADER_SIZE} bytes"
            return ExaminedSegment(entry, None, ScanResult(TailState.TORN, entry.first, 0, 0, size, reason=reason))
        scan = Scan(file, header, size)
        for _ in scan.runs():
            if tick is not None:
                tick(scan.end)
        return ExaminedSegment(entry, header, assess(scan))


@contextmanager
def _opened(disk: Disk, directory: Path, entry: SegmentEntry) -> Iterator[tuple[DiskFile, FileHeader | None]]:
    """Open a log file and yield it with its header; None if the file is shorter than a header."""
    path, expected = directory / entry.name, FileHeader.of(entry.identity, entry.first)
    with closing(open_file(disk, path, f"the records from {entry.first} on")) as file:
        yield file, None if file.size() < HEADER_SIZE else read_header(file, path, expected)


def gap(directory: Path, found: ExaminedSegment, following: SegmentEntry | None) -> LogCorruptError | None:
    """Return an error if the log cannot continue from this file to the next; otherwise None."""
    result, path = found.result, directory / found.entry.name
    if result.state is TailState.WHOLE or (result.state is TailState.TORN and following is None):
        expected = result.first + result.records
        if following is None or following.first == expected:
            return None
        why, lost = f"records {expected} to {following.first - 1} are missing", "they"
    else:
        count = plural(result.whole_behind, "whole record")
        why, lost = result.reason, f"{plural(result.rest, 'byte')} with {count}"
        if following is not None:
            lost += f", and every record from {following.first} on"
    return LogCorruptError(
        f"{path}: {why}; starting from here would lose the data after it: {lost}. Nothing was changed",
        path=str(path),
        offset=result.end,
    )


def unnamed(disk: Disk, directory: Path, manifest: Manifest | None) -> list[tuple[str, int]]:
    """Return log files that the manifest does not name, including an unused new manifest, each with its size."""
    named = {*manifest.names, *(pack.name for pack in manifest.packs)} if manifest else set()
    return [
        (name, size_of(disk, directory / name))
        for name in disk.list(directory)
        if name == manifests.NEW_NAME or (name not in named and any(is_one(name) for is_one in _KINDS))
    ]


def holds_records(disk: Disk, directory: Path, manifest: Manifest | None, name: str, size: int) -> bool:
    """Return True if a file that the manifest does not name may hold records that no other file has.

    It has none if it is empty, if the snapshot replaced it, or if it is a snapshot of records that the log has. Such a
    snapshot was never finished, or was replaced by another. The manifest names a pack before the pack holds an entry.
    Others come with a primary's copy, or from an open file, which has the entries as well.
    """
    if manifests.is_snapshot_name(name):
        return manifest is None or manifests.snapshot_last(name) >= manifest.segments[-1].first
    if name == manifests.NEW_NAME or size <= HEADER_SIZE:
        return False
    if manifests.is_pack_name(name):
        return manifest is None or not (manifests.is_taken_name(name) or name in {pack.name for pack in manifest.gone})
    return manifest is None or not _is_obsolete(disk, directory, manifest, name)


def _is_obsolete(disk: Disk, directory: Path, manifest: Manifest, name: str) -> bool:
    identities = {entry.name: entry.identity for entry in manifest.obsolete}
    if name not in identities:
        return False
    try:
        with closing(disk.open_read(directory / name)) as file:
            return read_header(file, directory / name).identity == identities[name]
    except (LogCorruptError, FormatError):
        return False


def strays(disk: Disk, directory: Path, manifest: Manifest | None) -> list[str]:
    """Return the unnamed files, all safe to remove after a crash during the creation of a file; raise if one is not."""
    found = unnamed(disk, directory, manifest)
    for name, size in found:
        if holds_records(disk, directory, manifest, name, size):
            path = directory / name
            missing = "there is no manifest" if manifest is None else "the manifest does not name it"
            raise LogCorruptError(
                f"{path} holds {size - HEADER_SIZE} bytes of records, but {missing}; starting would leave them "
                "out. Nothing was changed",
                path=str(path),
                offset=HEADER_SIZE,
            )
    return [name for name, _ in found]


def size_of(disk: Disk, path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        with closing(disk.open_read(path)) as file:
            return file.size()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error


def take_inventory(
    disk: Disk, directory: Path, manifest: Manifest, on_progress: Progress | None = None
) -> Iterator[tuple[ExaminedSegment, SegmentEntry | None]]:
    """Examine the snapshot and each log file in order; yield each log file with the manifest's next one.

    Only header, size and seal of a pack are read: a start must not take longer with more entries in packs.
    """
    for pack in manifest.packs:
        expect_pack(disk, directory, pack)
    sizes = [size_of(disk, directory / entry.name) for entry in manifest.segments]
    made = manifest.snapshot
    base = 0 if made is None else size_of(disk, directory / made.name)
    meter = Meter("check", base + sum(sizes), on_progress)
    if made is not None:
        if error := damage(directory, made, examine_snapshot(disk, directory, made, meter.at)):
            raise error
        meter.base += base
        first = manifest.segments[0]
        if first.first != made.last + 1:
            text = f"{directory / first.name} begins with record {first.first}, but the snapshot ends with {made.last}"
            raise LogCorruptError(text, path=str(directory / first.name), offset=0)
    for entry, following, size in zip_longest(manifest.segments, manifest.segments[1:], sizes):
        yield examine(disk, directory, entry, meter.at), following
        meter.base += size
    meter.finish()


def payloads_of(disk: Disk, directory: Path, found: ExaminedSegment, tick: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the records of an examined file, read again."""
    header, result, path = found.header, found.result, directory / found.entry.name
    if header is None or not result.records:
        return
    doing = f"cannot read {path}"
    with closing(tried(lambda: disk.open_read(path), doing)) as file:
        scan = Scan(file, header, result.end)
        for run in tried_each(scan.runs(), doing):
            yield from run
            tick(scan.end)
        if scan.records != result.records:
            raise LogCorruptError(
                f"{path}: record {result.first + scan.records} at byte {scan.end} could be read a moment ago, "
                "but not now",
                path=str(path),
                offset=scan.end,
            )


def segment_payloads(
    disk: Disk, directory: Path, entry: SegmentEntry, following: SegmentEntry, tick: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield the records of a sealed log file, and check that it is whole and that ``following`` continues it."""
    doing = f"cannot read {directory / entry.name}"
    with ExitStack() as stack:
        file, header = tried(lambda: stack.enter_context(_opened(disk, directory, entry)), doing)
        if header is None:
            raise LogCorruptError(f"{directory / entry.name} is cut short", path=entry.name, offset=0)
        scan = Scan(file, header, tried(file.size, doing))
        for run in tried_each(scan.runs(), doing):
            yield from run
            tick(scan.end)
        if hole := gap(directory, ExaminedSegment(entry, header, tried(lambda: assess(scan), doing)), following):
            raise hole
