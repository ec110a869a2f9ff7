"""Backup and restore: complete or not at all, whatever happens in between, and up to any moment of the log."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from maintenance.conftest import START, STEP, NamingDisk, content, flip, rewritten, segments, write_log, xadd
from maintenance.test_cut import recovered
from maintenance.test_examine import damage_middle
from millstream.errors import DiskError, DiskFullError, LogCorruptError, LogLockedError, StorageError, UsageError
from millstream.maintenance.backup import copying
from millstream.maintenance.backup.backup import back_up, read_backup_info
from millstream.maintenance.backup.copying import exchange, leftovers
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.log.examine import examine_directory, kind_of
from millstream.maintenance.log.moment import Moment
from millstream.persistence.disk import RealDisk, RealFile
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.log import Log


def numbers(home: Path) -> list[int]:
    """Return the numbers of a data directory's records."""
    known = {xadd(number): number for number in range(1, 30)}
    return [known[record] for record in recovered(home)]


def test_a_backup_of_a_log_in_use(home: Path, tmp_path: Path) -> None:
    """A backup of a log in use is complete, checked and itself a data directory. The source is unchanged."""
    log, _ = Log.open(home)
    log.append(xadd(21))
    log.write()
    log.sync()
    before = content(home)
    told = []
    made = back_up(home, tmp_path / "backup", tell=lambda *told_: told.append(told_))
    assert content(home) == before
    assert (made.facts.records, made.facts.last, made.facts.last_ms) == (21, 21, START + 20 * STEP)
    assert made.left_out == 0
    assert read_backup_info(RealDisk(), tmp_path / "backup") == made.facts
    assert examine_directory(tmp_path / "backup").report.ok
    assert {name for name, *_ in told} == {"copy", "check"}
    log.append(xadd(22))
    log.close()
    restored = restore(tmp_path / "backup", tmp_path / "new")
    assert (restored.records, restored.made_ms, restored.set_aside) == (21, made.facts.made_ms, None)
    assert numbers(tmp_path / "new") == list(range(1, 22))
    assert numbers(home) == list(range(1, 23))


def test_a_record_under_way_is_left_out(home: Path, tmp_path: Path) -> None:
    """A record half written when the backup begins is left out, since it has no reply yet."""
    last = segments(home)[-1]
    with last.open("ab") as file:
        file.write(b"half a record")
    made = back_up(home, tmp_path / "backup")
    assert (made.left_out, made.facts.records) == (13, 20)
    assert numbers(tmp_path / "backup") == list(range(1, 21))


def test_nothing_is_overwritten(home: Path, tmp_path: Path) -> None:
    """A backup overwrites no directory, file or dangling link, and requires an existing parent directory."""
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "file", "link"):
        with pytest.raises(UsageError, match="exists already"):
            back_up(home, tmp_path / name)
    with pytest.raises(UsageError, match="Create it first"):
        back_up(home, tmp_path / "no" / "where")
    with pytest.raises(StorageError, match="no log"):
        back_up(tmp_path / "there", tmp_path / "backup")
    with pytest.raises(DiskError, match="cannot back up"):
        back_up(tmp_path / "wrong", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_damaged_log_is_not_backed_up(home: Path, tmp_path: Path) -> None:
    """A damaged log is not backed up. The error names the place, and no file is left."""
    name, offset = damage_middle(home)
    with pytest.raises(LogCorruptError, match="log check") as told:
        back_up(home, tmp_path / "backup")
    assert (told.value.path, told.value.offset) == (str(home / name), offset)
    assert "partial" not in str(told.value)
    segments(home)[2].unlink()
    with pytest.raises(LogCorruptError, match="is missing"):
        back_up(home, tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


class SmallDisk(RealDisk):
    """A disk that is nearly full."""

    __slots__ = ()

    def free(self, directory: Path) -> int:
        return 1000


def test_no_room(home: Path, tmp_path: Path) -> None:
    """A backup without enough space is refused before anything is copied."""
    with pytest.raises(DiskFullError, match="has room for 1000 bytes"):
        back_up(home, tmp_path / "backup", SmallDisk())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


class DyingDisk(RealDisk):
    """A disk whose process is killed before its nth change."""

    __slots__ = ()
    left = 0

    @classmethod
    def step(cls) -> None:
        cls.left -= 1
        if cls.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., object]) -> Callable[..., object]:
    def stepped(*words: object) -> object:
        DyingDisk.step()
        return call(*words)

    return stepped


