"""Cutting a log on purpose: the cut part is kept and readable, also after an interruption."""

import contextlib
from pathlib import Path

import pytest

from maintenance.conftest import NamingDisk, content, flip, segments, xadd
from maintenance.test_examine import damage_header, damage_middle, lose_file
from millstream.errors import LogCorruptError, LogLockedError, StorageError, UsageError
from millstream.maintenance.log.cut import cut
from millstream.maintenance.log.dump import Choice, dump
from millstream.maintenance.log.examine import advice, examine_directory
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log


def recovered(home: Path) -> list[bytes]:
    log, recovery = Log.open(home)
    found = list(recovery.payloads())
    log.close()
    return found


def readable(*places: Path) -> set[int]:
    """Return the positions of the readable records in these files."""
    found = set()
    for place in places:
        with contextlib.suppress(LogCorruptError):
            found |= {record.position for record in dump(place, Choice(past_damage=True))}
    return found


@pytest.mark.parametrize("damage", [damage_middle, damage_header, lose_file])
def test_cut_where_the_check_says(home: Path, damage: object) -> None:
    """After a cut at the place that the check names, a start has all records before it.

    Readable later ones are kept.
    """
    name, offset = damage(home)
    before = examine_directory(home)
    with pytest.raises(LogCorruptError):
        Log.open(home)
    report = cut(home, name, offset)
    after = examine_directory(home)
    assert (after.report.ok, after.report.records) == (True, before.report.records)
    assert recovered(home) == [xadd(number) for number in range(1, before.report.records + 1)]
    assert before.losses is not None
    assert readable(*report.kept) == set(range(before.losses.first, 21))
    assert {file.name for file in after.kept_aside} == {path.name for path in report.kept}


def test_cut_everything(home: Path) -> None:
    """If the first file is missing, a cut at the beginning leaves an empty log with the same next position."""
    segments(home)[0].unlink()
    report = cut(home, segments(home)[0].name.replace("6", "1"), 0)
    assert examine_directory(home).report.records == 0
    assert len(report.kept) == 3
    assert recovered(home) == []


def test_cut_the_first_file_whose_header_is_damaged(home: Path) -> None:
    """A cut of the first file with a damaged header keeps it under another name and creates an empty file."""
    first = segments(home)[0]
    flip(first, 13)
    report = cut(home, first.name, 0)
    assert len(report.kept) == 5
    assert recovered(home) == []


def test_only_where_a_record_ends(home: Path) -> None:
    """A cut inside a record is refused with the nearest place, and nothing changes."""
    name, offset = damage_middle(home)
    before = content(home)
    with pytest.raises(UsageError, match=f"cut at {name}:{offset}"):
        cut(home, name, offset + 7)
    with pytest.raises(UsageError, match="these are: log-"):
        cut(home, "log-1.seg", 0)
    assert {**content(home), "lock": b""} == {**before, "lock": b""}


def test_nothing_to_cut(home: Path) -> None:
    """A cut at the end of the log is refused, since there is nothing to cut."""
    last = segments(home)[-1]
    with pytest.raises(UsageError, match="nothing to cut"):
        cut(home, last.name, last.stat().st_size)


def test_what_is_cut_is_on_the_medium_elsewhere_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut part is synced to its copy before the manifest leaves it out."""
    name, offset = damage_middle(home)
    disk = NamingDisk(monkeypatch)
    kept = cut(home, name, offset, disk).kept[0]
    assert kept.stat().st_ino in disk.written
    assert [(new, unsynced) for new, unsynced in disk.named if new == "MANIFEST"] == [("MANIFEST", set())]


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_without_its_manifest_a_log_is_not_cut(home: Path, damage: str) -> None:
    """A log without a valid manifest is not cut. The error contains all advice of the check."""
    name = segments(home)[0].name
    if damage == "damaged":
        flip(home / "MANIFEST", 10)
    else:
        (home / "MANIFEST").unlink()
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.name != "lock"}
    steps = advice(examine_directory(home))
    assert len(steps) == 3
    with pytest.raises(StorageError, match="cut") as caught:
        cut(home, name, 0)
    assert [step for step in steps if step not in str(caught.value)] == []
    assert isinstance(caught.value, LogCorruptError) == (damage == "damaged")
    assert {path.name: path.read_bytes() for path in home.iterdir() if path.name != "lock"} == before


def test_not_under_a_running_server(home: Path) -> None:
    """A cut is refused while a server runs on the directory."""
    log, _ = Log.open(home)
    with pytest.raises(LogLockedError):
        cut(home, segments(home)[1].name, 0)
    log.close()


class Killed(BaseException):
    """Error for a killed process."""


class DyingDisk(RealDisk):
    """A disk whose process dies before its nth change of a directory."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def create(self, path: Path) -> object:
        self._step()
        return super().create(path)

    def open_append(self, path: Path) -> object:
        self._step()
        return super().open_append(path)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def sync_directory(self, directory: Path) -> None:
        self._step()
        super().sync_directory(directory)


@pytest.mark.parametrize("damage", [damage_middle, damage_header, lose_file])
def test_interrupted_at_each_step(home: Path, damage: object) -> None:
    """An interrupted cut loses nothing more: a start is refused or works, and the repeated cut finishes."""
    name, offset = damage(home)
    before = content(home)
    examined = examine_directory(home)
    wanted = [xadd(number) for number in range(1, examined.report.records + 1)]
    assert examined.losses is not None
    lost = set(range(examined.losses.first, 21))
    for step in range(100):
        for path in home.iterdir():
            path.unlink()
        for each, data in before.items():
            (home / each).write_bytes(data)
        try:
            cut(home, name, offset, DyingDisk(step))
            break
        except Killed:
            pass
        assert readable(home, *home.glob("*log-*")) >= lost, step
        if not examine_directory(home).report.ok:
            cut(home, name, offset)
        assert recovered(home) == wanted, step
    assert step > 4
