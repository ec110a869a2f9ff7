"""Examination of a data directory: its content, its damage, the possible loss, and the next steps."""

import time
from collections.abc import Container, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.engine.cold_ops import references
from millstream.engine.keyspace import Keyspace
from millstream.errors import LogCorruptError, StorageError
from millstream.maintenance.log.cut import PREFIX
from millstream.maintenance.log.data_loss import DataLoss, data_loss_in
from millstream.maintenance.log.next_steps import dump_step, safety_steps
from millstream.maintenance.log.packs import damages_of, find_unreadable_extents
from millstream.maintenance.log.records import wall_of
from millstream.maintenance.log.tier import PackUsage, loaded, usage_of
from millstream.maintenance.log.unreadable import find_unreadable
from millstream.maintenance.log.walk import expect_log, log_files, manifest_of, records, records_behind
from millstream.maintenance.owner import is_running
from millstream.persistence.check import CheckReport, FileReport, Problem, check
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.frame import HEADER_SIZE, FileHeader
from millstream.persistence.frozen_view import SECTOR, FrozenView
from millstream.persistence.inventory import Progress
from millstream.persistence.lockfile import NAME as LOCK
from millstream.persistence.manifest import Manifest, SegmentEntry, is_pack_name, is_segment_name, is_snapshot_name
from millstream.persistence.predecessor import effective_manifest
from millstream.persistence.segment import Scan, ScanResult

