"""A node whose log has packs: a start and rewritings read none, and packs that nothing needs are removed."""

import os
import re
from errno import EACCES, EIO, EMFILE, ENOSPC
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from millstream.embedded.place import parse_place
from millstream.embedded.store import Store
from millstream.engine.cold_ops import references
from millstream.engine.serialization.rdb.reading import RdbKey, read_file
from millstream.engine.streams.stream import Stream
from millstream.errors import DiskError, DiskFullError, LogCorruptError
from millstream.node.log import rewriting
from millstream.node.log.compaction import compact
from millstream.node.log.packs import KeyspacePacks, bring_packs_back, expect_packs, lack_of, open_log
from millstream.node.log.rewriting import Rewriter
from millstream.persistence.disk import Data, RealDisk, RealFile
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from support.coldness import IS_COLD
from support.packed import PackedWorld, open_packs, packed
from support.removed import SHOWS_REMOVED
from support.simdisk import SimDisk, SimFile
from support.waiting import eventually

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)

HOME = Path("/data")


def rewritten(world: PackedWorld) -> rewriting.Rewriter:
    """Rewrite a log on the real disk by a real process."""
    world.sync()
    rewriter = world.rewriter()
    rewriter.start()
    eventually(lambda: not rewriter.facts.is_running)
    assert rewriter.facts.is_ok
    return rewriter


def names(home: Path) -> list[int]:
    """Return the numbers of the packs in a directory."""
    return sorted(int(path.name[5:25]) for path in home.glob("*.pack"))


def test_a_directory_with_packs_is_started_again(tmp_path: Path) -> None:
    """A start finds cold entries where they were, and reads them from their packs."""
    packed(tmp_path / "data")
    world = PackedWorld(tmp_path / "data")
    client = world.client()
    assert client.call("XLEN", "s") == 20
    assert world.stream().entries.extent_count == 3
    found = client.call("XRANGE", "s", "-", "+")
    assert [entry[0] for entry in found] == [b"%d-1" % number for number in range(1, 21)]  # type: ignore[attr-defined]  # a reply may be anything
    world.close()


def test_a_rewriting_removes_the_packs_that_nothing_needs(tmp_path: Path) -> None:
    """Packs of deleted entries go; those of copies, of later records and the one being filled stay."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    client = world.fill("s")
    for key in ("s", "t", "u"):
        world.fill(key) if key != "s" else None
        world.chill(key.encode())
        world.seal()
    client.call("COPY", "t", "copy")
    client.call("DEL", "s", "t")
    world.chill(b"u")
    world.fill("u", first=21)
    world.chill(b"u")  # pack 4, being filled
    rewriter = rewritten(world)
    assert (names(home), rewriter.facts.pack_disagreements) == ([2, 3, 4], 0)
    client.call("DEL", "copy", "u")
    rewritten(world)
    assert names(home) == [4]
    world.seal()
    client.call("SET", "x", "y")
    rewritten(world)
    assert names(home) == []
    world.close()
    assert PackedWorld(home).client().call("DBSIZE") == 1


def test_packs_of_an_earlier_process_that_was_killed_go_as_well(tmp_path: Path) -> None:
    """A pack that no process has ended is not written to again, and is removed when nothing needs it."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    world.fill()
    world.chill()
    world.log.close()  # the pack is not ended
    world = PackedWorld(home)
    client = world.client()
    assert len(client.call("XRANGE", "s", "-", "+")) == 20  # type: ignore[arg-type]  # a reply may be anything
    rewritten(world)
    assert names(home) == [1]
    client.call("DEL", "s")
    rewritten(world)
    assert names(home) == []
    world.close()


def test_a_pack_that_memory_needs_stays_and_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the log and the memory disagree about a pack, it stays, and the server reports an internal error."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    world.fill()
    world.chill()
    world.seal()
    stream = world.stream()
    world.client().call("DEL", "s")
    world.node.keyspace.databases[0].keys[b"s"] = stream  # no record says so
    rewriter = rewritten(world)
    assert (names(home), rewriter.facts.pack_disagreements) == ([1], 1)
    assert "internal error: the log does not need pack-00000000000000000001-" in caplog.text
    del world.node.keyspace.databases[0].keys[b"s"]  # the stream object lives on, which is not a reference of the data
    world.client().call("SET", "a", "b")
    assert stream.entries.extent_count
    rewriter = rewritten(world)
    assert (names(home), rewriter.facts.pack_disagreements) == ([], 0)
    world.close()


