"""A frozen view of a data directory is one state of it, also while the owner changes it, and only reads."""

import errno
import os
import resource
import socket
from contextlib import closing
from pathlib import Path

import pytest

from millstream.errors import DiskError
from millstream.persistence.check import check
from millstream.persistence.disk import RealDisk, RealFile
from millstream.persistence.frame import FRAME_SIZE
from millstream.persistence.frozen_view import TRIES, FrozenView
from millstream.persistence.log import Log
from millstream.persistence.manifest import read_manifest
from millstream.persistence.rewrite import contents, make


def grow(log: Log, count: int) -> None:
    """Append records of 50 bytes, four a file, each synced by itself."""
    for _ in range(count):
        log.append(b"%d" % (log.appended % 10) * 50)
        log.write()
        log.sync()


def rewrite(log: Log, home: Path) -> None:
    """Replace the sealed files by a snapshot, and remove them."""
    work = log.begin_rewrite()
    assert work is not None
    make(RealDisk(), home, work, contents(RealDisk(), home, work))
    log.commit_rewrite(work)
    log.remove_obsolete()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    opened, _ = Log.open(tmp_path / "data", segment_bytes=4 * (FRAME_SIZE + 50))
    grow(opened, 10)
    return opened


class Meddled(RealDisk):
    """Disk that changes the directory at one moment of each view."""

    __slots__ = ("at", "times", "what")

    def __init__(self, what: object, at: str, times: int = 1) -> None:
        self.what, self.at, self.times = what, at, times

    def _meddle(self, at: str) -> None:
        if at == self.at and self.times:
            self.times -= 1
            self.what()

    def list(self, directory: Path) -> list[str]:
        self._meddle("before listing")
        names = super().list(directory)
        self._meddle("after listing")
        return names

    def open_read(self, path: Path) -> RealFile:
        if path.suffix == ".seg":
            self._meddle("before opening")
        return super().open_read(path)


@pytest.mark.parametrize("at", ["before listing", "after listing", "before opening"])
@pytest.mark.parametrize("what", ["rolls", "rewrites"])
def test_one_state_whatever_happens_meanwhile(log: Log, tmp_path: Path, what: str, at: str) -> None:
    """A view taken while files are added, replaced and removed is one state, in which a check finds no problem."""
    home = tmp_path / "data"
    disk = Meddled(lambda: (grow(log, 10), rewrite(log, home) if what == "rewrites" else None), at)
    with FrozenView(disk, home) as view:
        report = check(home, view)
        assert (report.problems, disk.times) == ([], 0)
        assert report.records == (20 if what == "rolls" else 0)
        assert any(name.startswith("snapshot-") for name in view.list(home)) == (what == "rewrites")
    log.close()


def test_files_stay_readable_when_they_are_removed(log: Log, tmp_path: Path) -> None:
    """A view still reads files that a rewriting removed, and contains nothing that was added later."""
    home = tmp_path / "data"
    with FrozenView(RealDisk(), home) as view:
        grow(log, 5)
        rewrite(log, home)
        report = check(home, view)
        assert (report.problems, report.records) == ([], 10)
    log.close()


def test_a_file_that_becomes_shorter_is_checked_to_its_end(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner cuts off a write that a full disk refused. The check of an earlier view of it ends."""
    home = tmp_path / "data"
    path, read_at, reads = max(home.glob("*.seg")), RealFile.read_at, []
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(3000))

    def counted(self: RealFile, offset: int, size: int) -> bytes:
        reads.append(offset)
        assert len(reads) < 1000, "the check does not end"
        return read_at(self, offset, size)

    monkeypatch.setattr(RealFile, "read_at", counted)
    with FrozenView(RealDisk(), home) as view:
        os.truncate(path, size)
        assert check(home, view).records == 10
    log.close()


def test_it_gives_up_on_a_directory_that_never_rests(log: Log, tmp_path: Path) -> None:
    """A view of a directory that never stops changing is an error, rather than a state that never existed."""
    disk = Meddled(lambda: grow(log, 5), "after listing", TRIES)
    with pytest.raises(DiskError, match="too fast"):
        FrozenView(disk, tmp_path / "data", pause=0)
    log.close()


def test_it_only_reads(log: Log, tmp_path: Path) -> None:
    """A view refuses every change."""
    home = tmp_path / "data"
    log.close()
    with FrozenView(RealDisk(), home) as view:
        file = view.open_read(home / "MANIFEST")
        for change in (
            lambda: view.create(home / "x"),
            lambda: view.open_append(home / "MANIFEST"),
            lambda: view.rename(home / "MANIFEST", home / "x"),
            lambda: view.remove(home / "MANIFEST"),
            lambda: view.make_directory(home / "x"),
            lambda: view.sync_directory(home),
            lambda: view.lock(home / "lock"),
            lambda: file.append(b"x"),
            lambda: file.truncate(0),
            file.datasync,
        ):
            with pytest.raises(OSError, match="only read") as refused:
                change()
            assert refused.value.errno == errno.EROFS
        with pytest.raises(FileNotFoundError):
            view.open_read(home / "nothing")
        assert view.free(home) > 0


def test_what_is_no_file_stands_in_nobodys_way(tmp_path: Path, log: Log) -> None:
    """A view skips a unix socket in the data directory, and is not blocked by a pipe."""
    home = tmp_path / "data"
    log.close()
    os.mkfifo(home / "pipe")
    (home / "folder").mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as there:
        there.bind(str(home / "m.sock"))
        with FrozenView(RealDisk(), home) as view:
            assert {"pipe", "m.sock", "folder"} < set(view.list(home))
            assert check(home, view).ok


class Forbidding(RealDisk):
    """Disk on which some files are not readable."""

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        self.names = names

    def open_read(self, path: Path) -> RealFile:
        if path.name in self.names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().open_read(path)


def test_a_file_of_the_log_that_may_not_be_read_is_an_error(tmp_path: Path, log: Log) -> None:
    """A log file that is not readable is an error, since a backup would miss it.

    Other files, such as lost+found, do not count.
    """
    home = tmp_path / "data"
    manifest = read_manifest(RealDisk(), home)
    assert manifest is not None
    last = manifest.segments[-1].name
    log.close()
    with pytest.raises(DiskError, match=f"{last} may not be read"):
        FrozenView(Forbidding(last), home)
    (home / "lost+found").touch()
    with FrozenView(Forbidding("lost+found"), home) as view:
        assert check(home, view).ok


def test_a_view_of_many_files_raises_the_limit_of_open_files(tmp_path: Path) -> None:
    """A directory may have more packs than a process may have open by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(300):
        (tmp_path / f"pack-{number}").touch()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with FrozenView(RealDisk(), tmp_path) as view:
            assert len(view.list(tmp_path)) == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
