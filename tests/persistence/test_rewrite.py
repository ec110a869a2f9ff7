"""Rewriting one step at a time: only its own leftovers are removed, and damaged input is refused."""

import errno
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from millstream.errors import DiskError, DiskFullError, LogCorruptError, UsageError
from millstream.persistence.check import check
from millstream.persistence.disk import DiskFile
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import SnapshotEntry, read_manifest, snapshot_name
from millstream.persistence.recovery import switch_manifest
from millstream.persistence.rewrite import Rewrite, contents, make
from millstream.persistence.snapshot import SYNC_BYTES, new_entry, snapshot_payloads, write_snapshot
from persistence.reference import HOME, disk_with, entropy, files_of
from support.simdisk import Crash, Fault, Inode, SimDisk

RECORDS = [b"%d" % number * 40 for number in range(8)]


def begun(disk: SimDisk) -> tuple[Log, Rewrite]:
    """Return a log of eight records in three sealed files, and its begun rewriting."""
    log, _ = Log.open(HOME, disk, segment_bytes=200, entropy=entropy(1))
    for record in RECORDS:
        log.append(record)
        log.write()
    log.sync()
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    return log, rewrite


def rewritten() -> dict[str, bytes]:
    """Return the files of a log whose first eight records are in a snapshot; a ninth is not."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    log.remove_obsolete()
    log.append(b"ninth")
    log.close()
    return files_of(disk)


def opened(disk: SimDisk) -> list[bytes]:
    """Return the records that a start recovers."""
    disk.locked.clear()
    log, recovery = Log.open(HOME, disk)
    payloads = list(recovery.payloads())
    log.close()
    return payloads


def kinds(disk: SimDisk) -> list[str]:
    return sorted(name.partition("-")[0] for name in files_of(disk) if name != "lock")


def snapshot_of(files: dict[str, bytes]) -> str:
    (name,) = (name for name in files if name.startswith("snapshot-"))
    return name


def test_the_steps() -> None:
    """A rewriting leaves a snapshot and an empty log file.

    Positions continue, and reported sizes are those of the files.
    """
    disk = SimDisk()
    log, rewrite = begun(disk)
    assert Rewrite.decode(rewrite.encode()) == rewrite
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    assert kinds(disk) == ["MANIFEST", "log", "log", "log", "log", "snapshot"]
    log.commit_rewrite(rewrite)
    log.remove_obsolete()
    assert kinds(disk) == ["MANIFEST", "log", "snapshot"]
    files = files_of(disk)
    sizes = {name: len(data) for name, data in files.items() if "-" in name}
    assert log.total_bytes == sum(sizes.values())
    assert log.snapshot_bytes == sizes[snapshot_of(files)]
    assert log.append(b"ninth") == 9
    log.write()
    assert list(log.replay()) == [*RECORDS, b"ninth"]
    log.close()
    assert opened(disk) == [*RECORDS, b"ninth"]


def test_nothing_to_rewrite() -> None:
    """An empty log, or one whose records are all in its snapshot, has nothing to rewrite."""
    log, _ = Log.open(HOME, SimDisk())
    assert log.begin_rewrite() is None
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    assert log.begin_rewrite() is None


def test_a_snapshot_of_an_older_rewriting_is_not_adopted() -> None:
    """A snapshot of an older rewriting is not adopted: only one of the current log can replace it."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    with pytest.raises(UsageError):
        log.commit_rewrite(rewrite)


@pytest.mark.parametrize("cut", [1, FRAME_SIZE, 10_000])
def test_a_snapshot_without_its_seal_is_not_adopted(cut: int) -> None:
    """A snapshot without its seal is not adopted, even if its process reported success. The log continues unchanged."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    inode = disk.names[HOME / rewrite.target.name]
    del inode.cache[max(len(inode.cache) - cut, 0) :]
    with pytest.raises(LogCorruptError):
        log.commit_rewrite(rewrite)
    log.remove_obsolete()
    log.append(b"ninth")
    log.close()
    assert opened(disk) == [*RECORDS, b"ninth"]
    assert "snapshot" not in kinds(disk)


def test_a_missing_snapshot_is_not_adopted() -> None:
    """A missing snapshot is not adopted, and the log continues unchanged."""
    log, rewrite = begun(SimDisk())
    with pytest.raises(LogCorruptError, match="missing"):
        log.commit_rewrite(rewrite)
    assert log.append(b"ninth") == 9


def test_a_damaged_log_file_is_not_rewritten() -> None:
    """A damaged log file is not rewritten, since a snapshot without the damaged part would make the loss permanent."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    for entry in rewrite.source.segments:
        inode = disk.names[HOME / entry.name]
        for at in (HEADER_SIZE + 30, len(inode.cache) - 1):
            inode.cache[at] ^= 1
            with pytest.raises(LogCorruptError, match=entry.name):
                make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
            inode.cache[at] ^= 1
            if HOME / rewrite.target.name in disk.names:
                disk.remove(HOME / rewrite.target.name)
    assert log.append(b"ninth") == 9


