"""A byte of a pack changes before, while or after a vacuum copies it: no entry is wrong, and no damage is hidden."""

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.engine.cold import NO_HOLES, Extent, cold_records, unpack_extents
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.replies import Error
from node.test_vacuum import care, filled
from persistence.reference import disk_with, files_of
from support.coldness import IS_COLD
from support.inprocess import Client
from support.simdisk import SimFile
from support.spilled import SpillWorld, small

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

COUNT = 40
GONE = (4, 5, 14, 20, 26)
PARTS = 4
NOTHING = b"*0\r\n"
Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def made(*, is_vacuumed: bool) -> tuple[Files, list[bytes]]:
    """Return a directory whose extents have holes, or are those of a vacuum, and each entry's reply."""
    world = SpillWorld()
    client = filled(world, COUNT)
    for _ in range(8):
        world.spill()
    client.call("XDEL", "s", *(f"{number}-1" for number in GONE))
    if is_vacuumed:
        world.spiller.filler.end()
        world.vacuum.ask()
        care(world)
        assert world.vacuum.extents
    entries = [client.raw("XRANGE", "s", f"{number}-1", f"{number}-1") for number in range(1, COUNT + 1)]
    world.written()
    world.close()
    assert isinstance(world.disk, type(disk_with({})))
    return files_of(world.disk), entries


def pack_name(files: Files) -> str:
    """Return the name of the newest pack."""
    return max(name for name in files if name.endswith(".pack"))


def places(files: Files, part: int) -> Iterator[int]:
    """Yield a part of the places between a pack's header and its seal: the first frame whole, the others in steps."""
    end = len(files[pack_name(files)]) - FRAME_SIZE
    dense = range(HEADER_SIZE, min(HEADER_SIZE + 260, end))
    yield from [*dense, *range(dense.stop, end, 19)][part::PARTS]


def extents(world: SpillWorld) -> list[Extent]:
    """Return all extents."""
    records = (each for _, stream in world.streams() for each in cold_records(stream.entries, 99))
    return [each for record in records for each in unpack_extents(*record)]


def frames(world: SpillWorld) -> dict[tuple[int, int], int]:
    """Return the end of each extent's frame, by pack and offset."""
    return {(each.pack, each.offset): each.offset + each.length for each in extents(world)}


def hit(world: SpillWorld, pack: int, place: int) -> tuple[int, int]:
    """Return the extent whose frame has a place."""
    return next(each for each, end in frames(world).items() if each[0] == pack and each[1] <= place < end)


def expect_no_wrong_entry(client: Client, entries: list[bytes]) -> int:
    """Read each entry, in runs and by itself: it is right, or an error; return the number of errors."""
    errors = 0
    for number, entry in enumerate(entries, 1):
        found = client.raw("XRANGE", "s", f"{number}-1", f"{number}-1")
        assert found == entry or found.startswith(b"-MSDAMAGED"), number
        errors += found != entry
    whole = client.call("XRANGE", "s", "-", "+")
    assert isinstance(whole, Error) or [each[0] for each in list_of(whole)] == [
        b"%d-1" % number for number in range(1, COUNT + 1) if number not in GONE
    ]
    return errors


def list_of(reply: object) -> list[Any]:
    """Return a reply that is a list."""
    assert isinstance(reply, list)
    return reply


def spoiled(files: Files, place: int) -> SpillWorld:
    """Start with one bit of the newest pack changed."""
    name = pack_name(files)
    data = bytearray(files[name])
    data[place] ^= 1 << place % 8
    return SpillWorld(disk=disk_with(files | {name: bytes(data)}))


@pytest.mark.parametrize("part", range(PARTS))
def test_a_vacuum_copies_no_damaged_extent(part: int) -> None:
    """The extent of the byte is reported and stays where it is; all others move, and each entry is right."""
    files, entries = made(is_vacuumed=False)
    for place in places(files, part):
        world = spoiled(files, place)
        damages: list[tuple[int, int, str, str]] = []
        world.vacuum.on_damage = damages.append
        extent = hit(world, 1, place)
        holed = {each[:2] for each in extents(world) if each.holes != NO_HOLES}
        assert len(holed) > 3
        world.spiller.filler.end()
        for _ in range(2):
            world.vacuum.ask()
            care(world)
        assert {damage[:2] for damage in damages} == {extent}, place
        assert {each for each in holed if each in frames(world)} <= {extent}, place  # all others have moved
        assert extent in frames(world), place
        expect_no_wrong_entry(world.client(), entries)
        world.written()
        again = world.again()
        expect_no_wrong_entry(again.client(), entries)
        again.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_damage_of_what_a_vacuum_wrote_is_an_error_of_its_readers(part: int) -> None:
    """Entries are right or an error; the next vacuum or scrubbing reports the frame, and nothing moves it."""
    files, entries = made(is_vacuumed=True)
    for place in places(files, part):
        world = spoiled(files, place)
        damages: list[tuple[int, int, str, str]] = []
        world.vacuum.on_damage = damages.append
        extent = hit(world, 2, place)
        client = world.client()
        expect_no_wrong_entry(client, entries)
        keys = {number: entry for number, entry in enumerate(entries, 1) if number not in GONE}
        gone = [number for number in keys if number % 5 == 1]
        client.call("XDEL", "s", *(f"{number}-1" for number in gone))  # refused if one of them cannot be read
        for number in gone:
            client.call("XDEL", "s", f"{number}-1")
            if client.raw("XRANGE", "s", f"{number}-1", f"{number}-1") == NOTHING:
                keys[number] = NOTHING
        for _ in range(3):  # scrubbing reads one pack after the other
            world.vacuum.ask()
            care(world)
        assert {damage[:2] for damage in damages} == {extent}, place
        for number, entry in keys.items():
            found = client.raw("XRANGE", "s", f"{number}-1", f"{number}-1")
            assert found == entry or found.startswith(b"-MSDAMAGED"), (place, number)
        assert extent in frames(world)
        world.close()


@pytest.mark.parametrize("at", range(0, 400, 23))
def test_a_byte_that_changes_while_a_vacuum_writes_leaves_all_where_it_is(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that are read back differ, so no extent moves; the vacuum ends with an error, and entries are right."""
    files, entries = made(is_vacuumed=False)
    world = SpillWorld(disk=disk_with(files))
    world.spiller.filler.end()
    real = SimFile.drop_cache

    def spoil(file: SimFile, start: int = 0) -> None:
        real(file, start)
        inode = file._inode  # noqa: SLF001 - the medium itself changes
        if start >= HEADER_SIZE and len(inode.cache) > start:
            inode.cache[start + at % (len(inode.cache) - start)] ^= 4

    monkeypatch.setattr(SimFile, "drop_cache", spoil)
    world.vacuum.ask()
    care(world)
    monkeypatch.undo()
    assert (world.vacuum.extents, world.vacuum.status, world.vacuum.is_asked) == (0, "error", False)
    assert expect_no_wrong_entry(world.client(), entries) == 0
    world.written()
    assert expect_no_wrong_entry(world.again().client(), entries) == 0
