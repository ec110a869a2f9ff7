"""Single failures for which the exact next step counts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import DiskError, DiskFullError
from millstream.persistence.check import check
from millstream.persistence.disk import RealDisk, put
from millstream.persistence.lockfile import Owner, read_owner
from millstream.persistence.log import Log
from millstream.persistence.manifest import NAME as MANIFEST
from persistence.reference import HOME, Promises, disk_with, entropy, files_of, segment_in, written
from support.simdisk import Crash, Fault, SimDisk, SimFile


def next_is(disk: SimDisk, *faults: Fault | None) -> None:
    """Make the next operations fail in these ways (None: works)."""
    disk.faults = {disk.operations + n: fault for n, fault in enumerate(faults, 1) if fault}


def opened(disk: SimDisk, **options: int) -> Log:
    log, _ = Log.open(HOME, disk, entropy=entropy(1), **options)
    return log


def all_raise(log: Log, match: str) -> None:
    """Check that every call of the log raises, with the cause."""
    for call in (log.write, log.sync, lambda: log.append(b"x")):
        with pytest.raises(DiskError, match=match):
            call()


def test_a_failed_sync_poisons_and_promises_nothing() -> None:
    """After a failed sync the log takes nothing more: a second fsync would report success for lost data."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a")
    log.write()
    next_is(disk, Fault.EIO)
    with pytest.raises(DiskError, match="cannot sync"):
        log.sync()
    assert log.durable == 0
    before = disk.operations
    all_raise(log, "position 0 may or may not be on disk")
    log.close()
    assert disk.operations == before
    assert not disk.locked


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.EDQUOT])
def test_no_space_that_shows_only_in_sync_is_a_failure_like_any_other(fault: Fault) -> None:
    """A sync that fails with ENOSPC is not a DiskFullError: bytes were lost, so the log takes nothing more."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a")
    log.write()
    next_is(disk, fault)
    with pytest.raises(DiskError) as caught:
        log.sync()
    assert not isinstance(caught.value, DiskFullError)
    all_raise(log, "cannot sync")


@pytest.mark.parametrize("faults", [(Fault.EIO,), (None, Fault.EIO), (None, Fault.ENOSPC)])
def test_a_full_disk_whose_rest_cannot_be_cut_off_poisons(faults: tuple[Fault | None, ...]) -> None:
    """If a full disk leaves half a record that cannot be cut off, the log takes nothing more: nothing may follow it."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a" * 100)
    next_is(disk, Fault.ENOSPC, *faults)
    with pytest.raises(DiskError, match="cannot truncate") as caught:
        log.write()
    assert not isinstance(caught.value, DiskFullError)
    all_raise(log, "cannot truncate")


