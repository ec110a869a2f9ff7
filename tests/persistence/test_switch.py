"""The switch to a new manifest may fail at any step, and all files that the old or the new manifest names exist."""

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import DiskError, DiskFullError, LogCorruptError
from millstream.persistence.check import check
from millstream.persistence.log import Log
from millstream.persistence.manifest import NAME as MANIFEST
from millstream.persistence.manifest import Manifest, read_manifest
from millstream.persistence.recovery import switch_manifest
from millstream.persistence.rewrite import Rewrite, contents, make
from persistence.reference import HOME, disk_with, entropy, files_of
from support.simdisk import Crash, Fault, PowerCut, SimDisk

RECORDS = [b"%d" % number * 40 for number in range(8)]


def opened(disk: SimDisk) -> Log:
    """Return a log of eight records in three files."""
    log, _ = Log.open(HOME, disk, segment_bytes=200, entropy=entropy(1))
    for record in RECORDS:
        log.append(record)
        log.write()
    log.sync()
    return log


def begun(disk: SimDisk) -> tuple[Log, Rewrite]:
    """Return a sealed log of eight records in three files, with its snapshot made."""
    log = opened(disk)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(disk, HOME, rewrite, list(contents(disk, HOME, rewrite)))
    return log, rewrite


def recovered(disk: SimDisk) -> list[bytes]:
    """Return the records that a start finds."""
    disk.locked.clear()
    log, recovery = Log.open(HOME, disk)
    payloads = list(recovery.payloads())
    log.close()
    return payloads


def swept(log: Log) -> None:
    """Remove replaced files, as every rewriting does at its end."""
    with contextlib.suppress(DiskError):
        log.remove_obsolete()


@pytest.mark.parametrize("crash", [Crash.PROCESS, Crash.DROPPED, Crash.REORDERED], ids=lambda crash: crash.name)
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_a_switch_that_failed_anywhere_and_was_swept_behind_starts(fault: Fault, crash: Crash) -> None:
    """A fault at any step of adopting a snapshot, and the later removal of old files, leave all that a start needs."""
    failed = 0
    for step in itertools.count(1):
        disk = SimDisk(step)
        log, rewrite = begun(disk)
        disk.faults = {disk.operations + step: fault}
        try:
            log.commit_rewrite(rewrite)
        except (DiskError, LogCorruptError):
            failed += 1
        else:
            if disk.operations < min(disk.faults):
                break
        disk.faults = {}
        swept(log)
        assert recovered(disk.reboot(crash, step)) == RECORDS, step
    assert failed > 1 or fault is Fault.SHORT


def test_a_directory_sync_that_fails_once_leaves_the_snapshot_that_the_manifest_names() -> None:
    """If the directory sync after the manifest's rename fails, the new manifest is in force.

    The log takes no more records, and nothing is removed.
    """
    disk = SimDisk(1)
    log, rewrite = begun(disk)
    disk.faults = {}
    before = disk.operations
    log.commit_rewrite(rewrite)
    syncs = [at for at, (what, _) in enumerate(disk.trace[before:], before + 1) if what == "sync_directory"]
    disk = SimDisk(1)
    log, rewrite = begun(disk)
    disk.faults = {syncs[-1]: Fault.EIO}
    with pytest.raises(DiskError, match="cannot sync the directory of"):
        log.commit_rewrite(rewrite)
    assert log.snapshot_bytes == len(files_of(disk)[rewrite.target.name]), "memory says what the disk says"
    there = set(files_of(disk))
    with pytest.raises(DiskError, match="start again"):
        log.remove_obsolete()
    assert set(files_of(disk)) == there
    assert recovered(disk) == RECORDS


def test_no_descriptor_for_a_manifest_is_tried_again() -> None:
    """A process without a free file descriptor keeps its log: adding a file and rewriting are tried again later."""
    disk = SimDisk(1)
    log, rewrite = begun(disk)
    disk.faults = dict.fromkeys(range(disk.operations + 1, disk.operations + 30), Fault.EMFILE)
    for _ in range(2):
        with pytest.raises(DiskFullError, match=r"Too many open files; .*ulimit -n"):
            log.commit_rewrite(rewrite)
    disk.faults = {}
    log.commit_rewrite(rewrite)
    for record in RECORDS:
        log.append(record)
        log.write()
    log.sync()
    disk.faults = dict.fromkeys(range(disk.operations + 1, disk.operations + 30), Fault.EMFILE)
    with pytest.raises(DiskFullError, match="Too many open files"):
        log.begin_rewrite()
    disk.faults = {}
    log.append(b"later")
    assert log.write() == 17
    log.close()
    assert recovered(disk) == [*RECORDS, *RECORDS, b"later"]