def test_a_log_file_shorter_than_its_header_is_not_rewritten() -> None:
    """A sealed log file that is shorter than its header is not rewritten."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    del disk.names[HOME / rewrite.source.segments[0].name].cache[10:]
    with pytest.raises(LogCorruptError, match="is cut short"):
        make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    assert log.append(b"ninth") == 9


class UnreadableDisk(SimDisk):
    """Disk that opens no file for reading after a given number of opened files."""

    left = 1000

    def open_read(self, path: Path) -> DiskFile:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().open_read(path)


def test_an_unreadable_disk_gives_a_rewriting_up_without_harm() -> None:
    """A file that cannot be read while a snapshot is made or adopted ends the rewriting. The log is unchanged."""
    failed = 0
    for opens in itertools.count():
        disk = UnreadableDisk()
        log, rewrite = begun(disk)
        disk.left = opens
        try:
            make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
            log.commit_rewrite(rewrite)
            break
        except (OSError, DiskError):
            failed += 1
        disk.left = 1000
        log.append(b"ninth")
        log.close()
        assert opened(disk.reboot(Crash.DROPPED)) == [*RECORDS, b"ninth"]
    assert failed > 2 * len(rewrite.source.segments)


def test_a_snapshot_that_ends_elsewhere_than_the_log_begins_is_refused() -> None:
    """A start refuses a snapshot that ends before the log begins: the records between would be missing."""
    disk = SimDisk()
    begun(disk)
    target = new_entry(7, entropy(3))
    write_snapshot(disk, HOME, target, RECORDS[:7])
    manifest = read_manifest(disk, HOME)
    assert manifest is not None
    wrong = replace(manifest, segments=manifest.segments[-1:], snapshot=target)
    switch_manifest(disk, HOME, wrong)
    found = {name: data for name, data in files_of(disk).items() if name in {*wrong.names, "MANIFEST"}}
    with pytest.raises(LogCorruptError, match="begin with record 9 instead of 8"):
        Log.open(HOME, disk_with(found))


@pytest.mark.parametrize(("fault", "least"), [(Fault.EIO, 6), (Fault.ENOSPC, 2)])
def test_a_disk_that_fails_while_a_snapshot_is_taken_over_loses_nothing(fault: Fault, least: int) -> None:
    """A failure while a snapshot is adopted raises an error of the log's own, and loses nothing.

    If the manifest's state is unknown, the log takes no more records until the next start.
    """
    poisoned = untouched = 0
    for step in itertools.count(1):
        disk = SimDisk()
        log, rewrite = begun(disk)
        make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
        disk.faults = {disk.operations + step: fault}
        try:
            log.commit_rewrite(rewrite)
        except (DiskError, LogCorruptError):
            pass
        else:
            if disk.operations < min(disk.faults):
                break
        disk.faults = {}
        try:
            log.append(b"ninth")
        except DiskError:
            poisoned += 1
            expected = RECORDS
        else:
            untouched += 1
            expected = [*RECORDS, b"ninth"]
            log.close()
        assert opened(disk.reboot(Crash.DROPPED)) == expected
    assert (poisoned >= least, untouched > 2) == (True, True), (poisoned, untouched)


class LateDisk(SimDisk):
    """Disk whose snapshot fails or changes after a given number of reads."""

    looks = -1
    rots = False

    def open_read(self, path: Path) -> DiskFile:
        if path.name.startswith("snapshot-"):
            self.looks -= 1
            if not self.looks and not self.rots:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if not self.looks:
                self.names[path].cache[-FRAME_SIZE - 1] ^= 1
        return super().open_read(path)


@pytest.mark.parametrize("rots", [False, True])
def test_a_snapshot_that_goes_bad_between_the_look_and_the_loading_is_an_error(rots: bool) -> None:
    """A start reads a snapshot twice. Damage at the second reading is an error, so no record is silently lost."""
    disk = LateDisk()
    disk.names = {HOME / name: Inode(bytearray(data), bytearray(data)) for name, data in rewritten().items()}
    log, recovery = Log.open(HOME, disk)
    disk.looks, disk.rots = 1, rots
    with pytest.raises(LogCorruptError if rots else DiskError, match="snapshot-"):
        list(recovery.payloads())
    log.close()


class SyncCountingDisk(SimDisk):
    """Disk that records how many bytes each sync of a file has to write."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[int] = []

    def begin(self, what: str, path: Path) -> Fault | None:
        if what == "datasync":
            changes = self.names[path].changes
            self.synced.append(sum(len(change[1]) for change in changes if not isinstance(change, int)))
        return super().begin(what, path)


