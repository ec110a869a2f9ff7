"""The check of a directory on a disk with a sector that cannot be read."""

from errno import EACCES, EIO
from pathlib import Path

import pytest

from maintenance.conftest import content
from millstream.errors import StorageError
from millstream.maintenance.log.examine import Examination, advice, examine_directory, kind_of
from millstream.maintenance.log.packs import dump_pack
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.frozen_view import SECTOR
from support.badsectors import BadDisk
from support.coldness import IS_COLD
from support.packed import PackedWorld

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def large(home: Path) -> None:
    """Make a directory with a pack of seven extents for each of two streams; two entries fill a sector."""
    world = PackedWorld(home)
    for key in ("s", "t"):
        client = world.client()
        for number in range(1, 45):
            client.call("XADD", key, f"{number}-1", "f", b"\0" * 2000)
        world.chill(key.encode())
        world.seal()
    world.close()


def problems(found: Examination) -> list[tuple[str, str, bool]]:
    """Return file, kind and effect of each problem."""
    return [(Path(each.path).name, kind_of(each), each.refuses) for each in found.report.problems]


@pytest.mark.parametrize("where", ["middle", "header"])
def test_a_check_goes_on_behind_a_bad_sector_of_a_pack(tmp_path: Path, where: str) -> None:
    """It names the place and the entries there, and still reads the other packs and records."""
    home = tmp_path / "data"
    large(home)
    first, second = sorted(home.glob("*.pack"))
    places = list(dump_pack(first))
    sector = places[2].offset + places[2].size // 2 if where == "middle" else 25
    begin = sector - sector % SECTOR
    data = bytearray(second.read_bytes())
    data[-200] ^= 1
    second.write_bytes(data)
    before = content(home)
    found = examine_directory(home, BadDisk(first, sector, EIO))
    there = {"middle": places[2:3], "header": places[:1]}[where]
    lost = len(there[0].entries) if where == "middle" else sum(len(place.entries) for place in places)
    assert problems(found) == [(first.name, "pack", where == "header"), (second.name, "pack", False)]
    assert f"the disk cannot read its bytes {begin} to {begin + SECTOR - 1}" in found.report.problems[0].text
    assert "the disk" not in found.report.problems[1].text
    assert found.lost_entries == lost + 2  # the last extent is smaller
    if where == "middle":
        assert f"entries {there[0].entries[0].id} to {there[0].entries[-1].id} of 's'" in found.report.problems[0].text
    assert found.last_ms is not None
    assert content(home) == before


@pytest.mark.parametrize("where", ["middle", "end", "header"])
def test_a_check_goes_on_behind_a_bad_sector_of_the_log(tmp_path: Path, where: str) -> None:
    """A start is refused there, even at the end of the log, and the advice is a copy that fills the place."""
    home = tmp_path / "data"
    large(home)
    (log,) = home.glob("log-*.seg")
    size = log.stat().st_size
    sector = {"middle": size // 2, "end": size - 1, "header": 5}[where]
    found = examine_directory(home, BadDisk(log, sector, EIO))
    begin = sector - sector % SECTOR
    assert problems(found) == [(log.name, "damaged", True)]
    assert f"the disk cannot read its bytes {begin} to {min(begin + SECTOR, size) - 1}" in found.report.problems[0].text
    assert (found.losses is not None and found.losses.records > 0) is (where != "end")
    assert found.cut_at is None
    assert any("writes zeros" in step for step in advice(found))
    assert len([file for file in found.report.files if file.result is not None and file.result.records]) >= 2


def test_a_check_reports_a_bad_sector_of_the_manifest(tmp_path: Path) -> None:
    """The log files are examined by their headers."""
    home = tmp_path / "data"
    large(home)
    found = examine_directory(home, BadDisk(home / "MANIFEST", 0, EIO))
    assert ("MANIFEST", "manifest", True) in problems(found)
    assert "; the disk cannot read its bytes 0 to " in found.report.problems[0].text
    assert any(file.result is not None and file.result.records for file in found.report.files)


def test_a_check_ends_at_other_errors_of_the_disk(tmp_path: Path) -> None:
    """They may pass, so they are not damage."""
    home = tmp_path / "data"
    large(home)
    (log,) = home.glob("log-*.seg")
    with pytest.raises(StorageError, match="Permission denied"):
        examine_directory(home, BadDisk(log, HEADER_SIZE, EACCES))