def test_an_interrupted_write_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that Ctrl-C interrupted is not continued: records after half a record would be lost at the next start."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"whole")
    log.write()
    log.sync()
    log.append(b"x" * 100)
    append = SimFile.append

    def interrupted(file: SimFile, data: memoryview) -> int:
        append(file, data[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(SimFile, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.write()
    monkeypatch.undo()
    with pytest.raises(DiskError, match="interrupted"):
        log.write()
    all_raise(log, "interrupted")
    log.close()
    _, recovery = Log.open(HOME, disk)
    assert list(recovery.payloads()) == [b"whole"]
    assert recovery.report.torn_bytes == 50


def test_a_closed_file_or_lock_touches_no_other_file(tmp_path: Path) -> None:
    """A file or lock that was closed never touches the file that the system opened later under the same number."""
    disk = RealDisk()
    file, lock = disk.create(tmp_path / "f"), disk.lock(tmp_path / "lock")
    file.close()
    lock.release()
    others = [disk.create(tmp_path / name) for name in "ab"]
    for call in (lambda: file.append(b"x"), lambda: lock.write(b"x"), file.close, lock.release):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()
    assert [other.size() for other in others] == [0, 0]
    for other in others:
        other.close()


def rolling(disk: SimDisk) -> tuple[Log, Promises]:
    """Return a log whose next write adds a log file."""
    log = opened(disk, segment_bytes=50)
    promises = Promises([b"a" * 30], 1)
    log.append(promises.appended[0])
    log.write()
    log.sync()
    promises.appended.append(b"b" * 30)
    log.append(promises.appended[1])
    return log, promises


def operations_of_a_roll() -> list[str]:
    disk = SimDisk()
    log, _ = rolling(disk)
    before = disk.operations
    log.write()
    return [what for what, _ in disk.trace[before:]]


ROLL = operations_of_a_roll()


def test_a_roll_does_what_the_next_test_goes_through() -> None:
    """Adding a log file writes the seal, the file and its name, the manifest and its name, then the first record."""
    assert [
        *("append", "datasync"),
        *("create", "append", "datasync", "sync_directory"),
        *("create", "append", "datasync", "rename", "sync_directory"),
        "append",
    ] == ROLL


@pytest.mark.parametrize("step", range(len(ROLL)))
def test_a_full_disk_at_any_step_of_adding_a_file(step: int) -> None:
    """A full disk while files are written is recoverable.

    While names are synced it ends the log, as any unknown state does.
    """
    disk = SimDisk(step)
    log, promises = rolling(disk)
    next_is(disk, *[None] * step, Fault.ENOSPC)
    mends = ROLL[step] in {"append", "create", "rename"} or (ROLL[step] == "datasync" and step > 2)
    if mends:
        with pytest.raises(DiskFullError):
            log.write()
        assert not [name for name in files_of(disk) if name.endswith(".new")]
        assert log.write() == 2
        promises.durable = log.sync()
        log.close()
    else:
        with pytest.raises(DiskError) as caught:
            log.write()
        assert not isinstance(caught.value, DiskFullError)
        all_raise(log, "start again")
    disk = disk.reboot(Crash.DROPPED)
    _, recovery = Log.open(HOME, disk)
    promises.check(list(recovery.payloads()))


def test_leftovers_that_cannot_be_removed_poison() -> None:
    """A file left by a failure is never used again. If it cannot be removed, the log takes nothing more."""
    disk = SimDisk()
    log, _ = rolling(disk)
    next_is(disk, *[None] * 3, Fault.ENOSPC, Fault.EIO)
    with pytest.raises(DiskError) as caught:
        log.write()
    assert not isinstance(caught.value, DiskFullError)
    all_raise(log, "cannot add a log file")


def test_a_disk_too_full_for_the_seal_does_not_fail_a_clean_stop() -> None:
    """A disk too full for the seal does not fail a clean stop, since all records are durable."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a")
    log.write()
    log.sync()
    disk.capacity = sum(map(len, files_of(disk).values())) + 3
    log.close()
    assert not disk.locked
    _, recovery = Log.open(HOME, disk)
    assert list(recovery.payloads()) == [b"a"]
    assert recovery.report.torn_bytes == 0


def test_a_stop_that_cannot_write_says_so_and_lets_the_directory_go() -> None:
    """A stop that cannot write the last records raises an error, and releases the directory."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a" * 100)
    disk.capacity = 1
    with pytest.raises(DiskFullError):
        log.close()
    assert not disk.locked
    all_raise(log, "closed")


@pytest.mark.parametrize("ask", [Log.free, Log.total, lambda log: log.announce("x")])
def test_failures_beside_the_log_are_ours_and_harm_nothing(ask: Callable[[Log], object]) -> None:
    """A failure in a side call, such as the free space, is a disk error of the log's own. The log continues."""
    disk = SimDisk()
    log = opened(disk)
    next_is(disk, Fault.EIO)
    with pytest.raises(DiskError):
        ask(log)
    assert log.append(b"a") == log.write() == log.sync() == 1


def test_no_room_for_the_owners_name_keeps_nobody_from_the_data() -> None:
    """If the lock file's text cannot be written, the lock file is empty and the log continues."""
    disk = SimDisk()
    opened(disk).close()
    before = disk.operations
    opened(disk).close()
    writing = next(at for at, (what, _) in enumerate(disk.trace[before:]) if what == "write_lock")
    next_is(disk, *[None] * writing, Fault.ENOSPC)
    log = opened(disk)
    assert disk.operations > before + writing
    assert read_owner(disk, HOME) is None, "rather nobody than the one before"
    next_is(disk, Fault.ENOSPC)
    log.announce("unix:/run/x.sock")
    log.append(b"a")
    assert log.write() == log.sync() == 1
    log.announce("unix:/run/x.sock")
    assert read_owner(disk, HOME) == Owner(os.getpid(), "unix:/run/x.sock")
    log.close()


def test_a_failing_read_while_loading_is_a_disk_error() -> None:
    """A read that fails while records are loaded is a disk error, and not the end of the records."""
    for skip in range(3):
        disk = disk_with(written([b"a", b"b"]))
        _, recovery = Log.open(HOME, disk)
        next_is(disk, *[None] * skip, Fault.EIO)
        if skip == 2:
            assert list(recovery.payloads()) == [b"a", b"b"]
            continue
        with pytest.raises(DiskError, match="cannot read"):
            list(recovery.payloads())


def test_an_error_of_whoever_takes_the_records_stays_theirs() -> None:
    """An error that the consumer of the records raises is passed on unchanged, and is not reported as a disk error."""
    _, recovery = Log.open(HOME, disk_with(written([b"a", b"b"])))
    records = recovery.payloads()
    next(records)
    with pytest.raises(ConnectionError):
        records.throw(ConnectionError())  # type: ignore[attr-defined]  # it is a generator


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error() -> None:
    """A disk that writes 0 bytes without an error makes put() raise, rather than repeat for ever."""

    class Stuck:
        def append(self, data: object) -> int:
            return 0

    with pytest.raises(OSError, match="wrote no bytes"):
        put(Stuck(), b"x")


def test_reads_that_come_in_parts_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that the system returns in parts, as it does beyond 2 GiB, is put together."""
    file = RealDisk().create(tmp_path / "f")
    put(file, b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 3), offset))
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 100) == b"123456789"
    file.close()


def test_a_check_without_manifest_reports_a_damaged_header_too() -> None:
    """A check without a manifest also lists a damaged header as a second problem."""
    files = written([b"a"])
    del files[MANIFEST]
    name = segment_in(files)
    files[name] = b"\0" + files[name][1:]
    report = check(HOME, disk_with(files))
    assert [problem.refuses for problem in report.problems] == [True, True]
    assert "not a log file" in report.problems[1].text
