"""Data directories with real records at known times."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.engine import ids
from millstream.node.log import codec
from millstream.persistence.disk import RealDisk, RealFile
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents
from millstream.persistence.rewrite import make as make_snapshot

START = 1_772_366_400_000  # 2026-03-01T12:00:00Z, the wall time of the first record
STEP = 1000  # milliseconds from one record to the next


def xadd(number: int, key: bytes = b"orders") -> bytes:
    """Build the record of one XADD."""
    wall = START + (number - 1) * STEP
    add = ("xadd", 0, key, ids.pack(ids.make(wall, 0)), [b"n", b"%d" % number], number == 1, None)
    return codec.pack(wall, [("xnew", 0, key, 100, 100), add] if number == 1 else [add])


def write_log(home: Path, records: list[bytes], segment_bytes: int = 400, *, close: bool = True) -> Log:
    """Write a log of these records in several files, with a sync after each record."""
    log, _ = Log.open(home, segment_bytes=segment_bytes)
    for record in records:
        log.append(record)
        log.write()
        log.sync()
    if close:
        log.close()
    return log


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a data directory with twenty records, 1 to 20, in several files."""
    write_log(tmp_path / "data", [xadd(number) for number in range(1, 21)])
    return tmp_path / "data"


def rewritten(home: Path, snapshot: list[bytes] | None = None, more: bytes | None = None) -> None:
    """Write twenty records with the first ten in a snapshot, or with other content there or after them."""
    log = write_log(home, [xadd(number) for number in range(1, 11)], close=False)
    disk, rewrite = RealDisk(), log.begin_rewrite()
    assert rewrite is not None
    make_snapshot(disk, home, rewrite, contents(disk, home, rewrite) if snapshot is None else iter(snapshot))
    log.commit_rewrite(rewrite)
    log.remove_obsolete()
    for record in [*map(xadd, range(11, 21)), *([] if more is None else [more])]:
        log.append(record)
        log.write()
        log.sync()
    log.close()


def segments(home: Path) -> list[Path]:
    return sorted(home.glob("log-*.seg"))


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def content(home: Path) -> dict[str, bytes]:
    """Return every file's bytes."""
    return {path.name: path.read_bytes() for path in home.iterdir()}


class NamingDisk(RealDisk):
    """A disk that notes at each rename which files were written and not synced.

    Attributes:
        unsynced: Inodes of files with content that may not be on the medium.
        written: Inodes of all written files.
        named: New names, with the unsynced inodes of that moment.
    """

    __slots__ = ("named", "unsynced", "written")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsynced: set[int] = set()
        self.written: set[int] = set()
        self.named: list[tuple[str, set[int]]] = []
        for name in ("append", "truncate"):
            self._watch(monkeypatch, name, lambda inode: (self.unsynced.add(inode), self.written.add(inode)))
        self._watch(monkeypatch, "datasync", self.unsynced.discard)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str, note: Callable[[int], object]) -> None:
        real = getattr(RealFile, name)

        def watched(file: RealFile, *words: object) -> object:
            done = real(file, *words)
            note(os.fstat(file.fileno()).st_ino)
            return done

        monkeypatch.setattr(RealFile, name, watched)

    def rename(self, old: Path, new: Path) -> None:
        self.named.append((new.name, set(self.unsynced)))
        super().rename(old, new)
