"""Data directories with real records, whose times are known."""

from pathlib import Path

import pytest

from millstream.engine import ids
from millstream.node import codec
from millstream.persistence.log import Log

START = 1_772_366_400_000  # 2026-03-01T12:00:00Z, the wall time of the first record
STEP = 1000  # milliseconds from one record to the next


def xadd(number: int, key: bytes = b"orders") -> bytes:
    """The record of one XADD."""
    wall = START + (number - 1) * STEP
    add = ("xadd", 0, key, ids.pack(ids.make(wall, 0)), [b"n", b"%d" % number], number == 1, None)
    return codec.pack(wall, [("xnew", 0, key, 100, 100), add] if number == 1 else [add])


def write_log(home: Path, records: list[bytes], segment_bytes: int = 400, *, close: bool = True) -> Log:
    """A log of these records, in several files, each record synced by itself."""
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
    """Twenty records, 1 to 20, in several files."""
    write_log(tmp_path / "data", [xadd(number) for number in range(1, 21)])
    return tmp_path / "data"


def segments(home: Path) -> list[Path]:
    return sorted(home.glob("log-*.seg"))


def flip(path: Path, at: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def content(home: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in home.iterdir()}