def test_removal_beside_a_manifest_of_another_process_removes_nothing() -> None:
    """The manifest on disk decides which files are obsolete, and not an older one in memory."""
    disk = SimDisk(1)
    log, rewrite = begun(disk)
    manifest = read_manifest(disk, HOME)
    log.commit_rewrite(rewrite)
    switch_manifest(disk, HOME, manifest)
    there = set(files_of(disk))
    with pytest.raises(DiskError, match="is not this process's"):
        log.remove_obsolete()
    assert set(files_of(disk)) == there
    assert recovered(disk) == RECORDS


def unswept(rewritings: int = 1) -> tuple[dict[str, bytes], Manifest, list[bytes]]:
    """Return files, manifest and records of a log whose last rewriting removed no old files."""
    disk = SimDisk(1)
    log, rewrite = begun(disk)
    expected = [*RECORDS]
    log.commit_rewrite(rewrite)
    for number in range(rewritings - 1):
        log.remove_obsolete()
        expected.append(b"more %d" % number)
        log.append(expected[-1])
        log.write()
        again = log.begin_rewrite()
        assert again is not None
        make(disk, HOME, again, list(contents(disk, HOME, again)))
        log.commit_rewrite(again)
    expected.append(b"last")
    log.append(b"last")
    log.close()
    manifest = read_manifest(disk, HOME)
    assert manifest is not None
    assert manifest.snapshot is not None
    return files_of(disk), manifest, expected


@pytest.mark.parametrize("rewritings", [1, 2])
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut short"])
def test_a_start_goes_back_to_what_an_unusable_snapshot_was_made_from(rewritings: int, damage: str) -> None:
    """If a snapshot is unusable, a start uses the log files that it replaced, with the snapshot before them."""
    files, manifest, expected = unswept(rewritings)
    assert manifest.snapshot is not None
    name = manifest.snapshot.name
    files[name] = files[name][:-40] if damage == "cut short" else files[name][:-10] + b"?" + files[name][-9:]
    if damage == "missing":
        del files[name]
    disk = disk_with(files)
    report = check(HOME, disk)
    assert report.starts
    assert ["goes back to the log files" in problem.text for problem in report.problems] == [True]
    log, recovery = Log.open(HOME, disk)
    assert list(recovery.payloads()) == expected
    assert name in recovery.report.fallback_reason
    assert "nothing is lost" in recovery.report.sentence()
    log.append(b"after")
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(disk, HOME, rewrite, list(contents(disk, HOME, rewrite)))
    log.commit_rewrite(rewrite)
    log.remove_obsolete()
    log.close()
    assert check(HOME, disk).ok
    assert recovered(disk.reboot(Crash.DROPPED)) == [*expected, b"after"]


@pytest.mark.parametrize("limit", range(60))
def test_a_start_that_goes_back_may_be_cut_short(limit: int) -> None:
    """A crash at any operation of a start that uses the older files loses nothing at the next start."""
    files, manifest, expected = unswept(2)
    assert manifest.snapshot is not None
    del files[manifest.snapshot.name]
    disk = disk_with(files)
    disk.crash_after = limit
    with contextlib.suppress(PowerCut):
        Log.open(HOME, disk)
    crash = (Crash.DROPPED, Crash.REORDERED, Crash.TORN)[limit % 3]
    assert recovered(disk.reboot(crash, limit)) == expected


@pytest.mark.parametrize(
    ("rewritings", "lost"),
    [(1, "log-00000000000000000001.seg"), (1, "log-00000000000000000004.seg"), (2, "log-"), (2, "snapshot-"), (2, "")],
)
def test_a_start_does_not_go_back_to_what_is_not_whole(rewritings: int, lost: str) -> None:
    """If one of the older files is missing too, the start is refused, names the snapshot and changes nothing."""
    files, manifest, _ = unswept(rewritings)
    assert manifest.snapshot is not None
    del files[manifest.snapshot.name]
    spared = {entry.name for entry in manifest.segments}
    gone = [name for name in files if name.startswith(lost) and name not in {*spared, MANIFEST, "lock"}]
    assert gone
    for name in gone:
        del files[name]
    disk = disk_with(files)
    with pytest.raises(LogCorruptError, match=manifest.snapshot.name):
        Log.open(HOME, disk)
    left = files_of(disk)
    assert {**left, "lock": b""} == {**files, "lock": b""}
    assert not check(HOME, disk).starts


def test_a_log_goes_on_where_others_took_every_descriptor(tmp_path: Path) -> None:
    """A log in a process without free descriptors adds files and rewrites with its reserved ones, or tries again."""
    script = Path(__file__).with_name("crowded.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on 5\n"), done.stderr
