"""The two readers of packs: the native core's, and its double in Python, over one file."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream import core
from millstream.engine.cold import ColdMiss
from millstream.node.tiering import packreader
from millstream.node.tiering.packreader import Packs, PyPackReader
from millstream.persistence.disk import RealDisk

SIZE = 50_000


def _readers(path: Path) -> Iterator[Any]:
    python = PyPackReader()
    python.add(3, RealDisk().open_read(path), "pack-3")
    yield python
    if core.native is not None:
        native = core.native.PackReader(10_000)
        native.add(3, os.open(path, os.O_RDONLY), "pack-3")
        yield native


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "pack"
    found.write_bytes(Random(1).randbytes(SIZE))
    return found


def _outcome(work: Any, *args: Any, **options: Any) -> Any:
    try:
        return work(*args, **options)
    except ColdMiss as miss:
        return "miss", miss.ranges, list(miss.ahead)
    except OSError as error:
        return "error", error.errno


@pytest.mark.parametrize("seed", range(4))
def test_both_answer_the_same(path: Path, seed: int) -> None:
    """Any order of reads, pins, failures and marks has the same results, and leaves the same figures."""
    random, readers = Random(seed), list(_readers(path))
    data = path.read_bytes()
    known: list[tuple[int, int, int]] = [(3, 0, 10)]
    for _ in range(600):
        place = 3, random.randrange(SIZE - 9000), random.choice((0, 1, 100, 9000))
        if random.random() < 0.4:
            place = random.choice(known)
        known.append(place)
        _, offset, length = place
        name = random.choice(["read", "read", "read", "fetch", "mark", "unmark", "pin", "unpin", "fail", "advise"])
        found = []
        for reader in readers:
            if name == "read":
                found.append(_outcome(reader.read, *place, may_wait=False))
            elif name == "pin":
                found.append(_outcome(reader.pin, *place, data[offset : offset + length]))
            elif name in {"fail", "mark"}:
                found.append(_outcome(reader.pin, *place, errno.EIO if name == "fail" else 0))
            elif name == "unmark":
                found.append(_outcome(reader.unpin, *place, True))
            elif name == "advise":
                found.append(_outcome(reader.advise, *place, True))
            else:
                found.append(_outcome(getattr(reader, name), *place))
        assert all(each == found[0] for each in found), (name, place, found)
    for reader in readers:
        assert reader.nowait == 1
        assert reader.blocking == 0
        assert _outcome(reader.fetch, 3, SIZE - 5, 10) == data[-5:]
        assert _outcome(reader.fetch, 9, 0, 1) == ("error", errno.ENOENT)
        reader.limit(0)
        assert reader.held == 0
        reader.drop(3)
        assert _outcome(reader.read, 3, 0, 1, may_wait=False) == ("error", errno.ENOENT)
        assert reader.name(3) == "pack 3"


def test_a_mark_is_missed_until_it_is_removed(path: Path) -> None:
    """Bytes within a mark are missed though they are there, but a read that may wait finds them."""
    for reader in _readers(path):
        right = reader.read(3, 100, 50, may_wait=True)
        reader.pin(3, 90, 100, 0)
        reader.unpin(3, 90, 100)
        assert _outcome(reader.read, 3, 100, 50, may_wait=False) == ("miss", [(3, 100, 50)], [])
        assert reader.read(3, 100, 50, may_wait=True) == right
        assert reader.read(3, 100, 100, may_wait=False)[:50] == right
        reader.unpin(3, 90, 100, True)
        reader.unpin(3, 90, 100, True)
        assert reader.read(3, 100, 50, may_wait=False) == right


def test_packs_close_their_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed and refused packs leave no descriptor, and the newest pack is known while they are open."""

    def refuse(more: int) -> None:
        raise MemoryError(more)

    before = len(list(Path("/proc/self/fd").iterdir()))
    packs = Packs(1000)
    packs.drop(1)
    for number in (2, 7):
        packs.add(number, f"pack-{number}", RealDisk().open_read(path))
    assert packs.newest == 7
    assert packs.reader.read(7, 0, 3, may_wait=True) == path.read_bytes()[:3]
    packs.limit(10)
    packs.drop(7)
    packs.drop(7)
    assert packs.newest == 2
    refused = RealDisk().open_read(path)
    with monkeypatch.context() as context:
        context.setattr(packreader, "allow_files", refuse)
        with pytest.raises(MemoryError):
            packs.add(9, "pack-9", refused)
    packs.close()
    assert packs.reader is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
