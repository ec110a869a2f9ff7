"""Restoring a data directory from a backup or from another data directory, completely or up to a moment."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from millstream.errors import LogCorruptError, StorageError, UsageError
from millstream.maintenance.backup.backup import BackupInfo, last_wall, plan_copy, read_backup_info, usable_manifest
from millstream.maintenance.backup.copying import copy_log, link_packs, plan_until, staged, verify
from millstream.maintenance.log.moment import Moment, last_before
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.inventory import Progress, size_of
from millstream.persistence.lockfile import take_lock


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore."""

    directory: Path  # The data directory
    source: Path  # Backup or directory that it was restored from
    made_ms: int | None  # Time of the backup in milliseconds; None if the source is not a backup
    snapshot_last: int  # Position of the last record in the snapshot; 0 if there is none
    records: int  # Number of records after the snapshot
    last: int  # Position of the last record
    last_ms: int | None  # Wall milliseconds of the last record; None if there is no record after the snapshot
    left_out_records: int | None  # Records of the source that are later than the moment asked for; None if none was
    set_aside: Path | None  # New location of the previous data; None if there was none
    bytes: int  # Total size of the files in bytes


def restore(
    backup: Path,
    directory: Path,
    *,
    until: Moment | None = None,
    force: bool = False,
    links: bool = False,
    keeps_damage: bool = False,
    disk: Disk | None = None,
    tell: Progress | None = None,
) -> RestoreReport:
    """Restore a data directory from a backup. Return when it is on disk and was read back.

    With ``links`` sealed packs are linked to those of the backup. With ``keeps_damage`` damaged entries in packs are
    restored as they are.
    """
    disk = disk or RealDisk()
    backup, directory = backup.absolute(), directory.absolute()
    if directory.is_symlink():  # the link stays, and its target is created
        directory = directory.resolve()
    if not directory.parent.is_dir():
        raise UsageError(f"the directory {directory.parent} for {directory.name} is missing. Create it first.")
    if directory.is_mount():
        raise UsageError(
            f"{directory} is a mount point, which cannot be replaced. Give a directory in it, "
            f"such as {directory / 'data'}, and start the server with that as --dir"
        )
    if backup == directory:
        raise UsageError(f"{backup} is both the backup and the target. Give two paths.")
    try:
        with _emptied(disk, directory, force=force) as aside:
            return _make(backup, directory, until, disk, tell, aside, links=links, keeps_damage=keeps_damage)
    except OSError as error:
        raise disk_error(f"cannot restore {backup} to {directory}", error) from error


@contextmanager
def _emptied(disk: Disk, directory: Path, *, force: bool) -> Iterator[Path | None]:
    """Check that the target is not in use and may be set aside; yield its set-aside name, None if it is empty."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        yield None
        return
    if not directory.is_dir():
        raise UsageError(f"{directory} is a file. Name a directory.")
    if not force:
        raise UsageError(
            f"{directory} is not empty. Give a new directory, or use --force, which renames it to "
            f"{directory.name}.before-TIME and keeps it"
        )
    lock = take_lock(disk, directory)
    try:
        stamp = datetime.fromtimestamp(time.time(), UTC)
        yield directory.with_name(f"{directory.name}.before-{stamp:%Y%m%dT%H%M%S.%f}")
    finally:
        lock.release()


def _make(
    backup: Path,
    directory: Path,
    until: Moment | None,
    disk: Disk,
    tell: Progress | None,
    aside: Path | None,
    *,
    links: bool,
    keeps_damage: bool,
) -> RestoreReport:
    with FrozenView(disk, backup) as view:
        facts = read_backup_info(view, backup)
        manifest = usable_manifest(view, backup)
        if manifest is None:
            raise StorageError(f"{backup} has no log. Give a backup or a data directory.")
        if facts is not None:
            _complete(view, backup, facts)
        plan = plan_copy(view, backup, manifest)
        wanted = None
        if until is not None:
            wanted = last_before(view, backup, manifest, until)
            plan = plan_until(view, backup, manifest, plan, wanted)
        with staged(disk, directory, aside) as partial:
            rest = link_packs(disk, backup, partial, plan) if links else plan
            copy_log(disk, view, backup, partial, rest, tell)
            linked = {name for name, _ in plan.files} - {name for name, _ in rest.files}
            report = verify(partial, backup, disk, tell, linked, keeps_damage=keeps_damage)
            last = manifest.begin - 1 + report.records
            if wanted is not None and last != wanted:
                raise StorageError(
                    f"the copy ends with record {last} instead of {wanted}, so nothing was made. Check the backup: "
                    f"`millstream log check {backup}`."
                )
            last_ms = last_wall(disk, partial, last) if report.records else None
    return RestoreReport(
        directory=directory,
        source=backup,
        made_ms=facts.made_ms if facts else None,
        snapshot_last=manifest.begin - 1,
        records=report.records,
        last=last,
        last_ms=last_ms,
        left_out_records=facts.last - last if facts and wanted is not None else None,
        set_aside=aside,
        bytes=plan.size,
    )


def _complete(view: FrozenView, backup: Path, facts: BackupInfo) -> None:
    """Raise an error unless the files have the sizes that the backup records."""
    for name, size in facts.files.items():
        found = size_of(view, backup / name)
        if found == size:
            continue
        if found > size:
            raise StorageError(
                f"{backup / name} has {found} bytes and had {size} when the backup was made: a server was run on it "
                f"since. To restore it as it is now, remove {backup / 'BACKUP'}; it is then taken for a data directory"
            )
        what = f"has {found} of its {size} bytes" if name in view.list(backup) else "is missing"
        raise LogCorruptError(
            f"{backup / name} {what}: this backup is not complete; take another one. Nothing was changed",
            path=str(backup / name),
            offset=found,
        )
