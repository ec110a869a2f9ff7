"""Copying of a log to a new directory, which gets its final name only when it is complete and was read back."""

import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.errors import DiskError, DiskFullError, LogCorruptError, StorageError, UsageError
from millstream.maintenance.log.packs import find_unreadable_extents
from millstream.maintenance.log.unreadable import find_unreadable
from millstream.persistence import manifest as manifests
from millstream.persistence.check import CheckReport, Problem, check
from millstream.persistence.disk import Disk, DiskFile, datasync, put
from millstream.persistence.frame import HEADER_SIZE, FileHeader, FormatError
from millstream.persistence.inventory import Meter, Progress, examine
from millstream.persistence.manifest import Manifest, PackEntry
from millstream.persistence.packs import expect_pack
from millstream.persistence.recovery import write_whole
from millstream.persistence.segment import CHUNK, TailState, frame_ends

_SPARE = 1 << 20  # bytes for small files, and for the file system's own needs during a copy
_SYNC_EVERY = 64 << 20  # bytes between syncs: after one large sync, a running server's fsync would take long
# From Linux's fcntl.h and fs.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Errors if the C library (musl), the kernel or the file system lacks the function
# Errors of a link after which the file is copied: it is not there any more, has too many links, or may not have more
_COPIED_INSTEAD = {errno.ENOENT, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ELOOP}
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The manifest and the files of a copy."""

    manifest: Manifest  # Manifest of the copy
    files: tuple[tuple[str, int], ...]  # Name of each file, and number of its first bytes that are copied

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(size for _, size in self.files)


def partial_of(final: Path) -> Path:
    """Return a name next to the final one, for an unfinished copy."""
    return final.with_name(f"{final.name}.partial-{secrets.token_hex(4)}")


def leftovers(final: Path) -> list[Path]:
    """Return the unfinished copies for this path, which a killed process left or another process is making."""
    return sorted(final.parent.glob(f"{final.name}.partial-*"))


@contextmanager
def staged(disk: Disk, final: Path, aside: Path | None = None) -> Iterator[Path]:
    """Yield a new directory to fill. If the block succeeds, give it the name ``final`` durably, else remove it."""
    partial = partial_of(final)
    disk.make_directory(partial)
    made = _identity(partial)
    try:
        yield partial
        disk.sync_directory(partial)
        try:
            if aside is None:
                disk.rename(partial, final)
            else:
                _replace(disk, partial, final, aside, made)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise StorageError(f"{final} was created by another program meanwhile, and was not changed") from error
            raise
        disk.sync_directory(final.parent)
    except BaseException as error:
        if _identity(final) == made and isinstance(error, OSError):
            raise DiskError(_unsure(final, aside, error)) from error
        if _identity(partial) == made:  # names are exchanged here: never remove the directory that was there before
            # Raise the original error. A partial copy that remains has a name that shows it is incomplete
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _unsure(final: Path, aside: Path | None, error: OSError) -> str:
    """Return the message for a complete copy whose final name may not be durable."""
    before = "" if aside is None else f", and the former contents are in {aside}"
    return (
        f"{final} is whole and has its name{before}; but the disk said {error.strerror or error} of the name, so a "
        f"power cut may take it back: run `sync` and look at {final.parent} before you rely on it"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which identify a directory under any name; None if it does not exist."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _replace(disk: Disk, partial: Path, final: Path, aside: Path, made: tuple[int, int] | None) -> None:
    """Put a directory in place of another, which is renamed to ``aside``.

    The new directory is first renamed to ``aside``; then the two exchange their names in one step. So a server that
    starts meanwhile finds one or the other. Without this, it might find no directory and begin an empty log there.
    """
    disk.rename(partial, aside)
    try:
        disk.sync_directory(final.parent)
        if exchange(aside, final):
            return
    except BaseException:
        if _identity(aside) == made:  # otherwise the names were exchanged, even if an error was raised
            disk.rename(aside, partial)  # the caller removes it
        raise
    disk.rename(aside, partial)
    disk.rename(final, aside)
    try:
        disk.sync_directory(final.parent)
        disk.rename(partial, final)
    except BaseException:
        if _identity(final) is None:
            disk.rename(aside, final)
        raise


def copy_log(disk: Disk, source: Disk, directory: Path, into: Path, plan: CopyPlan, tell: Progress | None) -> int:
    """Copy the files of a plan, cut an unfinished write off the last one, and write the manifest.

    Returns:
        Number of bytes at the end that were not a whole record and were left out.
    """
    free = disk.free(into)
    if free < plan.size + _SPARE:
        raise DiskFullError(
            f"{into.parent} has room for {free} bytes, and the copy needs {plan.size + _SPARE}. Make room, or give "
            "another path."
        )
    meter = Meter("copy", plan.size, tell)
    for name, size in plan.files:
        _copy(disk, source.open_read(directory / name), into / name, size, meter)
        meter.base += size
    meter.finish()
    left_out = _cut_tail(disk, into, plan.manifest)
    write_whole(disk, into / manifests.NAME, plan.manifest.encode())
    disk.sync_directory(into)
    return left_out


def _copy(disk: Disk, old: DiskFile, path: Path, size: int, meter: Meter) -> None:
    new = disk.create(path)
    try:
        for at in range(0, size, CHUNK):
            data = old.read_at(at, min(CHUNK, size - at))
            if len(data) < min(CHUNK, size - at):
                raise StorageError(f"{path.name} became shorter while it was copied. Stop the program that changes it.")
            put(new, data)
            meter.at(at + len(data))
            if (at + len(data)) % _SYNC_EVERY == 0:
                datasync(new)
        datasync(new)
        new.drop_cache()  # so that the check reads from the disk
    finally:
        new.close()
        old.close()


def _cut_tail(disk: Disk, into: Path, manifest: Manifest) -> int:
    """Cut an unfinished or torn write off the last log file; return its bytes."""
    last = manifest.segments[-1]
    result = examine(disk, into, last).result
    if result.state is not TailState.TORN:
        return 0  # the check reports damage
    with closing(disk.open_append(into / last.name)) as file:
        file.truncate(result.end)
        if result.end < HEADER_SIZE:
            file.truncate(0)
            put(file, FileHeader.of(last.identity, last.first).encode())
        datasync(file)
    return result.rest


def link_packs(disk: Disk, origin: Path, into: Path, plan: CopyPlan) -> CopyPlan:
    """Link the plan's sealed packs from another directory, which has them whole; return the plan for the rest.

    A pack never changes once it is sealed. Its name has its identity, so equal names are equal packs.
    """
    linked = {entry.name for entry in plan.manifest.packs if entry.sealed and _link(disk, origin, into, entry)}
    return replace(plan, files=tuple(each for each in plan.files if each[0] not in linked))


def _link(disk: Disk, origin: Path, into: Path, entry: PackEntry) -> bool:
    """Link a pack; return False if it must be copied."""
    if (into / entry.name).exists():
        return False
    try:
        os.link(origin / entry.name, into / entry.name, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise UsageError(
                f"{origin} and {into.parent} are on different file systems, where files cannot be linked. Omit the "
                "option, or give a path on the other one."
            ) from error
        if error.errno in _COPIED_INSTEAD:
            return False
        raise
    try:
        expect_pack(disk, into, entry)
    except (LogCorruptError, FormatError):
        (into / entry.name).unlink()
        return False
    return True


def verify(
    into: Path,
    source: Path,
    disk: Disk,
    tell: Progress | None,
    unread: Container[str] = (),
    *,
    keeps_damage: bool = False,
) -> CheckReport:
    """Read a copy back, with the code that a server start uses; of ``unread`` packs only header, size and seal.

    With ``keeps_damage`` extents that cannot be read are allowed, and stay in the report.
    """
    report = check(into, disk, tell, unread=unread)
    manifest = manifests.read_manifest(disk, into)
    if manifest is not None and all(map(_is_of_pack, report.problems)):
        find_unreadable_extents(disk, report, manifest, find_unreadable(disk, report, manifest, None), unread)
        if report.newer:  # a copy has the same contents as its source
            report = check(into, disk)
    if keeps_damage and all(map(_is_of_pack, report.problems)):
        return report
    if not report.ok:
        worst = report.problems[0]
        name = Path(worst.path).name
        text = worst.text.replace(str(into), str(source)).removesuffix(" Nothing was changed").removesuffix(".")
        option = " With --damaged, such packs are copied as they are" if all(map(_is_of_pack, report.problems)) else ""
        raise LogCorruptError(
            f"{source} is damaged, so no copy was made: {text}. `millstream log check {source}` shows the damage and "
            f"the loss.{option}".removesuffix("."),
            path=str(source / name),
            offset=worst.offset,
        )
    return report


def _is_of_pack(problem: Problem) -> bool:
    """Return True for damage of entries in a pack, with which a start works."""
    return not problem.refuses and manifests.is_pack_name(Path(problem.path).name)


def plan_until(disk: Disk, directory: Path, manifest: Manifest, plan: CopyPlan, last: int) -> CopyPlan:
    """Return the part of a plan that contains the records up to a position."""
    sizes = dict(plan.files)
    kept = [entry for entry in manifest.segments if entry.first <= last] or [manifest.segments[0]]
    final = kept[-1]
    path = directory / final.name
    header = FileHeader.of(final.identity, final.first)
    end = HEADER_SIZE
    with closing(disk.open_read(path)) as file:
        for count, at in frame_ends(file, header, HEADER_SIZE, sizes[final.name]):
            if count > last - final.first + 1:
                break
            end = at
            if count == last - final.first + 1:
                break
    names = {entry.name for entry in kept} | {entry.name for entry in manifest.packs}
    names |= {manifest.snapshot.name} if manifest.snapshot else set()
    files = tuple((name, end if name == final.name else size) for name, size in plan.files if name in names)
    return CopyPlan(replace(manifest, segments=tuple(kept), obsolete=(), gone=()), files)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or directories in one step; return False if the system cannot.

    Both must be on one file system. Each name exists at every moment.
    """
    if sys.platform != "linux":
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