class BlindFile(SimFile):
    """A pack of which only header and seal may be read."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the header or the seal."""
        assert offset + size <= HEADER_SIZE or offset >= self.size() - FRAME_SIZE, "entries are read"
        return super().read_at(offset, size)


class Blind(SimDisk):
    """A disk that returns only header and seal of a pack once it is blind."""

    blind = False

    def open_read(self, path: Path) -> SimFile:
        """Open a file."""
        file = super().open_read(path)
        return BlindFile(self, path, self._inode(path)) if self.blind and path.name.endswith(".pack") else file


def test_a_start_and_a_rewriting_read_no_cold_entry() -> None:
    """A start, a rewriting and a start from its snapshot read nothing of a pack but header and seal."""
    disk = Blind()
    packed(HOME, disk)
    for _ in range(2):
        disk.blind = True
        world = PackedWorld(HOME, disk)
        expect_packs(world.node.keyspace, world.log)
        world.client().call("XADD", "s", "*", "f", "v")
        world.sync()
        rewrite = world.log.begin_rewrite()
        assert rewrite is not None
        needed: list[int] = []
        compact(disk, HOME, rewrite, on_packs=needed.extend)
        assert needed == [1]
        world.log.commit_rewrite(rewrite, world.log.settled_packs(rewrite) - {*needed})
        world.log.remove_obsolete()
        disk.blind = False
        assert len(world.client().call("XRANGE", "s", "-", "20-1")) == 20  # type: ignore[arg-type]  # a reply may be anything
        world.close()


