"""Packs in a data directory: named before they hold an entry, not read by a start, refused if incomplete."""

import errno
import os
import sys
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import DiskError, DiskFullError, LogCorruptError, UsageError
from millstream.persistence import packs
from millstream.persistence.check import check
from millstream.persistence.disk import RealDisk, RealFile
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import NAME, Manifest, PackEntry, read_manifest, taken_name
from millstream.persistence.packs import PackWriter, expect_pack, extents_of
from millstream.persistence.rewrite import contents, make
from persistence.reference import HOME, disk_with, entropy, files_of
from support.removed import SHOWS_REMOVED
from support.simdisk import Crash, Fault, SimDisk, SimFile

EXTENTS = [b"first" * 6, b"", b"third" * 8]
RECORDS = [b"one", b"two"]
SEALED = HEADER_SIZE + sum(FRAME_SIZE + len(each) for each in EXTENTS) + FRAME_SIZE


def begun(disk: SimDisk, seed: int = 1) -> Log:
    """Return a log of two records with a sealed pack and one being filled."""
    log, _ = Log.open(HOME, disk, entropy=entropy(seed))
    for record in RECORDS:
        log.append(record)
    pack = log.add_pack()
    places = pack.add(EXTENTS[:2]) + pack.add(EXTENTS[2:])
    assert [at for at, _ in places] == [HEADER_SIZE, HEADER_SIZE + 54, HEADER_SIZE + 78]
    log.end_pack(pack)
    log.add_pack().add(EXTENTS)
    log.write()
    log.sync()
    return log


def made(seed: int = 1) -> dict[str, bytes]:
    """Return the files of that log, closed."""
    disk = SimDisk()
    begun(disk, seed).close()
    return files_of(disk)


def packs_in(files: dict[str, bytes]) -> list[str]:
    """Return the names of the packs, the sealed one first."""
    return sorted(name for name in files if name.startswith("pack-"))


def manifest_of(files: dict[str, bytes]) -> Manifest:
    """Return the manifest."""
    return Manifest.decode(files[NAME], HOME)


def started(disk: SimDisk) -> list[bytes]:
    """Return the records of a start."""
    log, recovery = Log.open(HOME, disk)
    payloads = list(recovery.payloads())
    log.close()
    return payloads


def extents(files: dict[str, bytes], entry: PackEntry) -> list[bytes]:
    """Return the extents read from a pack."""
    return [payload for _, payload in extents_of(disk_with(files), HOME, entry)]


def rewritten(log: Log, disk: SimDisk, gone: set[int]) -> None:
    """Rewrite the log, and release packs."""
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(disk, HOME, rewrite, list(contents(disk, HOME, rewrite)))
    log.commit_rewrite(rewrite, gone)


def test_packs_are_in_the_manifest_from_the_first_one_on() -> None:
    """Without a pack the manifest has the format of versions without packs, byte for byte.

    The first pack makes it format 3.
    """
    disk = SimDisk()
    log, _ = Log.open(HOME, disk)
    assert manifest_of(files_of(disk)).facts().keys() == {"format", "snapshot", "segments"}
    log.close()
    files = made()
    manifest = manifest_of(files)
    facts = manifest.facts()
    assert (facts["format"], facts["next_pack"], facts["gone"]) == (3, 3, [])
    assert [(each.number, each.bytes, each.sealed) for each in manifest.packs] == [(1, SEALED, True), (2, None, False)]
    assert [each.name for each in manifest.packs] == packs_in(files)
    assert [extents(files, each) for each in manifest.packs] == [EXTENTS, EXTENTS]
    report = check(HOME, disk_with(files))
    assert report.ok
    found = [(file.result.records, file.result.sealed) for file in report.files if "pack" in file.name and file.result]
    assert found == [(3, True), (3, False)]


class BlindFile(SimFile):
    """Pack that raises when its entries are read."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the header or the seal."""
        assert offset + size <= HEADER_SIZE or offset >= self.size() - FRAME_SIZE, "entries are read"
        return super().read_at(offset, size)