for _name in ("create", "rename", "make_directory", "sync_directory", "open_append"):
    setattr(DyingDisk, _name, dying(getattr(RealDisk, _name)))


def killed_after(steps: int, run: Callable[[], object]) -> bool:
    """Run a function in a child process that is killed before a change of the disk; return True if it was killed."""
    child = os.fork()
    if child == 0:
        for name in ("append", "datasync", "truncate"):
            setattr(RealFile, name, dying(getattr(RealFile, name)))
        DyingDisk.left = steps
        try:
            run()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in {0, -signal.SIGKILL}
    return code != 0


@pytest.mark.parametrize("what", ["back_up", "restore"])
def test_killed_at_each_step(home: Path, tmp_path: Path, what: str) -> None:
    """If a backup or restore is killed at any change of the disk, only a complete copy has the final name."""
    with segments(home)[-1].open("ab") as file:
        file.write(b"half a record")
    source = home
    if what == "restore":
        back_up(home, tmp_path / "source")
        source = tmp_path / "source"
    dest = tmp_path / "made"
    make = back_up if what == "back_up" else restore
    whole = half = step = 0
    killed = True
    while killed:
        shutil.rmtree(dest, ignore_errors=True)
        for left in leftovers(dest):
            shutil.rmtree(left)
        killed = killed_after(step, lambda: make(source, dest, disk=DyingDisk()))
        step += 1
        if dest.exists():
            whole += 1
            assert numbers(dest) == list(range(1, 21)), step
            assert leftovers(dest) == []
        for left in leftovers(dest):
            shutil.rmtree(tmp_path / "again", ignore_errors=True)
            try:
                restore(left, tmp_path / "again")
            except StorageError:
                half += 1
                assert not (tmp_path / "again").exists()
            else:  # all that was missing was its name
                assert numbers(tmp_path / "again") == list(range(1, 21)), step
    assert half > 10
    assert whole == 2  # killed before the directory above was synced, and not killed at all


def test_the_backup_is_named_when_it_is_on_the_medium(home: Path, tmp_path: Path) -> None:
    """A backup's directory is synced after its last file and before its rename, and the parent directory after it."""
    log: list[tuple[str, str]] = []

    class Watched(RealDisk):
        __slots__ = ()

        def create(self, path: Path) -> RealFile:
            log.append(("create", path.name))
            return super().create(path)

        def sync_directory(self, directory: Path) -> None:
            log.append(("sync", directory.name.partition(".")[0]))
            super().sync_directory(directory)

        def rename(self, old: Path, new: Path) -> None:
            log.append(("rename", new.name))
            super().rename(old, new)

    back_up(home, tmp_path / "backup", Watched())
    assert log[-4:] == [("create", "BACKUP"), ("sync", "backup"), ("rename", "backup"), ("sync", tmp_path.name)]