def test_no_sync_of_a_snapshot_is_large() -> None:
    """A snapshot is synced in pieces of limited size, since a large sync delays the log's own syncs."""
    disk, piece = SyncCountingDisk(), SYNC_BYTES // 4
    payloads = [bytes([number]) * piece for number in range(11)]
    write_snapshot(disk, HOME, new_entry(11, entropy(3)), payloads)
    assert len(disk.synced) == 3
    assert max(disk.synced) < SYNC_BYTES + piece
    assert sum(disk.synced) > 11 * piece
    (inode,) = disk.names.values()
    assert inode.changes == []


class RottingDisk(SimDisk):
    """Disk that returns other bytes of a snapshot than were written."""

    def open_read(self, path: Path) -> DiskFile:
        if path.name.startswith("snapshot-"):
            self.names[path].cache[HEADER_SIZE + 30] ^= 1
        return super().open_read(path)


def test_what_cannot_be_read_back_is_no_snapshot() -> None:
    """A snapshot that reads back differently is not adopted, and the log keeps the files that it would replace."""
    disk = RottingDisk()
    log, rewrite = begun(disk)
    with pytest.raises(LogCorruptError, match=rewrite.target.name):
        make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.remove_obsolete()
    assert log.append(b"ninth") == 9
    log.close()
    assert opened(disk) == [*RECORDS, b"ninth"]


