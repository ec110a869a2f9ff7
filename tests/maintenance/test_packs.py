"""A data directory with packs of real entries: checked, shown, copied and restored completely."""

from pathlib import Path
from random import Random

import pytest

from maintenance.conftest import content, write_log, xadd
from millstream.engine.streams import extents
from millstream.engine.streams.entries import EntryStore
from millstream.errors import LogCorruptError
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.log.examine import advice, examine_directory, kind_of
from millstream.maintenance.log.moment import parse_moment
from millstream.maintenance.log.packs import dump_pack, is_pack
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from support.packed import make_packed


def extent(seed: int) -> bytes:
    """Encode some nodes of a stream."""
    store = EntryStore()
    for number in range(1, 60):
        store.append((seed << 64) + number, [b"f", b"%d" % number], fresh=number % 20 == 1)
    return extents.encode(list(store.nodes()))


def with_pack(home: Path, payloads: list[bytes]) -> Path:
    """Write ten records and a sealed pack, and return its path."""
    log = write_log(home, [xadd(number) for number in range(1, 11)], close=False)
    pack = log.add_pack()
    pack.add(payloads)
    log.end_pack(pack)
    log.close()
    return next(home.glob("pack-*"))


def test_packs_are_checked_copied_and_restored(tmp_path: Path) -> None:
    """Packs are checked, copied by a backup, also up to an earlier moment, and restored."""
    home = tmp_path / "data"
    pack = with_pack(home, [extent(1), extent(2)])
    assert pack.stat().st_mode & 0o777 == 0o600
    found = examine_directory(home)
    assert (found.report.ok, found.report.records, advice(found)) == (True, 10, [])
    back_up(home, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new", until=parse_moment("5", 0))
    for copy in ("backup", "new"):
        assert (tmp_path / copy / pack.name).read_bytes() == pack.read_bytes()
        assert examine_directory(tmp_path / copy).report.ok


def test_damage_in_a_pack_is_shown_and_not_copied(tmp_path: Path) -> None:
    """Damage in a pack is reported with advice and does not prevent a start, but the backup is refused."""
    home = tmp_path / "data"
    pack = with_pack(home, [extent(1), extent(2)])
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    before = content(home)
    found = examine_directory(home)
    (problem,) = found.report.problems
    assert (kind_of(problem), problem.refuses, found.report.starts) == ("pack", False, True)
    assert "only the entries in the damaged places of packs" in advice(found)[-1]
    with pytest.raises(LogCorruptError, match=r"no copy was made.*With --damaged, such packs are copied as they are"):
        back_up(home, tmp_path / "backup")
    assert content(home) == before
    back_up(home, tmp_path / "backup", keeps_damage=True)
    with pytest.raises(LogCorruptError, match=r"no copy was made.*With --damaged, such packs are copied as they are"):
        restore(tmp_path / "backup", tmp_path / "new")


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("where", [0, FRAME_SIZE + 9])
def test_all_damage_of_a_pack_is_shown_with_streams_and_ids(tmp_path: Path, where: int, sealed: bool) -> None:
    """Each damaged extent has a row with its entries, by the head of its frame or by its entries."""
    make_packed(tmp_path / "data", {"s": 41, "t": 41}, sealed=sealed)
    (pack,) = (tmp_path / "data").glob("pack-*")
    data, whole = bytearray(pack.read_bytes()), list(dump_pack(pack))
    broken = [whole[number] for number in (1, 2, 5)]
    for each in broken:
        data[each.offset + where] ^= 1
    pack.write_bytes(data)
    problems = examine_directory(tmp_path / "data").report.problems
    assert [problem.offset for problem in problems] == [each.offset for each in broken]
    for problem, each, key in zip(problems, broken, "sst", strict=True):
        said = (
            f"but {len(each.entries)} entries {each.entries[0].id} to {each.entries[-1].id} of '{key}' cannot be read"
        )
        assert (said if where else "all entries that are left in it can be read") in problem.text
    made = back_up(tmp_path / "data", tmp_path / "backup", keeps_damage=True)
    assert len(made.damage) == 3


def test_damage_is_shown_without_the_records(tmp_path: Path) -> None:
    """All damaged extents are shown even if no record names them."""
    pack = with_pack(tmp_path, [extent(number) for number in range(5)])
    data, whole = bytearray(pack.read_bytes()), list(dump_pack(pack))
    for number in (1, 3):
        data[whole[number].offset + FRAME_SIZE + 9] ^= 1
    pack.write_bytes(data)
    problems = examine_directory(tmp_path).report.problems
    assert [problem.offset for problem in problems] == [whole[1].offset, whole[3].offset]


@pytest.mark.parametrize("make", ["other bytes", "newer"])
def test_an_extent_with_a_right_checksum_that_is_none_is_shown(tmp_path: Path, make: str) -> None:
    """A pack's extent that cannot be decoded is reported with its place, and a newer format is not damage."""
    payload = Random(1).randbytes(300) if make == "other bytes" else b"\2" + extent(1)[1:]
    with_pack(tmp_path / "data", [extent(1), payload])
    found = examine_directory(tmp_path / "data")
    (problem,) = found.report.problems
    assert "is as it was written, but cannot be read" in problem.text
    assert problem.newer is (make == "newer" or payload[0] != 1)


def test_a_quick_examination_reads_no_entry(tmp_path: Path) -> None:
    """Damage between header and seal is for the whole one."""
    pack = with_pack(tmp_path, [extent(1)])
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    assert examine_directory(tmp_path, quick=True).report.ok
    assert not examine_directory(tmp_path).report.ok


def test_a_pack_is_shown_with_its_entries(tmp_path: Path) -> None:
    """Each entry has its extent, node and mark of deletion; a copy under another name is read too."""
    store = EntryStore()
    for number in range(1, 4):
        store.append(number << 64, [b"f", b"%d" % number], fresh=number != 2)
    store.remove(2 << 64, keep=True)
    pack = with_pack(tmp_path / "data", [extent(7), extents.encode(list(store.nodes()))])
    copy = pack.rename(tmp_path / "copy")
    assert is_pack(copy)
    first, second = dump_pack(copy)
    assert (first.offset, first.nodes, len(first.entries)) == (HEADER_SIZE, 3, 59)
    assert second.offset == HEADER_SIZE + FRAME_SIZE + first.size
    assert [(each.node, each.id, each.deleted, each.fields) for each in second.entries] == [
        (0, "1-0", False, [b"f", b"1"]),
        (0, "2-0", True, [b"f", b"2"]),
        (1, "3-0", False, [b"f", b"3"]),
    ]


def test_damage_ends_the_entries_of_a_pack_unless_it_is_passed(tmp_path: Path) -> None:
    """Extents before the damage are shown, then an error; those after it only on request."""
    pack = with_pack(tmp_path, [extent(1), extent(2), b"no extent", extent(3)])
    data = bytearray(pack.read_bytes())
    whole = [each.offset for each in dump_pack(pack, past_damage=True)]
    assert len(whole) == 3
    found = dump_pack(pack)
    assert [next(found).offset, next(found).offset] == whole[:2]
    with pytest.raises(LogCorruptError, match="cannot be read"):
        next(found)
    data[whole[1] + FRAME_SIZE + 9] ^= 1
    pack.write_bytes(data)
    found = dump_pack(pack)
    assert next(found).offset == whole[0]
    with pytest.raises(LogCorruptError, match=f"the extent at byte {whole[1]}, after 1 whole one,"):
        next(found)
    assert [each.offset for each in dump_pack(pack, past_damage=True)] == [whole[0], whole[2]]
    pack.write_bytes(data[:20])
    with pytest.raises(LogCorruptError, match="cut short"):
        next(dump_pack(pack))


def test_a_missing_pack_is_named(tmp_path: Path) -> None:
    """A missing pack is reported, and a start is refused."""
    pack = with_pack(tmp_path / "data", [extent(1)])
    pack.unlink()
    found = examine_directory(tmp_path / "data")
    (problem,) = found.report.problems
    assert (kind_of(problem), found.report.starts) == ("missing", False)
    assert any("millstream restore" in step for step in advice(found))
    with pytest.raises(LogCorruptError, match="is missing, so no copy was made"):
        back_up(tmp_path / "data", tmp_path / "backup")
