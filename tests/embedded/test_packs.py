"""A store of this process on a data directory with packs: it serves them, and writes go on."""

import os
from pathlib import Path

import pytest

import millstream
from millstream.errors import CommandError, DiskError
from support.coldness import IS_COLD
from support.packed import PackedWorld, open_packs, two_packs
from support.removed import SHOWS_REMOVED
from support.waiting import eventually

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def test_a_store_reads_trims_and_rewrites_entries_in_packs(tmp_path: Path) -> None:
    """Cold entries answer as hot ones, also in a transaction and a script, and their packs are removed in the end."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    world.fill()
    world.chill()
    world.close()
    with millstream.open_store(f"file://{home}", text=True) as store:
        assert [entry for entry, _ in store.xrange("s")] == [f"{number}-1" for number in range(1, 21)]
        store.execute("XGROUP", "CREATE", "s", "g", 0)
        assert len(store.execute("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">")["s"]) == 5
        assert store.execute("EVAL", "return #redis.call('XRANGE', 's', '-', '+')", 0) == 20
        assert store.execute("XDEL", "s", "2-1", "20-1") == 2
    with millstream.open_store(f"file://{home}", text=True) as store:
        assert store.execute("XTRIM", "s", "MINID", "19-0") == 17
        assert store.execute("XLEN", "s") == 1
        store.execute("BGREWRITEAOF")
        eventually(lambda: not list(home.glob("*.pack")), what="the pack that nothing needs is removed")
        eventually(lambda: not open_packs(home), what="and closed, so that its space is free")
        assert [entry for entry, _ in store.xrange("s")] == ["19-1"]


@SHOWS_REMOVED
def test_a_store_that_closes_writes_each_pack_anew_that_it_can(tmp_path: Path) -> None:
    """A pack that was cut short does not keep the next one from being written."""
    home = tmp_path / "data"
    short, pack = two_packs(home)
    store = millstream.open_store(f"file://{home}")
    os.truncate(short, short.stat().st_size - 1)
    pack.unlink()
    with pytest.raises(DiskError, match=f"log cut --pack {short.name} "):
        store.close()
    assert pack.exists()


def test_damage_of_a_pack_is_an_error_of_its_readers(tmp_path: Path) -> None:
    """Other entries are read and written."""
    home = tmp_path / "data"
    world = PackedWorld(home)
    world.fill()
    world.chill()
    world.close()
    (pack,) = home.glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[60] ^= 1
    pack.write_bytes(data)
    with millstream.open_store(f"file://{home}", text=True) as store:
        with pytest.raises(CommandError, match=f"MSDAMAGED entries 1-1 to 6-1 of 's' cannot be read: {pack.name}"):
            store.xrange("s")
        assert len(store.execute("XRANGE", "s", "7-0", "+")) == 14
        assert store.execute("XADD", "s", "21-1", "f", "v") == "21-1"
