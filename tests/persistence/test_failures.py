"""Single failures where it matters exactly what happens next."""

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
    """The next operations fail in these ways (None: works)."""
    disk.faults = {disk.operations + n: fault for n, fault in enumerate(faults, 1) if fault}


def opened(disk: SimDisk, **options: int) -> Log:
    log, _ = Log.open(HOME, disk, entropy=entropy(1), **options)
    return log


def all_raise(log: Log, match: str) -> None:
    """The log is poisoned, and says of what."""
    for call in (log.write, log.sync, lambda: log.append(b"x")):
        with pytest.raises(DiskError, match=match):
            call()


def test_a_failed_sync_poisons_and_promises_nothing() -> None:
    """A second fsync would lie, so there is none."""
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
    """The file system took the bytes and lost them: the state is unknown, so this is not a DiskFullError."""
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
    """Half a record may stay in the file: nothing may follow it."""
    disk = SimDisk()
    log = opened(disk)
    log.append(b"a" * 100)
    next_is(disk, Fault.ENOSPC, *faults)
    with pytest.raises(DiskError, match="cannot truncate") as caught:
        log.write()
    assert not isinstance(caught.value, DiskFullError)
    all_raise(log, "cannot truncate")


def test_an_interrupted_write_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a write leaves half a record: what came behind it would be lost at the next start."""
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
    """The system gives the number of a closed file to the next one opened."""
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
    """A log whose next write adds a log file."""
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
    """Seal; new file, its name; new manifest, its name; only then the first record, with nothing to open."""
    assert [
        *("append", "datasync"),
        *("create", "append", "datasync", "sync_directory"),
        *("create", "append", "datasync", "rename", "sync_directory"),
        "append",
    ] == ROLL


@pytest.mark.parametrize("step", range(len(ROLL)))
def test_a_full_disk_at_any_step_of_adding_a_file(step: int) -> None:
    """A full disk is mended while files are written; it poisons when names are synced or the state is unknown."""
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
    """A file that failed is never used again; if it cannot be taken away, there is no going on."""
    disk = SimDisk()
    log, _ = rolling(disk)
    next_is(disk, *[None] * 3, Fault.ENOSPC, Fault.EIO)
    with pytest.raises(DiskError) as caught:
        log.write()
    assert not isinstance(caught.value, DiskFullError)
    all_raise(log, "cannot add a log file")


def test_a_disk_too_full_for_the_seal_does_not_fail_a_clean_stop() -> None:
    """All records are durable; the seal would only have said so."""
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
    """The caller learns that the last records are not there."""
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
    """No plain OSError comes out, and the log goes on."""
    disk = SimDisk()
    log = opened(disk)
    next_is(disk, Fault.EIO)
    with pytest.raises(DiskError):
        ask(log)
    assert log.append(b"a") == log.write() == log.sync() == 1


def test_no_room_for_the_owners_name_keeps_nobody_from_the_data() -> None:
    """The lock file's content is for people: where it cannot be written it says nothing, and the log goes on."""
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
    """Neither an end of the records nor a plain OSError."""
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
    """Only the disk's errors are called the disk's."""
    _, recovery = Log.open(HOME, disk_with(written([b"a", b"b"])))
    records = recovery.payloads()
    next(records)
    with pytest.raises(ConnectionError):
        records.throw(ConnectionError())  # type: ignore[attr-defined]  # it is a generator


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error() -> None:
    """put() does not turn for ever."""

    class Stuck:
        def append(self, data: object) -> int:
            return 0

    with pytest.raises(OSError, match="wrote no bytes"):
        put(Stuck(), b"x")


def test_reads_that_come_in_parts_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may return fewer bytes than asked for, at most 2 GiB in any case."""
    file = RealDisk().create(tmp_path / "f")
    put(file, b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 3), offset))
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 100) == b"123456789"
    file.close()


def test_a_check_without_manifest_reports_a_damaged_header_too() -> None:
    """Two problems, both listed."""
    files = written([b"a"])
    del files[MANIFEST]
    name = segment_in(files)
    files[name] = b"\0" + files[name][1:]
    report = check(HOME, disk_with(files))
    assert [problem.refuses for problem in report.problems] == [True, True]
    assert "not a log file" in report.problems[1].text
