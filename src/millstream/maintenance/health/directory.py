"""Diagnosis of a data directory and its disk: speed, free space, owner, and the state of the log."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import DiskError, StorageError
from millstream.maintenance.health.findings import Finding, note, ok, problem, warning
from millstream.maintenance.health.tier import is_wasteful, small_cache
from millstream.maintenance.log.examine import Examination, advice, examine_directory
from millstream.paths import exposed
from millstream.persistence.disk import RealDisk, datasync, put
from millstream.persistence.inventory import Progress
from millstream.texts import plural

_SYNCS = 100  # smallest number of syncs for a p99
_ENOUGH = 3.0  # seconds of measuring, enough to recognise a slow disk
_SLOW_P50, _SLOW_P99 = 20.0, 100.0  # milliseconds; each reply waits for at least one fsync
_LOW, _VERY_LOW = 2 << 30, 256 << 20  # bytes free; a rewriting needs additional space for the live data
_DAY = 86_400_000  # milliseconds
_STALE_SNAPSHOT = 7 * _DAY  # a running server makes one much earlier, unless that fails
# Names of file systems as in the kernel, see proc_pid_mountinfo(5)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})


def diagnose_directory(directory: Path, tell: Progress | None = None) -> Iterator[Finding]:
    """Yield the findings about a data directory. A temporary file is written there to measure the disk."""
    directory = directory.absolute()
    if not directory.is_dir():
        yield problem(
            "directory",
            f"{directory} is not a directory",
            "a server started on it would be empty",
            "give the directory that the server uses: see its first log lines, or `CONFIG GET dir`",
        )
        return
    yield _file_system(directory)
    yield _rights(directory)
    yield _free(directory)
    yield _speed(directory)
    try:
        found = examine_directory(directory, tell=tell, quick=True)
    except DiskError as error:
        cure = "check the rights of this user, and the kernel's messages on the disk: `dmesg`"
        yield problem("log", str(error), "the log could not be checked", cure)
        return
    except StorageError:
        yield warning(
            "log",
            f"{directory} has no log",
            "a server started on it would be empty",
            "if it should have one, give the server's directory: see its first log lines, or `CONFIG GET dir`",
        )
        return
    yield _owner(found)
    yield _log(found)
    yield _growth(found)
    if found.packs and found.report.starts:
        yield _packs(found)
        cache = small_cache(sum(pack.bytes for pack in found.packs), _available())
        if cache is not None:
            yield cache
    if found.kept_aside:
        names = ", ".join(file.name for file in found.kept_aside[:5])
        yield note(
            "kept aside",
            f"{plural(len(found.kept_aside), 'file holds', 'files hold')} data that earlier starts or cuts removed: "
            f"{names}",
            "each is a sign of a crash or of damage",
            "look at them with `millstream log dump`, then move them away",
        )


def _file_system(directory: Path) -> Finding:
    """Report the reliability of fsync on this file system.

    In memory, fsync protects nothing; over a network, it depends on the file server.
    """
    kind = file_system(directory)
    if kind in _VOLATILE:
        return problem(
            "file system",
            f"{directory} is on {kind}, which is memory",
            "all data is lost when the machine restarts, whatever the fsync setting",
            "put the data directory on a disk",
        )
    if kind in _REMOTE:
        return warning(
            "file system",
            f"{directory} is on {kind}, over a network",
            "the file server decides whether locks and fsync work",
            "put the data directory on a local disk",
        )
    return ok("file system", kind or "of a kind that the system does not report")


def file_system(directory: Path) -> str:
    """Return the type of a directory's file system; empty if the system does not report it."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0]
    return ""


def _rights(directory: Path) -> Finding:
    """Report the access rights of other users. A user who can read the files can read every key, despite the ACL."""
    found = exposed(directory)
    if not found:
        return ok("rights", "only the owner may read it")
    what, _, advice = found.partition("; ")
    return warning("rights", what, "any user who can read the files can read all data, despite ACL users", advice)


def _free(directory: Path) -> Finding:
    free = RealDisk().free(directory)
    text = f"{free / 1e9:.1f} GB free"
    if free >= _LOW:
        return ok("disk space", text)
    return Finding(
        "problem" if free < _VERY_LOW else "warning",
        "disk space",
        text,
        "when it is full, writes are refused; a rewriting of the log needs room for the live data once more",
        "free some space, or move the directory to a larger disk",
    )