def test_every_file_of_a_copy_is_on_the_medium_before_the_copy_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of a backup or restored directory is synced before the directory gets its name."""
    with segments(home)[-1].open("ab") as file:
        file.write(b"half a record")
    disk = NamingDisk(monkeypatch)
    back_up(home, tmp_path / "backup", disk)
    restore(tmp_path / "backup", tmp_path / "new", until=Moment(position=12), disk=disk)
    assert disk.named == [("backup", set()), ("new", set())]
    for made in ("backup", "new"):
        assert {path.stat().st_ino for path in (tmp_path / made).iterdir()} <= disk.written


def test_a_damaged_or_shortened_backup_is_not_restored(home: Path, tmp_path: Path) -> None:
    """A damaged or incomplete backup is not restored: flipped bits, cut or missing files, a damaged BACKUP file."""
    back_up(home, tmp_path / "backup")
    before = content(tmp_path / "backup")
    last = segments(tmp_path / "backup")[-1]

    def refused(match: str) -> None:
        with pytest.raises(StorageError, match=match):
            restore(tmp_path / "backup", tmp_path / "new")
        assert not (tmp_path / "new").exists()
        assert leftovers(tmp_path / "new") == []
        for name, data in before.items():
            (tmp_path / "backup" / name).write_bytes(data)

    flip(segments(tmp_path / "backup")[0], 90)
    refused("is damaged")
    os.truncate(last, HEADER_SIZE)
    refused("has 32 of its .* bytes: this backup is not complete")
    last.unlink()
    refused("is missing: this backup is not complete")
    flip(tmp_path / "backup" / "BACKUP", 5)
    refused("Take another backup")
    flip(tmp_path / "backup" / "MANIFEST", 5)
    refused("MANIFEST is damaged")
    with last.open("ab") as file:
        file.write(b"x")
    refused("a server was run on it since")
    restore(tmp_path / "backup", tmp_path / "new")


def test_data_is_not_restored_over(home: Path, tmp_path: Path) -> None:
    """A restore into a directory with data requires ``force`` and sets the data aside. It never runs under a server."""
    back_up(home, tmp_path / "backup")
    with pytest.raises(UsageError, match="is not empty"):
        restore(tmp_path / "backup", home)
    log, _ = Log.open(home)
    log.append(xadd(21))
    log.write()
    with pytest.raises(LogLockedError):
        restore(tmp_path / "backup", home, force=True)
    log.close()
    made = restore(tmp_path / "backup", home, force=True)
    assert made.set_aside is not None
    assert numbers(home) == list(range(1, 21))
    assert numbers(made.set_aside) == list(range(1, 22))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        restore(tmp_path / "backup", tmp_path / "file")
    with pytest.raises(UsageError, match="Create it first"):
        restore(tmp_path / "backup", tmp_path / "no" / "where")
    with pytest.raises(UsageError, match="both the backup and the target"):
        restore(tmp_path / "backup", tmp_path / "backup")
    (tmp_path / "empty").mkdir()
    assert restore(tmp_path / "backup", tmp_path / "empty").records == 20
    with pytest.raises(StorageError, match="Give a backup or a data directory"):
        restore(tmp_path, tmp_path / "new")


@pytest.mark.parametrize("swaps", [True, False])
def test_data_is_set_aside_in_one_step(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """If a restore over data is killed at any step, old and new data are complete under distinct names.

    If the system can exchange two names, one of them is always in place. A server that is started finds records and
    does not begin an empty log.
    """
    if not swaps:
        monkeypatch.setattr(copying, "exchange", lambda one, other: False)
    back_up(home, tmp_path / "backup")
    write_log(tmp_path / "old", [xadd(number) for number in range(1, 23)])
    found: dict[tuple[int, ...], None] = {}
    step, killed = 0, True
    while killed:
        place = tmp_path / str(step) / "data"
        shutil.copytree(tmp_path / "old", place)
        make = partial(restore, tmp_path / "backup", place, force=True, disk=DyingDisk())
        killed = killed_after(step, make)
        step += 1
        at_place = len(numbers(place)) if place.exists() else 0
        found[at_place, *(len(numbers(path)) for path in place.parent.glob("data.before-*"))] = None
    between = [] if swaps else [(0, 22)]
    assert [*found] == [(22,), (22, 20), *between, (20, 22)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")], ids=repr)
@pytest.mark.parametrize("happens", [True, False])
def test_an_exchange_that_is_broken_off_never_costs_the_data_that_was_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, happens: bool
) -> None:
    """If Ctrl-C or an error interrupts the exchange of directories, the data set aside is never taken for the copy."""

    def broken_off(one: Path, other: Path) -> bool:
        if happens:
            exchange(one, other)
        raise error

    back_up(home, tmp_path / "backup")
    write_log(tmp_path / "place", [xadd(number) for number in range(1, 23)])
    monkeypatch.setattr(copying, "exchange", broken_off)
    with pytest.raises((KeyboardInterrupt, DiskError)):
        restore(tmp_path / "backup", tmp_path / "place", force=True)
    aside = [len(numbers(path)) for path in tmp_path.glob("place.before-*")]
    assert (len(numbers(tmp_path / "place")), aside) == ((20, [22]) if happens else (22, []))
    assert not list(tmp_path.glob("*.partial-*"))


@pytest.mark.parametrize("step", ["sync_directory", "rename"])
def test_data_goes_back_to_its_place_where_the_copy_cannot_have_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Without an atomic exchange, a failure between the two renames restores the old data to its place."""
    back_up(home, tmp_path / "backup")
    write_log(tmp_path / "place", [xadd(number) for number in range(1, 23)])
    monkeypatch.setattr(copying, "exchange", lambda one, other: False)
    real = getattr(RealDisk, step)

    def failing(self: RealDisk, *paths: Path) -> None:
        if not (tmp_path / "place").exists() and paths[-1] in {tmp_path, tmp_path / "place"}:
            monkeypatch.undo()
            raise OSError(errno.EIO, "Input/output error")
        real(self, *paths)

    monkeypatch.setattr(RealDisk, step, failing)
    with pytest.raises(DiskError, match="Input/output error"):
        restore(tmp_path / "backup", tmp_path / "place", force=True)
    assert len(numbers(tmp_path / "place")) == 22
    assert [path.name for path in tmp_path.iterdir() if "place" in path.name] == ["place"]


