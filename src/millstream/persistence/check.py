"""A check of a data directory: its contents, its faults, and the records a start would lose. It reads without a lock.

While a server writes there, pass a :class:`~millstream.persistence.frozen_view.FrozenView` of the directory as the
disk. Even then the last log file may end in an incomplete record, which is reported as torn.
"""

import os
from collections.abc import Callable, Container
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.frame import HEADER_SIZE, FormatError
from millstream.persistence.inventory import Meter, Progress, examine, gap, holds_records, size_of, unnamed
from millstream.persistence.lockfile import Owner, read_owner
from millstream.persistence.manifest import Manifest, PackEntry, SegmentEntry, SnapshotEntry, read_manifest
from millstream.persistence.packs import damage_text, damages_behind, examine_pack, expect_pack, pack_damage
from millstream.persistence.predecessor import fallback_of
from millstream.persistence.segment import ScanResult, TailState, read_header
from millstream.persistence.snapshot import damage, examine_snapshot
from millstream.texts import plural


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of the directory."""

    name: str  # Name of the file in the directory
    bytes: int  # Size in bytes
    result: ScanResult | None = None  # Contents, if the log file or snapshot could be read; otherwise None


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a file."""

    path: str  # Path of the file
    offset: int  # Offset of the damage in the file
    text: str  # Description, as a sentence
    refuses: bool  # True if it prevents a start; otherwise a start repairs it (by cutting a torn tail) and reports it
    newer: bool = False  # True for an intact file of a version that only newer programs can read


@dataclass(slots=True)
class CheckReport:
    """The outcome of a check."""

    directory: Path  # The checked directory
    owner: Owner | None = None  # Owner that the lock file names, which may have ended
    files: list[FileReport] = field(default_factory=list)  # Every file found, by name
    problems: list[Problem] = field(default_factory=list)  # Faults, in the order of the log
    records: int = 0  # Number of whole records before the first problem; a start would keep these and the snapshot
    lost_records: int = 0  # Number of whole records after the first problem, which cutting there would lose
    lost_bytes: int = 0  # Bytes after the first problem, whole records or not

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def newer(self) -> bool:
        """True if a file has a version that only a newer program reads; then the loss is unknown."""
        return any(problem.newer for problem in self.problems)

    @property
    def starts(self) -> bool:
        """True if a start would not be refused."""
        return not any(problem.refuses for problem in self.problems)


def check(
    directory: str | os.PathLike[str],
    disk: Disk | None = None,
    on_progress: Progress | None = None,
    *,
    quick: bool = False,
    unread: Container[str] = (),
) -> CheckReport:
    """Check a data directory; of packs named in ``unread``, and of all in a quick check, read what a start reads."""
    disk, report = disk or RealDisk(), CheckReport(Path(directory))
    try:
        names = disk.list(report.directory)
        report.owner = read_owner(disk, report.directory)
        results = _log_files(disk, report, names, on_progress, lambda pack: not quick and pack.name not in unread)
        report.files = [FileReport(n, size_of(disk, report.directory / n), results.get(n)) for n in names]
    except OSError as error:
        raise disk_error(f"cannot check {report.directory}", error) from error
    return report


def _log_files(
    disk: Disk,
    report: CheckReport,
    names: list[str],
    on_progress: Progress | None,
    is_read: Callable[[PackEntry], bool],
) -> dict[str, ScanResult]:
    manifest = _manifest(disk, report)
    before = _fallback(disk, report, manifest) if manifest else None
    manifest = before or manifest
    entries = manifest.segments if manifest else _entries_by_header(disk, report, names)
    results: dict[str, ScanResult] = {}
    named = manifest.names if manifest else {entry.name for entry in entries}
    packs = manifest.packs if manifest else ()
    read = [*named, *(pack.name for pack in packs if is_read(pack))]
    sizes = [size_of(disk, report.directory / name) for name in read]
    meter = Meter("check", sum(sizes), on_progress)
    if manifest is not None and manifest.snapshot is not None:
        _snapshot(disk, report, manifest.snapshot, results, meter.at)
        meter.base += size_of(disk, report.directory / manifest.snapshot.name)
    for entry, following in zip_longest(entries, entries[1:]):
        first = not any(problem.refuses for problem in report.problems)
        try:
            found = examine(disk, report.directory, entry, meter.at)
            meter.base += found.result.size
        except (LogCorruptError, FormatError) as error:
            _add(report, error, report.directory / entry.name)
            report.lost_bytes += size_of(disk, report.directory / entry.name)
            continue
        result = results[entry.name] = found.result
        if hole := gap(report.directory, found, following):
            _add(report, hole, report.directory / entry.name)
        elif result.state is TailState.TORN:
            _add(report, None, report.directory / entry.name, result)
        if first:
            report.records += result.records
            report.lost_records += result.whole_behind
            report.lost_bytes += result.rest
        else:
            report.lost_records += result.records + result.whole_behind
            report.lost_bytes += result.size
    for pack in packs:
        _pack(disk, report, pack, results, meter.at if is_read(pack) else None)
        meter.base += size_of(disk, report.directory / pack.name) if is_read(pack) else 0
    meter.finish()
    if manifest:
        _unnamed(disk, report, manifest)
    return results