class Blind(SimDisk):
    """Disk that returns only the header and seal of a pack."""

    def open_read(self, path: Path) -> SimFile:
        """Open a file; entries of a pack raise."""
        file = super().open_read(path)
        return BlindFile(self, path, self._inode(path)) if path.name.startswith("pack-") else file


def test_the_size_of_all_packs_is_known_while_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """INFO and the limit of packs need it, and a failing disk must not end the server there."""
    files = made()
    disk = disk_with(files)
    log, _ = Log.open(HOME, disk)

    def refuse(path: Path) -> SimFile:
        raise OSError(errno.EIO, f"Input/output error: {path}")

    sealed = sum(entry.bytes or 0 for entry in log.packs)
    with monkeypatch.context() as context:
        context.setattr(disk, "open_read", refuse)
        assert log.pack_bytes() == sealed > 0
    assert log.pack_bytes() == sum(len(files[name]) for name in packs_in(files)) > sealed
    log.close()


def test_a_start_and_a_rewriting_read_no_entry_of_a_pack() -> None:
    """A start and a rewriting read no entry of a pack: more entries do not slow them, nor does damage stop them."""
    disk = Blind()
    disk.names = disk_with(made()).names
    log, recovery = Log.open(HOME, disk)
    assert list(recovery.payloads()) == RECORDS
    rewritten(log, disk, {1})
    log.remove_obsolete()
    log.close()
    assert started(disk) == RECORDS
    assert [entry.number for entry in manifest_of(files_of(disk)).packs] == [2]


def test_any_byte_changed_or_cut_of_a_pack_is_found_and_never_another_extent() -> None:
    """A check finds any changed or missing byte of a pack. A reader never returns a wrong extent.

    A start refuses only a wrong header, size or seal.
    """
    files = made()
    (entry, other) = manifest_of(files).packs
    whole = files[entry.name]
    for at in range(len(whole)):
        changed = files | {entry.name: whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :]}
        report = check(HOME, disk_with(changed))
        assert not report.ok, at
        edge = at < HEADER_SIZE or at >= SEALED - FRAME_SIZE
        assert report.starts is not edge, at
        if edge:
            with pytest.raises(LogCorruptError, match=r"pack-|log check"):
                Log.open(HOME, disk_with(changed))
        else:
            assert started(disk_with(changed)) == RECORDS
            found = extents(changed, entry)
            assert found == EXTENTS[: len(found)]
            assert len(found) < 3
        cut = files | {entry.name: whole[:at]}
        assert not check(HOME, disk_with(cut)).starts
        with pytest.raises(LogCorruptError):
            Log.open(HOME, disk_with(cut))
        if at >= HEADER_SIZE:  # a pack that was being filled is as a log's last file: a crash may have torn it
            torn = files | {other.name: files[other.name][:at]}
            assert check(HOME, disk_with(torn)).ok
            found = extents(torn, other)
            assert found == EXTENTS[: len(found)]


def test_a_pack_of_another_log_is_refused_by_each_reader() -> None:
    """A pack of the right name with the identity or number of another is refused by each reader."""
    files, others = made(), made(seed=2)
    (entry, second) = manifest_of(files).packs
    for data in (others[packs_in(others)[0]], files[second.name], b"", b"x" * 500):
        changed = files | {entry.name: data}
        with pytest.raises(LogCorruptError):
            Log.open(HOME, disk_with(changed))
        with pytest.raises(LogCorruptError):
            extents(changed, entry)
        assert not check(HOME, disk_with(changed)).starts


def test_a_missing_pack_is_refused_by_name() -> None:
    """A start with a missing pack is refused, names the file and the loss, and changes nothing."""
    files = made()
    name = packs_in(files)[0]
    del files[name], files["lock"]
    disk = disk_with(files)
    with pytest.raises(LogCorruptError, match=f"{name} is missing, which holds entries that are in no other file"):
        Log.open(HOME, disk)
    assert {other: data for other, data in files_of(disk).items() if other != "lock"} == files
    assert not check(HOME, disk_with(files)).starts