@pytest.mark.parametrize("what", ["back_up", "restore", "restore over"])
def test_a_name_that_may_not_last_is_not_called_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """If the last sync fails, the error states that the copy is complete and where the old data is."""
    dest = tmp_path / "made"
    if what == "restore over":
        write_log(dest, [xadd(number) for number in range(1, 23)])
    there = dest.stat().st_ino if dest.exists() else 0
    real = RealDisk.sync_directory

    def failing(self: RealDisk, directory: Path) -> None:
        if directory == tmp_path and dest.exists() and dest.stat().st_ino != there:
            raise OSError(errno.EIO, "Input/output error")
        real(self, directory)

    monkeypatch.setattr(RealDisk, "sync_directory", failing)
    with pytest.raises(DiskError, match=r"is whole and has its name.*Input/output error.*power cut") as caught:
        back_up(home, dest) if what == "back_up" else restore(home, dest, force=True)
    monkeypatch.undo()
    aside = list(tmp_path.glob("made.before-*"))
    assert [str(path) in str(caught.value) for path in aside] == ([True] if what == "restore over" else [])
    assert (numbers(dest), leftovers(dest)) == (list(range(1, 21)), [])


def test_names_change_places_or_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names are exchanged, or nothing is done.

    A missing name is an error, and an unsupported system is reported.
    """
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"was {name}").touch()
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["was other"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["was one"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not exchange(tmp_path / "one", tmp_path / "other")


def test_at_every_position_and_moment(home: Path, tmp_path: Path) -> None:
    """A restore up to any position or moment has exactly the records until then, even with later damage."""
    for last in range(21):
        made = restore(home, tmp_path / f"p{last}", until=Moment(position=last))
        assert (made.records, made.last) == (last, last)
        assert numbers(tmp_path / f"p{last}") == list(range(1, last + 1))
    for last in (1, 6, 20):
        restore(home, tmp_path / f"t{last}", until=Moment(ms=START + (last - 1) * STEP + STEP - 1))
        assert numbers(tmp_path / f"t{last}") == list(range(1, last + 1))
    restore(home, tmp_path / "exact", until=Moment(ms=START + 6 * STEP))
    assert numbers(tmp_path / "exact") == list(range(1, 8)), "the record of that very millisecond is in it"
    assert restore(home, tmp_path / "before", until=Moment(ms=START - 1)).records == 0
    with pytest.raises(UsageError, match="ends with record 20, before position 21"):
        restore(home, tmp_path / "after", until=Moment(position=21))
    damage_middle(home)
    found = examine_directory(home)
    with pytest.raises(LogCorruptError):
        restore(home, tmp_path / "late", until=Moment(position=20))
    restore(home, tmp_path / "early", until=Moment(position=found.report.records))
    assert numbers(tmp_path / "early") == list(range(1, found.report.records + 1))


def test_a_log_that_goes_on_from_a_moment(home: Path, tmp_path: Path) -> None:
    """A log restored up to a moment accepts new records at the next positions."""
    restore(home, tmp_path / "new", until=Moment(position=8))
    log, _ = Log.open(tmp_path / "new")
    assert log.append(xadd(9)) == 9
    log.close()
    assert numbers(tmp_path / "new") == list(range(1, 10))


def test_a_snapshot_has_one_moment(tmp_path: Path) -> None:
    """A backup contains the snapshot. A moment before the snapshot's last record is an error."""
    home = tmp_path / "data"
    rewritten(home)
    made = back_up(home, tmp_path / "backup")
    assert (made.facts.snapshot_last, made.facts.last) == (10, 20)
    assert any(name.startswith("snapshot-") for name in made.facts.files)
    restored = restore(tmp_path / "backup", tmp_path / "new", until=Moment(position=12))
    assert (restored.snapshot_last, restored.records, restored.last) == (10, 2, 12)
    assert restore(tmp_path / "backup", tmp_path / "ten", until=Moment(position=10)).records == 0
    with pytest.raises(UsageError, match="position 9 is before it"):
        restore(tmp_path / "backup", tmp_path / "nine", until=Moment(position=9))
    with pytest.raises(UsageError, match="as one state"):
        restore(tmp_path / "backup", tmp_path / "early", until=Moment(ms=START))
    found = examine_directory(tmp_path / "new")
    assert (found.report.ok, found.begin, found.last) == (True, 11, 12)
    flip(next((tmp_path / "backup").glob("snapshot-*")), 60)
    with pytest.raises(LogCorruptError, match="is damaged"):
        restore(tmp_path / "backup", tmp_path / "never")
    damaged = examine_directory(tmp_path / "backup")
    assert [kind_of(problem) for problem in damaged.report.problems] == ["snapshot"]
    assert damaged.cut_at is None