def _speed(directory: Path) -> Finding:
    """Report the measured speed of fsync.

    The speed depends on virtual disks, caches and other processes, so the model of the disk does not show it.
    """
    try:
        p50, p99 = fsync_speed(directory)
    except OSError as error:
        return note(
            "fsync",
            f"not measured: {error.strerror or error}",
            "the speed of fsync decides how long a write takes",
            f"run this as a user who may write to {directory}",
        )
    text = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms after a write of 4 kB"
    if p50 > _SLOW_P50 or p99 > _SLOW_P99:
        return warning(
            "fsync",
            text,
            "under --fsync always a client waits at least that long for each reply to a write",
            "use a faster disk, or one whose cache survives power loss; --fsync everysec risks the last second instead",
        )
    return ok("fsync", text)


def fsync_speed(directory: Path) -> tuple[float, float]:
    """Return the duration of an fdatasync after a 4 kB append, in milliseconds: median and 99th percentile."""
    disk, path = RealDisk(), directory / f".doctor-{secrets.token_hex(4)}"
    file = disk.create(path)
    taken = []
    try:
        for _ in range(_SYNCS):
            put(file, bytes(4096))
            began = time.perf_counter()
            datasync(file)
            taken.append((time.perf_counter() - began) * 1000)
            if sum(taken) > _ENOUGH * 1000:
                break
    finally:
        file.close()
        disk.remove(path)
    taken.sort()
    return taken[len(taken) // 2], taken[min(len(taken) * 99 // 100, len(taken) - 1)]


def _owner(found: Examination) -> Finding:
    # The lock file names its last owner even after its end; only the lock itself shows whether it runs
    owner = found.report.owner
    if owner is None:
        return ok("owner", "no process has used it yet, or has left its name")
    where = f" at {owner.address}" if owner.address else ""
    return ok("owner", f"process {owner.pid}{where}, which {'runs' if found.running else 'has ended'}")


def _log(found: Examination) -> Finding:
    """Summarise ``millstream log check``: a warning for damage that a start repairs, a problem for other damage."""
    report = found.report
    if report.ok:
        return ok("log", f"whole: {found.log_bytes / 1e6:.1f} MB, last position {found.last}")
    lost = found.losses.records if found.losses else report.lost_records
    return Finding(
        "warning" if report.starts else "problem",
        "log",
        report.problems[0].text,
        f"{plural(lost, 'whole record follows', 'whole records follow')} the damage"
        if lost
        else "no whole record follows it",
        f"{advice(found)[0]} See `millstream log check {report.directory}`.",
    )


def _growth(found: Examination) -> Finding:
    """Report the amount of data that a start reads, and its growth. Less than a minute of records gives no rate."""
    now = time.time_ns() // 1_000_000
    made = _made_ms(found)
    rate = ""
    if found.first_ms is not None and found.last_ms is not None and found.last_ms - found.first_ms >= 60_000:
        behind = found.log_bytes - next((f.bytes for f in found.report.files if f.name == found.snapshot), 0)
        rate = f"; grows by {behind / 1e6 * _DAY / (found.last_ms - found.first_ms):.1f} MB a day"
    if made is None:
        return ok("snapshot", f"none yet, {plural(found.report.records, 'record')} to read at a start{rate}")
    text = f"{(now - made) / _DAY:.1f} days old, {plural(found.report.records, 'record')} behind it{rate}"
    if found.running and now - made > _STALE_SNAPSHOT and found.report.records > 1_000_000:
        return warning(
            "snapshot",
            text,
            "a start reads every record after it, and the log takes more space than the data",
            "BGREWRITEAOF makes a new one; see the server's log about the last try",
        )
    return ok("snapshot", text)


def _packs(found: Examination) -> Finding:
    """Report the size of the packs and the part of it that deleted entries take."""
    size, live = (sum(getattr(pack, name) for pack in found.packs) for name in ("bytes", "live_bytes"))
    text = f"{plural(len(found.packs), 'pack')} of {size / 1e6:.1f} MB, {live / max(size, 1):.0%} of it still needed"
    if is_wasteful(size, live):
        return warning(
            "packs",
            text,
            "the rest is of deleted entries, and takes space on the disk",
            f"`millstream server vacuum` lets the server free it; see `millstream log tier {found.report.directory}`",
        )
    return ok("packs", f"{text}; `millstream log check` reads their entries, which this did not")


def _available() -> int:
    """Return the bytes of memory that the page cache can take; -1 if the system does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return -1


def _made_ms(found: Examination) -> int | None:
    # The file is written once, so its time is that of the snapshot
    if found.snapshot is None:
        return None
    try:
        return (found.report.directory / found.snapshot).stat().st_mtime_ns // 1_000_000
    except OSError:  # replaced meanwhile
        return None