def test_a_pack_that_nothing_names_is_removed_only_if_it_holds_no_entry() -> None:
    """A start removes an unnamed pack without entries, which a crash leaves. One with entries is refused."""
    files, others = made(), made(seed=2)
    stray = packs_in(others)[0]
    disk = disk_with(files | {stray: others[stray][:HEADER_SIZE]})
    assert started(disk) == RECORDS
    assert stray not in files_of(disk)
    for left in (files, {}):
        disk = disk_with(left | {stray: others[stray]})
        with pytest.raises(LogCorruptError, match=f"{stray} holds"):
            Log.open(HOME, disk)
        assert not check(HOME, disk).starts
        assert files_of(disk)[stray] == others[stray]


def test_a_log_that_is_fallen_back_to_has_the_packs_that_a_rewriting_let_go() -> None:
    """If a damaged snapshot makes a start use the older files, the packs that those refer to are still there."""
    disk = SimDisk()
    log = begun(disk)
    rewritten(log, disk, {1})
    files = files_of(disk)
    (gone,) = manifest_of(files).gone
    assert gone.number == 1
    (snapshot,) = (name for name in files if name.startswith("snapshot-"))
    damaged = files | {snapshot: files[snapshot][:-1], "lock": b""}
    again = disk_with(damaged)
    assert started(again) == RECORDS
    manifest = read_manifest(again, HOME)
    assert manifest is not None
    assert ([each.number for each in manifest.packs], manifest.gone, manifest.next_pack) == ([1, 2], (), 3)
    expect_pack(again, HOME, manifest.packs[0])
    with pytest.raises(LogCorruptError, match="snapshot"):
        Log.open(HOME, disk_with({name: data for name, data in damaged.items() if name != gone.name}))
    whole = disk_with(files | {"lock": b""})
    assert started(whole) == RECORDS
    assert gone.name not in files_of(whole)


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.SHORT], ids=lambda fault: fault.name)
def test_a_write_that_failed_leaves_a_pack_whose_first_extents_count(fault: Fault) -> None:
    """A pack write that fails at any step leaves the earlier extents readable, and ends the pack."""
    for step in range(1, 6):
        disk = SimDisk()
        log, _ = Log.open(HOME, disk)
        pack = log.add_pack()
        pack.add(EXTENTS[:2])
        disk.faults = {disk.operations + step: fault}
        try:
            pack.add(EXTENTS[2:])
            count = 3
        except DiskError as error:
            assert fault is not Fault.SHORT
            count = 2
            if not isinstance(error, DiskFullError):
                with pytest.raises(DiskError, match="takes no more entries"):
                    pack.add(EXTENTS[2:])
        disk.faults = {}
        log.end_pack(pack)
        log.close()
        files = files_of(disk.reboot(Crash.DROPPED))
        (entry,) = manifest_of(files).packs
        assert extents(files, entry) == EXTENTS[:count]
        assert check(HOME, disk_with(files)).ok