def test_obsolete_log_files_are_removed_before_packs() -> None:
    """A log to which a start could fall back has all its packs, whenever the removal is interrupted."""
    disk = SimDisk()
    packed(HOME, disk)
    world = PackedWorld(HOME, disk)
    world.client().call("DEL", "s")
    world.sync()
    rewrite = world.log.begin_rewrite()
    assert rewrite is not None
    needed: list[int] = []
    compact(disk, HOME, rewrite, on_packs=needed.extend)
    world.log.commit_rewrite(rewrite, world.log.settled_packs(rewrite) - {*needed})
    disk.trace.clear()
    world.log.remove_obsolete()
    removed = [name.partition("-")[0] for what, name in disk.trace if what == "remove"]
    assert removed == ["log"] * (len(removed) - 1) + ["pack"]


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_rewriting_keeps_the_log_of_a_pack_that_is_gone(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A rewriting is cancelled if a needed pack is missing or shorter, since the log may have the entries still."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    client = world.fill()
    world.chill()
    world.seal()
    world.sync()
    (pack,) = home.glob("*.pack")
    if how == "missing":
        pack.rename(tmp_path / "moved").unlink()  # so the open file does not tell that it was this pack
    else:
        os.truncate(pack, pack.stat().st_size - 1)
    before = world.log.total_bytes
    rewriter = world.rewriter()
    rewriter.start()
    eventually(lambda: not rewriter.facts.is_running)
    assert (rewriter.facts.is_ok, rewriter.facts.lacking) == (False, pack.name)
    assert world.log.total_bytes >= before
    assert pack.name in caplog.text
    assert f"log cut --pack {pack.name}" in caplog.text
    with (tmp_path / "copy").open("w+b") as file:
        assert rewriter.start(copy=rewriting.CopyOrder(file, 10, lambda _: None))
        assert rewriter.report().lacking == pack.name
        eventually(lambda: not rewriter.facts.is_running)
    assert (rewriter.facts.is_ok, rewriter.facts.lacking) == (False, pack.name)
    said = re.escape(f"entries 1-1 to 6-1 of a stream cannot be read from {pack}, so no copy for replicas can be made")
    assert bool(re.search(said, caplog.text)) == (how == "missing")
    client.call("DEL", "s")
    world.sync()
    assert rewriter.start()
    eventually(lambda: not rewriter.facts.is_running)
    assert (rewriter.facts.is_ok, rewriter.facts.lacking) == (True, "")
    assert names(home) == []
    world.close()


@SHOWS_REMOVED
def test_a_rewriting_writes_a_removed_pack_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The open file is the only copy then, and would go with the server."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    client = world.fill()
    world.chill()
    world.seal()
    world.sync()
    (pack,) = home.glob("*.pack")
    data = pack.read_bytes()
    with pack.open("rb"):
        for size in (100, None):
            pack.unlink()
            if size is not None:
                pack.write_bytes(data[:size])
            rewritten(world)
            assert pack.read_bytes() == data
            client.call("SET", "x", "y")  # so there is something to rewrite
    assert pack.stat().st_mode & 0o77 == 0
    assert caplog.text.count("it was written anew from the open file") == 2
    world.close()


def test_a_pack_that_was_removed_while_it_is_filled_takes_no_more(tmp_path: Path) -> None:
    """A start would not find the entries, so they stay in memory."""
    world = PackedWorld(tmp_path)
    world.fill()
    world.chill()
    (pack,) = tmp_path.glob("*.pack")
    pack.unlink()
    world.fill("t")
    with pytest.raises(DiskError, match=f"{pack.name} was removed or moved away"):
        world.chill(b"t")
    assert world.stream(b"t").entries.extent_count == 0
    world.close()


@SHOWS_REMOVED
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_pack_that_was_written_anew_while_it_is_filled_starts(tmp_path: Path, *, goes_on: bool) -> None:
    """The writer does not go on in the removed file, and no seal is only there."""
    world = PackedWorld(tmp_path)
    world.fill()
    world.chill()
    (pack,) = tmp_path.glob("*.pack")
    pack.unlink()
    rewritten(world)
    if goes_on:
        world.fill("t")
        with pytest.raises(DiskError, match=f"{pack.name} is another file now"):
            world.chill(b"t")
    world.close()
    again = PackedWorld(tmp_path)
    expect_packs(again.node.keyspace, again.log)
    assert len(again.client().call("XRANGE", "s", "-", "+")) == 20  # type: ignore[arg-type]  # a reply may be anything
    again.close()


@SHOWS_REMOVED
@pytest.mark.parametrize("lacking", [1, 2])
def test_a_stop_writes_each_pack_anew_that_it_can(tmp_path: Path, lacking: int) -> None:
    """A pack that lacks does not keep the next one from being written, and one command names all that lack."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    for key in ("s", "t", "u"):
        world.fill(key)
        world.chill(key.encode())
        world.seal()
    world.sync()
    packs = sorted(home.glob("*.pack"))
    data, short = packs[-1].read_bytes(), packs[:lacking]
    for pack in short:
        os.truncate(pack, pack.stat().st_size - 1)
    with packs[-1].open("rb"):
        packs[-1].unlink()
        with pytest.raises(DiskError) as raised:
            bring_packs_back(world.log)
    assert packs[-1].read_bytes() == data
    options = " ".join(f"--pack {pack.name}" for pack in short)
    assert f"run `millstream log cut {options} {home}`" in str(raised.value)
    assert all(f"{pack.name} has " in str(raised.value) for pack in short)
    world.close()


class DyingFile(RealFile):
    """A file that takes 100 bytes, and then the process dies."""

    def append(self, data: Data) -> int:
        """Write a part, and raise."""
        super().append(memoryview(data)[:100])
        raise KeyboardInterrupt


class DyingDisk(RealDisk):
    """A disk of a process that dies while it writes a pack anew: it does nothing afterwards."""

    dies = False

    def create(self, path: Path) -> RealFile:
        """Create a file."""
        file = super().create(path)
        return DyingFile(file.detach(), path) if self.dies else file

    def remove(self, path: Path) -> None:
        """Remove a file, or raise."""
        if self.dies:
            raise OSError("the process has died")
        super().remove(path)


@SHOWS_REMOVED
def test_a_crash_while_a_pack_is_written_anew_leaves_no_part_of_it(tmp_path: Path) -> None:
    """The part has another name, which a start removes once the pack is there again."""
    disk = DyingDisk()
    packed(tmp_path, disk)
    world = PackedWorld(tmp_path, disk)
    (pack,) = tmp_path.glob("*.pack")
    data = pack.read_bytes()
    with pack.open("rb"):
        pack.unlink()
        disk.dies = True
        with pytest.raises(KeyboardInterrupt):
            bring_packs_back(world.log)
        disk.dies = False
        (part,) = tmp_path.glob("*.pack")
        assert (part == pack, part.read_bytes()) == (False, data[:100])
        bring_packs_back(world.log)
    assert pack.read_bytes() == data
    assert pack.stat().st_mode & 0o77 == 0
    world.close()
    open_log(tmp_path)[0].close()
    assert list(tmp_path.glob("*.pack")) == [pack]


@SHOWS_REMOVED
def test_no_pack_is_written_to_the_directory_of_another_log(tmp_path: Path) -> None:
    """A directory may be removed and made again by another server, whose packs have the same numbers."""
    home = tmp_path / "data"
    packed(home)
    world = PackedWorld(home)
    (pack,) = home.glob("*.pack")
    with pack.open("rb"):
        rmtree(home)
        other, _ = open_log(home)
        before = sorted(home.iterdir())
        with pytest.raises(DiskError, match="is another directory now") as raised:
            bring_packs_back(world.log)
        assert "log cut" not in str(raised.value)
        assert sorted(home.iterdir()) == before
        other.close()
    world.log.abandon()


def test_a_rewriting_names_damaged_entries_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names what an old log may have been the last copy of."""
    world = PackedWorld(tmp_path / "data")
    world.fill()
    world.chill()
    first, *_, last = next(iter(references(world.node.keyspace)))[2]
    damages = {first[:2], last[:2]}
    world.sync()
    packs = KeyspacePacks(world.node.keyspace, lambda job: job(), damaged=lambda: damages)
    rewriter = Rewriter(world.log, world.node.config, packs=packs)
    for _ in range(2):
        assert rewriter.start()
        eventually(lambda: not rewriter.facts.is_running)
        assert rewriter.facts.is_ok
    assert caplog.text.count("the last copy of damaged entries: 12 entries 1-1 to 18-1 of 's'") == 1
    world.close()


@pytest.mark.parametrize("how", ["missing", "cut", "foreign", "unsealed"])
def test_a_start_without_a_pack_is_refused_with_what_would_be_missing(tmp_path: Path, how: str) -> None:
    """The error names streams, ids and the command to go on; the server and the embedded store give the same one."""
    home = tmp_path / "data"
    packed(home)
    (pack,) = home.glob("*.pack")
    data = pack.read_bytes()
    if how == "missing":
        pack.unlink()
    elif how == "cut":
        pack.write_bytes(data[:-100])
    elif how == "foreign":
        pack.write_bytes(data[:20] + Random(1).randbytes(12) + data[32:])
    else:
        pack.write_bytes(data[:-FRAME_SIZE] + bytes(FRAME_SIZE))
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    said = re.escape("18 entries 1-1 to 18-1 of 's'. ") + f".*log cut --pack {pack.name} {re.escape(str(home))}"
    with pytest.raises(LogCorruptError, match=said):
        open_log(home)
    with pytest.raises(LogCorruptError, match=said):
        Store(parse_place(f"file://{home}"))
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


@pytest.mark.parametrize(("code", "names_cut"), [(EACCES, True), (EMFILE, False)])
def test_a_start_without_a_pack_is_refused_though_another_cannot_be_opened(
    tmp_path: Path, code: int, *, names_cut: bool
) -> None:
    """The error is that of the lost pack. A lack of descriptors does not make the command give up the other one."""
    world = PackedWorld(tmp_path)
    for key in ("s", "t"):
        world.fill(key)
        world.chill(key.encode())
        world.seal()
    world.close()
    lost, other = sorted(tmp_path.glob("*.pack"))
    lost.unlink()

    class Refusing(RealDisk):
        """Disk that does not open that pack."""

        def open_read(self, path: Path) -> RealFile:
            if path.name == other.name:
                raise OSError(code, os.strerror(code))
            return super().open_read(path)

    with pytest.raises(LogCorruptError, match=f"{lost.name} is missing") as raised:
        open_log(tmp_path, Refusing())
    assert ("log cut" in str(raised.value)) is names_cut


class SizelessDisk(RealDisk):
    """A disk that does not report its size."""

    def total(self, directory: Path) -> int:
        raise OSError(EIO, "Input/output error")


def test_a_store_that_cannot_open_leaves_no_pack_open(tmp_path: Path) -> None:
    """An error after the packs were opened closes them, and the directory opens later."""
    packed(tmp_path)
    place = parse_place(f"file://{tmp_path}")
    with pytest.raises(DiskError, match="size of the file system") as raised:
        Store(place, disk=SizelessDisk())
    assert raised.tb, "it refers to the store"
    assert open_packs(tmp_path) == []
    Store(place).close()


def test_records_that_need_a_pack_which_is_not_named_are_refused(tmp_path: Path) -> None:
    """A manifest without the pack, or with a shorter one, is found after the load, which reads no pack."""
    disk = SimDisk()
    packed(HOME, disk)
    world = PackedWorld(HOME, disk)
    log = world.log
    (entry,) = log.packs
    for wrong in ((), (entry.__class__(entry.name, 1, entry.identity, HEADER_SIZE + 5),)):
        log._manifest = log._manifest.__class__(log._manifest.segments, packs=wrong, next_pack=2)  # noqa: SLF001 - no other way leads here
        with pytest.raises(LogCorruptError, match="18 entries 1-1 to 18-1 of 's'") as raised:
            expect_packs(world.node.keyspace, log)
        assert ("With --keep-readable" in str(raised.value)) is bool(wrong)


def test_a_copy_for_redis_has_cold_entries(tmp_path: Path) -> None:
    """An RDB file of a log with packs holds all entries: the child reads the packs in order."""
    world = PackedWorld(tmp_path / "data")
    world.fill()
    world.chill()
    world.sync()
    rewriter = world.rewriter()
    with (tmp_path / "copy").open("w+b") as file:
        rewriter.start(copy=rewriting.CopyOrder(file, 10, lambda _: None))
        eventually(lambda: not rewriter.facts.is_running)
    assert rewriter.facts.is_ok
    (item,) = (each for each in read_file([(tmp_path / "copy").read_bytes()]) if isinstance(each, RdbKey))
    assert isinstance(item.value, Stream)
    assert [each >> 64 for each in item.value.entries.ids(0, 1 << 127)] == list(range(1, 21))
    world.close()


class LackingDisk(RealDisk):
    """A disk that neither renames a file nor opens a pack, while descriptors lack."""

    lacks = False

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, or raise."""
        if self.lacks:
            raise OSError(EMFILE, "Too many open files")
        super().rename(old, new)

    def open_read(self, path: Path) -> RealFile:
        """Open a file, or raise."""
        if self.lacks and path.suffix == ".pack":
            raise OSError(EMFILE, "Too many open files")
        return super().open_read(path)

    def open_unreserved(self, path: Path) -> RealFile:
        """Open a file, or raise."""
        return self.open_read(path) if self.lacks else super().open_unreserved(path)


def test_a_pack_that_cannot_be_opened_for_lack_of_descriptors_is_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rewriting fails, and a stop says so; neither names the command that gives the entries up."""
    disk = LackingDisk()
    packed(tmp_path, disk)
    world = PackedWorld(tmp_path, disk)
    world.client().call("SET", "x", "y")
    world.sync()
    (pack,) = tmp_path.glob("*.pack")
    disk.lacks = True
    bring_packs_back(world.log)
    assert f"{pack.name} could not be looked at: cannot open" in caplog.text
    with pytest.raises(DiskFullError, match="Too many open files"):
        lack_of(world.log, world.log.packs[0], 1)
    assert "log cut" not in caplog.text
    disk.lacks = False
    world.close()


@SHOWS_REMOVED
def test_a_removed_pack_that_a_full_disk_refuses_is_lost_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewriting fails and is tried again, but a stop takes the open file along."""
    packed(tmp_path)
    world = PackedWorld(tmp_path)
    (pack,) = tmp_path.glob("*.pack")

    def refuse(disk: RealDisk, path: Path) -> RealFile:
        raise OSError(ENOSPC, f"No space left on device: {disk} {path}")

    with pack.open("rb"):
        pack.unlink()
        with monkeypatch.context() as context:
            context.setattr(RealDisk, "create", refuse)
            with pytest.raises(DiskFullError, match="it cannot be written anew: No space left"):
                lack_of(world.log, world.log.packs[0], 1)
            with pytest.raises(DiskError, match=r"it cannot be written anew: No space left.*log cut"):
                bring_packs_back(world.log)
        bring_packs_back(world.log)
    assert pack.exists()
    world.close()


def test_a_pack_of_unknown_size_leaves_no_file_open(tmp_path: Path) -> None:
    """If the size of a pack cannot be read, a copy fails in words, and the files of the log are closed."""
    disk = LackingDisk()
    world = PackedWorld(tmp_path, disk)
    world.fill()
    world.chill()
    disk.lacks = True
    with pytest.raises(DiskFullError):
        world.seal()  # so the manifest does not have its size
    world.pack = None
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(DiskError, match=r"cannot read .*\.pack"):
        world.log.files(world.log.appended, frozenset())
    assert len(list(Path("/dev/fd").iterdir())) == before
    disk.lacks = False
    world.close()