def test_a_link_leads_to_where_data_is_restored(home: Path, tmp_path: Path) -> None:
    """A restore to a link replaces the data that the link leads to, and the link stays."""
    back_up(home, tmp_path / "backup")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "data")
    for force in (False, True):
        made = restore(tmp_path / "backup", tmp_path / "link", force=force)
        assert (tmp_path / "link").is_symlink()
        assert numbers(tmp_path / "link") == list(range(1, 21))
        assert made.directory == tmp_path / "disk" / "data"
    assert made.set_aside is not None
    assert made.set_aside.parent == tmp_path / "disk"


def test_where_a_file_system_is_mounted_nothing_can_be_renamed_to(home: Path, tmp_path: Path) -> None:
    """A restore to a mount point is refused before anything is copied, with advice."""
    back_up(home, tmp_path / "backup")
    with pytest.raises(UsageError, match=r"is a mount point.*--dir"):
        restore(tmp_path / "backup", Path("/dev/shm"), force=True)


STRANGE = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", ["MANIFEST", "lock", "segment"])
@pytest.mark.parametrize("put", STRANGE.values(), ids=STRANGE)
def test_what_is_not_a_regular_file_is_named(
    home: Path, tmp_path: Path, put: Callable[[Path], None], name: str
) -> None:
    """A device, pipe, link loop or directory in place of a file is named by every check, and none hangs."""
    path = segments(home)[-1] if name == "segment" else home / name
    path.unlink()
    put(path)
    for use in (
        lambda: back_up(home, tmp_path / "a"),
        lambda: restore(home, tmp_path / "b"),
        lambda: examine_directory(home),
    ):
        with pytest.raises(StorageError, match=f"{path.name} is not a regular file"):
            use()
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