def test_a_batch_is_written_and_read_back_in_parts(tmp_path: Path) -> None:
    """Writing a batch of 8 MiB and reading it back takes less than 4 MiB of memory, which nothing counts."""
    batch = [bytes((number,)) * (256 << 10) for number in range(32)]
    log, _ = Log.open(tmp_path, RealDisk())
    pack = log.add_pack()
    tracemalloc.start()
    try:
        places = pack.add(batch)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    log.end_pack(pack)
    (entry,) = log.packs
    log.close()
    assert most < 4 << 20
    assert list(extents_of(RealDisk(), tmp_path, entry)) == list(zip([at for at, _ in places], batch, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot say what is in the page cache")
def test_a_check_leaves_a_part_in_the_page_cache_that_was_there(tmp_path: Path) -> None:
    """Pages that a reader has just used stay, though the pages behind them come from the disk."""
    path, page = tmp_path / "pack", 4096
    path.write_bytes(bytes(64 * page))
    with closing(RealDisk().open_read(path)) as file:
        assert isinstance(file, RealFile)
        number = file.fileno()
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(number, 4 * page, 0)
        assert packs.read_quietly(file, 0, 64 * page) == bytes(64 * page)
        assert os.preadv(number, [bytearray(4 * page)], 0, os.RWF_NOWAIT) == 4 * page
        with pytest.raises(BlockingIOError):  # the rest has left again
            os.preadv(number, [bytearray(page)], 8 * page, os.RWF_NOWAIT)


def test_a_pack_that_became_shorter_is_read_to_its_end_at_most() -> None:
    """The missing bytes of a sealed pack are one damage. The search for whole extents does not step through them."""
    files, reads = made(), []
    (entry, _) = manifest_of(files).packs
    disk = disk_with(files | {entry.name: files[entry.name][: HEADER_SIZE + FRAME_SIZE + 40]})

    class Counted(SimFile):
        """Pack that counts its reads."""

        def read_at(self, offset: int, size: int) -> bytes:
            reads.append(offset)
            return super().read_at(offset, size)

    path = HOME / entry.name
    found, end = packs.scrub(Counted(disk, path, disk.names[path]), entry, HEADER_SIZE, 1 << 20)
    assert (found, end) == ([HEADER_SIZE + FRAME_SIZE + 30], SEALED - FRAME_SIZE)
    assert len(reads) < 6


@pytest.mark.parametrize("bad", range(8))
def test_a_sector_that_cannot_be_read_damages_its_frames_only(bad: int) -> None:
    """The frames behind it are compared too, whether a head or a payload begins in it."""
    disk = SimDisk()
    log, _ = Log.open(HOME, disk)
    pack = log.add_pack()
    places = pack.add([bytes(3000)] * 10)
    log.end_pack(pack)
    (entry,) = log.packs
    begin, end = bad * 4096, (bad + 1) * 4096

    class Bad(SimFile):
        """Pack with that sector."""

        def read_at(self, offset: int, size: int) -> bytes:
            if offset < end and begin < offset + size:
                raise OSError(errno.EIO, "Input/output error")
            return super().read_at(offset, size)

    path = HOME / entry.name
    disk.names[path].cache[places[-1][0] + FRAME_SIZE + 2900] ^= 1
    found, _ = packs.scrub(Bad(disk, path, disk.names[path]), entry, HEADER_SIZE, 1 << 20)
    touched = [at for at, size in places if at < end and begin < at + size]
    assert found[0] == touched[0]
    assert found[-1] == places[-1][0]
    assert {*found} <= {*touched, places[-1][0]}  # nobody knows of a frame whose head is behind an unreadable one


def test_an_extent_that_no_reader_would_accept_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame has a largest size. The pack stays as it was, and takes the next extents."""
    monkeypatch.setattr(packs, "MAX_PAYLOAD", 20)
    disk = SimDisk()
    log, _ = Log.open(HOME, disk)
    pack = log.add_pack()
    with pytest.raises(UsageError, match="at most 20 bytes"):
        pack.add([b"", b"x" * 21])
    pack.add([b"x" * 20])
    log.end_pack(pack)
    (entry,) = manifest_of(files_of(disk)).packs
    assert extents(files_of(disk), entry) == [b"x" * 20]


def test_a_quick_check_reads_of_a_pack_what_a_start_reads() -> None:
    """It finds the damage that stops a start, and reads no entry."""
    files = made()
    (entry, _) = manifest_of(files).packs
    disk = Blind()
    disk.names = disk_with(files).names
    report = check(HOME, disk, quick=True)
    assert (report.ok, report.records) == (True, 2)
    whole = files[entry.name]
    for at in range(len(whole)):
        changed = disk_with(files | {entry.name: whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1 :]})
        edge = at < HEADER_SIZE or at >= SEALED - FRAME_SIZE
        assert check(HOME, changed, quick=True).starts is not edge, at


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": "1"},
        {"name": "pack-../../etc/passwd"},
        {"identity": "0" * 15},
        {"bytes": 31},
        {"bytes": None},
        {"bytes": 2**63},
        {"bytes": "9"},
        {"sealed": None},
        {"other": 1},
    ],
    ids=str,
)
def test_a_manifest_with_a_pack_that_is_none_is_refused(change: dict[str, object]) -> None:
    """Pack names and numbers in the manifest that Millstream never writes are refused before any file is opened."""
    facts = manifest_of(made()).facts()
    facts["packs"][0] |= change
    with pytest.raises((ValueError, TypeError)):
        Manifest.of(facts)
    facts = manifest_of(made()).facts()
    for other in ({"next_pack": 2}, {"next_pack": None}, {"gone": facts["packs"]}, {"packs": None}):
        with pytest.raises((ValueError, TypeError)):
            Manifest.of(facts | other)


def test_a_pack_that_begins_during_a_rewriting_is_left_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewriting does not let a new pack go, not even while the manifest begins to name it."""
    disk = SimDisk()
    log = begun(disk)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    sync = SimDisk.sync_directory
    found: list[set[int]] = []

    def observed(self: SimDisk, directory: Path) -> None:
        sync(self, directory)
        found.append(log.settled_packs(rewrite))

    monkeypatch.setattr(SimDisk, "sync_directory", observed)
    log.end_pack(log.add_pack())
    assert log.settled_packs(rewrite) == {1}
    assert found
    assert all(each == {1} for each in found)


def test_a_pack_whose_end_the_disk_refused_is_settled() -> None:
    """A full disk may refuse the manifest of a pack's end. The next rewriting may let the pack go all the same."""
    disk = SimDisk()
    log, _ = Log.open(HOME, disk)
    pack = log.add_pack()
    pack.add(EXTENTS)
    log.append(b"one")
    log.write()
    disk.faults = {disk.operations + step: Fault.ENOSPC for step in range(3, 6)}
    with pytest.raises(DiskFullError):
        log.end_pack(pack)
    disk.faults = {}
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    assert log.settled_packs(rewrite) == {1}


@SHOWS_REMOVED
def test_no_other_file_takes_the_place_of_a_removed_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close the removed pack and get its number for another file, once its name was read."""
    log, _ = Log.open(tmp_path)
    pack = log.add_pack()
    log.end_pack(pack)
    entry = log.packs[0]
    other, readlink = tmp_path / "other", Path.readlink
    other.write_bytes(b"other")
    (tmp_path / entry.name).unlink()
    was_read = []

    def before(path: Path) -> Path:
        found = readlink(path)
        if found == other and not was_read:
            was_read.append(path)
            return tmp_path / f"{entry.name} (deleted)"
        return found

    monkeypatch.setattr(Path, "readlink", before)
    with other.open("rb"):
        assert not log.bring_back(entry)
    assert was_read
    assert not (tmp_path / entry.name).exists()
    log.close()


def test_a_write_does_not_wait_until_packs_of_a_copy_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal of a large file takes long."""
    log, _ = Log.open(tmp_path)
    name = taken_name(1, "0123456789abcdef", "00000000")
    log.receive_pack(name).close()
    remove, written = RealDisk.remove, threading.Event()

    def write() -> None:
        log.append(b"one")
        log.write()
        written.set()

    def removing(disk: RealDisk, path: Path) -> None:
        threading.Thread(target=write, daemon=True).start()
        assert written.wait(9), "the write waits"
        remove(disk, path)

    monkeypatch.setattr(RealDisk, "remove", removing)
    log.discard_packs([name])
    assert not (tmp_path / name).exists()
    log.close()


def test_a_pack_that_begins_while_sizes_are_taken_keeps_no_size() -> None:
    """The size that another thread sees of a new pack is not taken for its last one."""
    disk = SimDisk()
    log, _ = Log.open(HOME, disk)
    added: list[PackWriter] = []

    class Adding(dict[int, PackWriter]):
        """Packs being filled; another thread adds one once they were looked at."""

        def items(self) -> Any:
            found = list(super().items())
            if not added:
                added.append(log.add_pack())
            return found

    log._filled = Adding()  # noqa: SLF001 - threads meet there by chance only
    assert log.pack_sizes() == {}
    (pack,) = added
    pack.add(EXTENTS)
    disk.faults = {disk.operations + step: Fault.ENOSPC for step in range(3, 6)}
    with pytest.raises(DiskFullError):  # so the manifest does not have its size
        log.end_pack(pack)
    disk.faults = {}
    assert log.pack_sizes() == {1: SEALED}
