"""A backup: a copy of a data directory as it was at one moment, made while a server may use it.

A backup is a data directory with one more file, ``BACKUP``: two lines of text, JSON and its CRC-32 as in the manifest.
The JSON contains the time of the backup and the size of each file, so a backup that was later truncated is detected.
The backup contains every write that was acknowledged before it began.
"""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from zlib import crc32

from millstream._version import __version__
from millstream.errors import DiskError, LogCorruptError, StorageError, UsageError
from millstream.maintenance.backup.copying import CopyPlan, copy_log, link_packs, staged, verify
from millstream.maintenance.log.records import wall_of
from millstream.maintenance.log.walk import records
from millstream.persistence.disk import Disk, RealDisk, read_file, tried
from millstream.persistence.frame import HEADER_SIZE, MAGIC, PACK_MAGIC, SNAPSHOT_MAGIC, FileHeader, FormatError
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.inventory import Progress, size_of
from millstream.persistence.manifest import MAX_BYTES, MISSHAPEN, Manifest, read_manifest
from millstream.persistence.predecessor import effective_manifest
from millstream.persistence.recovery import write_whole

NAME = "BACKUP"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """The facts that a backup records about itself."""

    made_ms: int  # Wall time in milliseconds at which the backup began
    source: str  # Data directory
    millstream: str  # Version of Millstream that made it
    snapshot_last: int  # Position of the last record in the snapshot; 0 if there is none
    records: int  # Number of records after the snapshot
    last: int  # Position of the last record
    last_ms: int | None  # Wall milliseconds of the last record; None if there is no record after the snapshot
    files: dict[str, int]  # Sizes in bytes by name

    def check(self) -> None:
        """Raise an error unless these facts have their declared types."""
        figures = [self.made_ms, self.snapshot_last, self.records, self.last, *self.files.values()]
        if not all(isinstance(each, int) for each in figures) or not isinstance(self.last_ms, int | None):
            raise TypeError("a figure is not a number")

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        line = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return line + b"\ncrc32 %08x\n" % crc32(line)

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "BackupInfo":
        """Read the facts from the bytes of the file."""
        line, _, rest = data.partition(b"\n")
        if rest != b"crc32 %08x\n" % crc32(line):
            raise LogCorruptError(f"{path} is damaged. Take another backup.", path=str(path), offset=0)
        try:
            facts = json.loads(line)
            if facts.pop("format") != FORMAT:
                raise StorageError(f"{path} was written by a later Millstream. Use that one to restore it.")
            found = cls(**facts)
            found.check()
        except MISSHAPEN as reason:  # its checksum is correct, so it was written in this form
            raise LogCorruptError(f"{path} has no facts about a backup ({reason})", path=str(path), offset=0) from None
        return found


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup."""

    path: Path  # The backup
    facts: BackupInfo  # Facts in the backup's manifest
    left_out: int  # Bytes of an unfinished write, not acknowledged to any client
    bytes: int  # Total size of the files in bytes
    linked: int  # Bytes of these that are linked, not copied
    damage: tuple[str, ...] = ()  # Damage of packs that was copied as it is, a sentence each


def read_backup_info(disk: Disk, directory: Path) -> BackupInfo | None:
    """Return the facts of a backup; None if the directory is not a backup."""
    data = read_file(disk, directory / NAME, MAX_BYTES)
    return None if data is None else BackupInfo.decode(data, directory / NAME)


def back_up(
    directory: Path,
    dest: Path,
    disk: Disk | None = None,
    tell: Progress | None = None,
    *,
    links: bool = False,
    since: Path | None = None,
    reads_all: bool = False,
    keeps_damage: bool = False,
) -> BackupReport:
    """Copy a data directory, which may be in use. Return when the copy is on disk and was read back.

    Sealed packs are linked to those of an earlier backup ``since``, and with ``links`` to those of the directory. With
    ``reads_all`` linked ones are read as well. With ``keeps_damage`` damaged entries in packs are copied as they are.
    """
    disk = disk or RealDisk()
    directory, dest = directory.absolute(), dest.absolute()
    if dest.exists() or dest.is_symlink():
        raise UsageError(f"{dest} exists already, and a backup overwrites nothing. Give another path.")
    if not dest.parent.is_dir():
        raise UsageError(f"the directory {dest.parent} for the backup is missing. Create it first.")
    if since is not None and read_backup_info(disk, since.absolute()) is None:
        raise UsageError(
            f"{since} is not a backup, so no pack can be linked to it. Give the directory of an earlier backup."
        )
    origins = [*([since.absolute()] if since is not None else []), *([directory] if links else [])]
    make = partial(_make, directory, dest, disk, tell, origins, reads_all=reads_all, keeps_damage=keeps_damage)
    return tried(make, f"cannot back up {directory} to {dest}")


def _make(
    directory: Path,
    dest: Path,
    disk: Disk,
    tell: Progress | None,
    origins: list[Path],
    *,
    reads_all: bool,
    keeps_damage: bool,
) -> BackupReport:
    made_ms = time.time_ns() // 1_000_000
    with FrozenView(disk, directory) as view:
        manifest = usable_manifest(view, directory)
        if manifest is None:
            raise StorageError(f"{directory} has no log, so there is nothing to back up. Give the data directory.")
        plan = plan_copy(view, directory, manifest)
        with staged(disk, dest) as made:
            rest = plan
            for origin in origins:
                rest = link_packs(disk, origin, made, rest)
            left_out = copy_log(disk, view, directory, made, rest, tell)
            linked = {name for name, _ in plan.files} - {name for name, _ in rest.files}
            unread = () if reads_all else linked
            report = verify(made, directory, disk, tell, unread, keeps_damage=keeps_damage)
            sizes = {name: size_of(disk, made / name) for name, _ in plan.files}
            begin = manifest.begin
            last = begin - 1 + report.records
            facts = BackupInfo(
                made_ms=made_ms,
                source=str(directory),
                millstream=__version__,
                snapshot_last=begin - 1,
                records=report.records,
                last=last,
                last_ms=last_wall(disk, made, last) if report.records else None,
                files=sizes,
            )
            write_whole(disk, made / NAME, facts.encode())
    damage = tuple(problem.text.replace(str(made), str(dest)) for problem in report.problems)
    return BackupReport(dest, facts, left_out, sum(sizes.values()), sum(sizes[name] for name in linked), damage)


def usable_manifest(view: FrozenView, directory: Path) -> Manifest | None:
    """Return the manifest that a server start would use; None if there is none."""
    manifest = read_manifest(view, directory)
    return manifest and effective_manifest(view, directory, manifest)


def plan_copy(view: FrozenView, directory: Path, manifest: Manifest) -> CopyPlan:
    """Return a plan with all files of the log."""
    named = [] if manifest.snapshot is None else [manifest.snapshot.name]
    named += [entry.name for entry in manifest.segments] + [entry.name for entry in manifest.packs]
    missing = [name for name in named if name not in view.list(directory)]
    if missing:
        raise LogCorruptError(
            f"{directory / missing[0]} is missing, so no copy was made. `millstream log check {directory}` shows the "
            "damage and the loss",
            path=str(directory / missing[0]),
            offset=0,
        )
    _check_versions(view, directory, manifest)
    files = tuple((name, size_of(view, directory / name)) for name in named)
    return CopyPlan(replace(manifest, obsolete=(), gone=()), files)


def _check_versions(view: FrozenView, directory: Path, manifest: Manifest) -> None:
    """Refuse a file that a newer version wrote, with the file's name. Damage is found later, in the copy."""
    kinds = dict.fromkeys((entry.name for entry in manifest.segments), MAGIC)
    kinds |= dict.fromkeys((entry.name for entry in manifest.packs), PACK_MAGIC)
    if manifest.snapshot is not None:
        kinds[manifest.snapshot.name] = SNAPSHOT_MAGIC
    for name, kind in kinds.items():
        try:
            FileHeader.decode(view.open_read(directory / name).read_at(0, HEADER_SIZE), kind)
        except FormatError as error:
            if error.version:
                raise FormatError(f"{directory / name}: {error}", version=error.version) from None


def last_wall(disk: Disk, directory: Path, position: int) -> int:
    """Return the wall time of a log's last record, in milliseconds."""
    tail = deque(records(disk, directory, start=position), maxlen=1)
    if not tail:
        raise DiskError(f"record {position} of {directory} cannot be read back")
    return wall_of(*tail[0])