PIECES = [bytes([number]) * (SYNC_BYTES // 4) for number in range(11)]


def synced_sizes(disk: SimDisk, target: SnapshotEntry) -> list[int]:
    """Write a snapshot; return its synced size at each report."""
    sizes: list[int] = []
    write_snapshot(disk, HOME, target, PIECES, sizes.append)
    return sizes


def test_a_snapshot_is_read_back_as_it_is_made() -> None:
    """A snapshot is read back while it is made, as far as its maker reported it synced, and at the end completely."""
    disk, target, seen = SimDisk(), new_entry(11, entropy(3)), []
    sizes = synced_sizes(disk, target)
    found: list[bytes] = []

    def told() -> Iterator[int]:
        for size in sizes:
            yield size
            seen.append(len(found))

    for payload in snapshot_payloads(disk, HOME, target, synced=told()):
        found.append(payload)  # noqa: PERF402 - it is looked at meanwhile
    assert found == PIECES
    assert seen == [4, 8, 11]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_snapshot_that_is_damaged_while_it_is_made_is_none(place: int) -> None:
    """A snapshot that reads back differently while it is made is refused. Records before the damage are right."""
    disk, target = SimDisk(), new_entry(11, entropy(3))
    sizes = synced_sizes(disk, target)
    (inode,) = disk.names.values()
    inode.cache[sizes[place] - 50] ^= 1
    found: list[bytes] = []
    with pytest.raises(LogCorruptError, match=r"damaged or cut short"):
        found.extend(snapshot_payloads(disk, HOME, target, synced=iter(sizes)))
    assert found == PIECES[: len(found)]


@pytest.mark.parametrize("told", [1, 2])
def test_a_snapshot_whose_making_was_given_up_is_none(told: int) -> None:
    """A snapshot whose maker failed is not adopted: the maker's error is raised, or the missing seal is found."""
    disk, target = SimDisk(), new_entry(11, entropy(3))
    sizes = synced_sizes(disk, target)[:told]
    (inode,) = disk.names.values()
    del inode.cache[sizes[-1] :]

    def failing() -> Iterator[int]:
        yield from sizes
        raise DiskFullError("no room")

    with pytest.raises(DiskFullError, match="no room"):
        list(snapshot_payloads(disk, HOME, target, synced=failing()))
    with pytest.raises(LogCorruptError, match=r"damaged or cut short"):
        list(snapshot_payloads(disk, HOME, target, synced=sizes))


def test_a_full_disk_gives_a_rewriting_up_without_harm() -> None:
    """A disk too full for the snapshot, a log file or the manifest ends the rewriting. The log continues."""
    refused = 0
    for room in range(0, 1800, 60):
        disk = SimDisk()
        log, _ = Log.open(HOME, disk, segment_bytes=200, entropy=entropy(1))
        for record in RECORDS:
            log.append(record)
            log.write()
        log.sync()
        disk.capacity = sum(len(data) for data in files_of(disk).values()) + room
        try:
            rewrite = log.begin_rewrite()
            make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
            log.commit_rewrite(rewrite)
        except (OSError, DiskFullError):
            refused += 1
        disk.capacity = None
        log.remove_obsolete()
        log.append(b"ninth")
        log.close()
        assert opened(disk.reboot(Crash.DROPPED)) == [*RECORDS, b"ninth"]
    assert 10 < refused < 30, "some went through"


def test_every_bit_of_a_snapshot_is_guarded() -> None:
    """Rule A5 for snapshots: a start refuses each flipped byte, names the file and changes nothing."""
    files = rewritten()
    name = snapshot_of(files)
    for at in range(len(files[name])):
        data = bytearray(files[name])
        data[at] ^= 1 << at % 8
        disk = disk_with(files | {name: bytes(data)})
        with pytest.raises(LogCorruptError, match=name) as caught:
            Log.open(HOME, disk)
        assert caught.value.path.endswith(name)
        assert caught.value.offset <= at
        assert files_of(disk)[name] == bytes(data)


def test_every_length_of_a_snapshot_is_guarded() -> None:
    """Rule A4 for snapshots: one that is cut anywhere, or missing, is refused, and is never treated as a torn log."""
    files = rewritten()
    name = snapshot_of(files)
    for size in range(len(files[name])):
        disk = disk_with(files | {name: files[name][:size]})
        with pytest.raises(LogCorruptError, match=name):
            Log.open(HOME, disk)
    del files[name]
    with pytest.raises(LogCorruptError, match="missing"):
        Log.open(HOME, disk_with(files))


def test_a_check_knows_snapshots() -> None:
    """A check of snapshots reports the errors of a start, and counts the records that would be lost."""
    files = rewritten()
    name = snapshot_of(files)
    report = check(HOME, disk_with(files))
    assert report.ok
    assert (report.records, next(file.result.records for file in report.files if file.name == name)) == (1, 8)
    report = check(HOME, disk_with(files | {name: files[name][:-FRAME_SIZE]}))
    assert not report.starts
    assert name in report.problems[0].path
    assert not check(HOME, disk_with({key: data for key, data in files.items() if key != name})).starts


def test_only_what_a_rewriting_left_is_removed() -> None:
    """A start removes unfinished snapshots and replaced log files, and no other file that looks like them."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    before = files_of(disk)
    log.commit_rewrite(rewrite)
    adopted = files_of(disk)
    unfinished = snapshot_name(3, "00" * 8)
    others = {"torn-x": b"kept", "notes.txt": b"kept", "snapshot-of-mine": b"kept"}
    disk = disk_with(adopted | others | {unfinished: b"half"})
    assert opened(disk) == RECORDS
    left = files_of(disk)
    assert unfinished not in left
    assert set(others) <= set(left)
    assert sum(name.startswith("log-") for name in left) == 1
    assert opened(disk_with(before)) == RECORDS, "a whole snapshot that nothing names is one that was not adopted"


@pytest.mark.parametrize("which", ["other log file", "unreadable log file", "later snapshot", "no manifest"])
def test_files_that_hold_more_than_the_log_are_refused(which: str) -> None:
    """A start refuses unnamed files that may hold records of another or a later log, rather than leave them out."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    files = files_of(disk)
    if which == "other log file":
        name = rewrite.source.segments[0].name
        data = bytearray(files[name])
        data[12] ^= 1
        data[28:32] = crc32(bytes(data[:28])).to_bytes(4, "little")
        files[name] = bytes(data)
    elif which == "unreadable log file":
        name = rewrite.source.segments[0].name
        files[name] = b"?" * HEADER_SIZE + files[name][HEADER_SIZE:]
    elif which == "later snapshot":
        files[snapshot_name(9, "00" * 8)] = b"x"
    else:
        del files["MANIFEST"]
    with pytest.raises(LogCorruptError, match="leave them out"):
        Log.open(HOME, disk_with(files))


def test_a_log_without_a_snapshot_is_as_old_programs_know_it() -> None:
    """The first snapshot raises the manifest's format for good. Until then older programs can read the log."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    assert json.loads(files_of(disk)["MANIFEST"].splitlines()[0])["format"] == 1
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    facts = json.loads(files_of(disk)["MANIFEST"].splitlines()[0])
    assert (facts["format"], facts["snapshot"]["last"], len(facts["segments"])) == (2, 8, 1)


def test_what_cannot_be_removed_is_removed_later() -> None:
    """A replaced file that cannot be removed does no harm, and stays listed as obsolete until it is removed."""
    disk = SimDisk()
    log, rewrite = begun(disk)
    make(disk, HOME, rewrite, contents(disk, HOME, rewrite))
    log.commit_rewrite(rewrite)
    disk.faults = dict.fromkeys(range(disk.operations + 1, disk.operations + 40), Fault.EIO)
    with pytest.raises(DiskError):
        log.remove_obsolete()
    disk.faults = {}
    log.append(b"ninth")
    log.write()
    log.sync()
    again = log.begin_rewrite()
    make(disk, HOME, again, contents(disk, HOME, again))
    log.commit_rewrite(again)
    log.remove_obsolete()
    assert kinds(disk) == ["MANIFEST", "log", "snapshot"]
    log.close()
    assert opened(disk) == [*RECORDS, b"ninth"]