def _fallback(disk: Disk, report: CheckReport, manifest: Manifest) -> Manifest | None:
    """Return the manifest that a start uses if the snapshot is unusable and all its sources are present; else None."""
    before = fallback_of(disk, report.directory, manifest)
    if before is not None and manifest.snapshot is not None:
        path = report.directory / manifest.snapshot.name
        text = (
            f"{path} is missing or damaged; a start goes back to the log files that it was "
            "made from, which are whole, and nothing is lost"
        )
        report.problems.append(Problem(str(path), 0, text, refuses=False))
    return before


def _snapshot(
    disk: Disk, report: CheckReport, entry: SnapshotEntry, results: dict[str, ScanResult], tick: Callable[[int], None]
) -> None:
    path = report.directory / entry.name
    try:
        result = results[entry.name] = examine_snapshot(disk, report.directory, entry, tick)
    except (LogCorruptError, FormatError) as error:
        _add(report, error, path)
        report.lost_bytes += size_of(disk, path)
        return
    if broken := damage(report.directory, entry, result):
        _add(report, broken, path)
        report.lost_bytes += result.rest


def _pack(
    disk: Disk,
    report: CheckReport,
    entry: PackEntry,
    results: dict[str, ScanResult],
    tick: Callable[[int], None] | None,
) -> None:
    path = report.directory / entry.name
    try:
        if tick is None:
            expect_pack(disk, report.directory, entry)
            return
        result = results[entry.name] = examine_pack(disk, report.directory, entry, tick)
    except (LogCorruptError, FormatError) as error:
        _add(report, error, path)
        report.lost_bytes += size_of(disk, path)
        return
    if text := pack_damage(path, entry, result):
        report.problems.append(Problem(str(path), result.end, text, refuses=False))
        others = (at for at in damages_behind(disk, report.directory, entry, result.end) if at > result.end)
        report.problems += [Problem(str(path), at, damage_text(path, at), refuses=False) for at in others]


def _manifest(disk: Disk, report: CheckReport) -> Manifest | None:
    try:
        return read_manifest(disk, report.directory)
    except (LogCorruptError, FormatError) as error:
        _add(report, error, report.directory)
        return None


def _entries_by_header(disk: Disk, report: CheckReport, names: list[str]) -> list[SegmentEntry]:
    """Return the log files by their names and headers, for a directory without a manifest."""
    entries = []
    for name in filter(lambda name: manifests.is_snapshot_name(name) or manifests.is_pack_name(name), names):
        if not report.problems:
            _add_orphan(report, report.directory / name)
        report.lost_bytes += size_of(disk, report.directory / name)
    for name in filter(manifests.is_segment_name, names):
        path = report.directory / name
        size = size_of(disk, path)
        if not report.problems and size > HEADER_SIZE:
            _add_orphan(report, path)
        try:
            with closing(disk.open_read(path)) as file:
                header = read_header(file, path)
            entries.append(SegmentEntry(name, header.first, header.identity))
        except (LogCorruptError, FormatError) as error:
            if size > HEADER_SIZE:
                _add(report, error, path)
    return entries


def _add_orphan(report: CheckReport, path: Path) -> None:
    report.problems.append(Problem(str(path), 0, "there are records, but there is no manifest", refuses=True))


def _unnamed(disk: Disk, report: CheckReport, manifest: Manifest) -> None:
    for name, size in unnamed(disk, report.directory, manifest):
        if holds_records(disk, report.directory, manifest, name, size):
            path = str(report.directory / name)
            report.problems.append(
                Problem(path, 0, "it holds records, but the manifest does not name it", refuses=True)
            )
            report.lost_bytes += size


def _add(
    report: CheckReport, error: LogCorruptError | FormatError | None, path: Path, torn: ScanResult | None = None
) -> None:
    if torn is not None:
        text = f"{torn.reason}; a start cuts the last {plural(torn.rest, 'byte')} and keeps them aside"
        report.problems.append(Problem(str(path), torn.end, text, refuses=False))
    elif isinstance(error, LogCorruptError):
        report.problems.append(Problem(error.path, error.offset, str(error), refuses=True))
    else:
        report.problems.append(Problem(str(path), 0, str(error), refuses=True, newer=True))