_LOOKS = 10  # number of reads of an incomplete tail, which may be an unfinished write
_PLACES = 3  # number of places in a file that a problem names
_PAUSE = 0.02  # seconds; a write takes less, so a tail that stays the same in all reads is not an unfinished write


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination."""

    report: CheckReport  # Files, problems and counts
    running: bool  # True if a process holds the directory
    begin: int  # Position of the first record after the snapshot; 1 if there is none
    snapshot: str | None  # File of the snapshot; None if there is none
    log_bytes: int  # Total size of the log files and the snapshot in bytes
    first_ms: int | None  # Wall milliseconds of the first record after the snapshot
    last_ms: int | None  # Wall milliseconds of the last record
    under_way: int  # Bytes at the end that a running server was writing
    losses: DataLoss | None  # Records after the first problem; None if nothing would be lost
    # File and byte of a cut that lets the log start, and loses ``losses``; None if a cut does not help
    cut_at: tuple[str, int] | None
    kept_aside: tuple[FileReport, ...]  # Files with the data that earlier cuts removed
    packs: tuple[PackUsage, ...]  # Packs; empty if the records cannot be loaded
    lost_entries: int | None = None  # Entries in damaged or missing packs that cannot be read; None if unknown

    @property
    def pack_bytes(self) -> int:
        """Size of the packs in bytes."""
        return sum(file.bytes for file in self.report.files if is_pack_name(file.name))

    @property
    def only_packs(self) -> bool:
        """True if there are problems, and only packs have any."""
        return not self.report.ok and all(map(_is_of_pack, self.report.problems))

    @property
    def last(self) -> int:
        """Position of the last record that a start would read."""
        return self.begin - 1 + self.report.records


def examine_directory(
    directory: Path, disk: Disk | None = None, tell: Progress | None = None, *, quick: bool = False
) -> Examination:
    """Examine a data directory, which may be in use. This changes nothing and takes no lock.

    A quick examination reads no entries of packs.
    """
    disk, directory = disk or RealDisk(), directory.absolute()
    try:
        with FrozenView(disk, directory, past_bad_sectors=True) as view:
            return _examined(disk, view, directory, tell, quick=quick)
    except OSError as error:  # the doctor continues after an error of the disk in any of the files
        raise disk_error(f"cannot check {directory}", error) from error


def _examined(disk: Disk, view: FrozenView, directory: Path, tell: Progress | None, *, quick: bool) -> Examination:
    expect_log(view, directory)
    report = check(directory, view, tell, quick=quick)
    under_way = _live_tail(disk, directory, report, view.bad_sectors())
    manifest = manifest_of(view, directory)
    if manifest is not None:
        manifest = effective_manifest(view, directory, manifest)
    space = None
    if manifest is not None and all(_is_of_pack(problem) and not problem.newer for problem in report.problems):
        space = find_unreadable(view, report, manifest, tell)
    if manifest is not None and not quick:
        find_unreadable_extents(view, report, manifest, space)
    lost_entries = None if quick or manifest is None else _lost_entries(view, report, manifest, space)
    first_ms, last_ms = _times(view, directory, report)
    place = _first_damage(report, log_files(view, directory))
    losses = data_loss_in(records_behind(view, directory, *place)) if place and not report.newer else None
    bad = view.bad_sectors()
    _name_bad_sectors(report, bad)
    can_cut = place is not None and place[0] not in bad and manifest and not report.newer and not report.starts
    return Examination(
        report=report,
        running=is_running(directory, report.owner),
        begin=manifest.begin if manifest else 1,
        snapshot=manifest.snapshot.name if manifest and manifest.snapshot else None,
        log_bytes=_log_bytes(report, manifest),
        first_ms=first_ms,
        last_ms=last_ms,
        under_way=under_way,
        losses=losses,
        cut_at=place if can_cut else None,
        kept_aside=tuple(f for f in report.files if f.name.startswith(("torn-", PREFIX))),
        packs=usage_of(space, manifest, {file.name: file.bytes for file in report.files}) if space and manifest else (),
        lost_entries=lost_entries,
    )


def _is_of_pack(problem: Problem) -> bool:
    """Return True for a fault of a pack, which a number stands for if only records know it."""
    name = Path(problem.path).name
    return is_pack_name(name) or name.isdecimal()


def _name_bad_sectors(report: CheckReport, bad: Mapping[str, set[int]]) -> None:
    """Name the bytes that the disk cannot read, and that stop a start, which reads all but the entries of packs."""
    for name, sectors in bad.items():
        if name == LOCK:
            continue
        path, refuses = report.directory / name, not is_pack_name(name)
        begins = [at for at in sorted(sectors) if at - SECTOR not in sectors]
        ends = [at + SECTOR for at in sorted(sectors) if at + SECTOR not in sectors]
        size = next(file.bytes for file in report.files if file.name == name)
        places = [f"{begin} to {min(end, size) - 1}" for begin, end in zip(begins, ends, strict=True)]
        rest = f" and {len(places) - _PLACES} other places" if len(places) > _PLACES else ""
        clause = f"the disk cannot read its bytes {', '.join(places[:_PLACES])}{rest}"
        at = next((number for number, each in enumerate(report.problems) if each.path == str(path)), None)
        if at is None:
            report.problems.append(Problem(str(path), min(sectors), f"{path}: {clause}", refuses=refuses))
        elif refuses and not report.problems[at].refuses:
            report.problems[at] = replace(report.problems[at], text=f"{path}: {clause}", refuses=True)
        else:
            report.problems[at] = replace(report.problems[at], text=f"{report.problems[at].text}; {clause}")


def _lost_entries(disk: FrozenView, report: CheckReport, manifest: Manifest, space: Keyspace | None) -> int | None:
    """Return the number of live entries that cannot be read, of the packs with a problem; None if others have one."""
    broken = {Path(problem.path).name for problem in report.problems}
    if not all(map(_is_of_pack, report.problems)):
        return None
    if space is None:
        space, *_ = loaded(disk, report.directory)
    found = 0
    for entry in manifest.packs:
        if entry.name in broken:
            needed = [each for _, _, run in references(space) for each in run if each.pack == entry.number]
            lost = damages_of(disk, report.directory, entry, needed)
            live = (each.live for each in needed)
            found += sum(live) if lost is None else sum(lost[each].entries for each in needed if each in lost)
    return found


def _log_bytes(report: CheckReport, manifest: Manifest | None) -> int:
    # Without a manifest, only their names identify the files of the log
    return sum(
        file.bytes
        for file in report.files
        if (file.name in manifest.names if manifest else is_segment_name(file.name) or is_snapshot_name(file.name))
    )


def _live_tail(disk: Disk, directory: Path, report: CheckReport, bad: Container[str]) -> int:
    """Return the size of a write that was in progress when the view was made, else 0.

    Such a write is not damage, so its problem is removed from the report.
    """
    if len(report.problems) != 1 or report.problems[0].refuses:
        return 0
    name = Path(report.problems[0].path).name
    if not is_segment_name(name):
        return 0
    result = next((file.result for file in report.files if file.name == name), None)
    if result is None or name in bad or not _goes_on(disk, directory / name, result):
        return 0
    report.problems.clear()
    report.lost_bytes = report.lost_records = 0
    return result.rest


def _goes_on(disk: Disk, path: Path, result: ScanResult) -> bool:
    """Return True if a tail that looked torn has since become a record or was removed."""
    for _ in range(_LOOKS):
        with closing(disk.open_read(path)) as file:
            size = file.size()
            if size < result.size:
                return True
            if size >= HEADER_SIZE and result.end:
                scan = Scan(file, FileHeader.decode(file.read_at(0, HEADER_SIZE)), size)
                scan.end, scan.records = result.end, result.records
                next(scan.runs(), None)
                if scan.end > result.end:
                    return True
        time.sleep(_PAUSE)  # no event shows the end of another process's write
    return False


def _first_damage(report: CheckReport, entries: list[SegmentEntry]) -> tuple[str, int] | None:
    """Return the first problem as a place to cut at; None if it is not in the log files."""
    if not report.problems:
        return None
    first = report.problems[0]
    name = Path(first.path).name
    if name not in {entry.name for entry in entries}:
        return None
    return name, first.offset if first.offset >= HEADER_SIZE else 0


def kind_of(problem: Problem) -> str:
    """Return the type of damage as one word. ``-o json`` shows it, so it never changes.

    The types are ``torn`` and ``replaceable``, which a start repairs, ``newer``, ``missing``, ``foreign``,
    ``manifest``, ``snapshot``, ``pack``, ``illegible`` and ``damaged``.
    """
    name = Path(problem.path).name
    if problem.newer:
        return "newer"
    if not problem.refuses:
        return "replaceable" if is_snapshot_name(name) else "pack" if is_pack_name(name) else "torn"
    if "is as it was written" in problem.text:
        return "illegible"
    if "no manifest" in problem.text:
        return "manifest"
    if "is missing" in problem.text:
        return "missing"
    if "manifest does not name it" in problem.text or "not the file that the manifest names" in problem.text:
        return "foreign"
    if is_segment_name(name):
        return "damaged"
    return "snapshot" if is_snapshot_name(name) else "pack" if _is_of_pack(problem) else "manifest"


def advice(found: Examination) -> list[str]:
    """Return the next steps, best first; empty if the log is whole."""
    report, home = found.report, found.report.directory
    if report.ok:
        return []
    if report.starts and not report.newer:
        if any(kind_of(problem) == "pack" for problem in report.problems):
            return [
                *safety_steps(home),
                "Or start the server: only the entries in the damaged places of packs cannot be read.",
            ]
        if any(kind_of(problem) == "replaceable" for problem in report.problems):
            return ["Start the server: it goes back to the log files that the snapshot was made from, and reports it."]
        return [f"Start the server: it cuts the torn end, keeps it in {home} and reports it."]
    if report.newer:
        step = f"Use the newest Millstream that ever ran on {home}, for this check too."
        return [f"{step} Cut nothing: this program cannot read the directory."]
    steps = safety_steps(home)
    if any("the disk cannot read" in problem.text for problem in report.problems):
        steps[0] += " Use a program that writes zeros for what the disk cannot read, such as ddrescue."
    kinds = {kind_of(problem) for problem in report.problems}
    packs = {Path(each.path).name: None for each in report.problems if each.refuses and _is_of_pack(each)}
    if packs and found.running:
        removed = " and ".join(packs)
        return [
            f"Send BGREWRITEAOF to the server, which writes {removed} anew from its open files. Do not end it before.",
            f"Check again. Without success, copy what clients can still read, and put {removed} back from a backup.",
        ]
    if options := " ".join(f"--pack {name}" for name in packs):
        command = f"millstream log cut {home} {options}"
        if "pack" in kinds:
            steps += [f"Or give up only the entries in packs that cannot be read: `{command} --keep-readable`."]
        steps += [f"Or go on without all entries in these packs; see them first: `{command}`."]
    if "foreign" in kinds:
        steps += ["Move a file that does not belong to this log out of the directory, then check again."]
    if found.cut_at is not None or "manifest" in kinds:
        steps += [dump_step(home)]
    if found.cut_at is not None:
        name, offset = found.cut_at
        steps += [
            f"Or give up the data listed as lost; a copy is kept: `millstream log cut {home} --at {name}:{offset}`."
        ]
    return steps


def _times(view: FrozenView, directory: Path, report: CheckReport) -> tuple[int | None, int | None]:
    """Return the wall times of the first and last record."""
    first = _wall(records(view, directory))
    files = [file.result for file in report.files if file.result and is_segment_name(file.name)]
    full = [result for result in files if result.records]
    if first is None or not full:
        return first, first
    start = full[-1].first
    return first, _last_wall(records(view, directory, start=start))


def _wall(raw: Iterator[tuple[int, bytes]]) -> int | None:
    # The report describes damage; here it only means that the time is unknown
    try:
        found = next(raw, None)
        return None if found is None else wall_of(*found)
    except (StorageError, LogCorruptError):
        return None


def _last_wall(raw: Iterator[tuple[int, bytes]]) -> int | None:
    last = None
    try:
        for last in raw:  # noqa: B007 - only the last one is used
            pass
    except LogCorruptError:
        pass
    return None if last is None else _wall(iter([last]))
