"""Readers of cold entries in order: what is marked for them, and for how long."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import core
from millstream.commands.context.session import Session
from millstream.engine.cold import ColdMiss, Range
from millstream.node.tiering.packreader import PackSource, PyPackReader
from millstream.node.tiering.readahead import IDLE_SECONDS, KEPT_SECONDS, ReadAhead
from millstream.node.tiering.tickets import Tickets
from millstream.persistence.disk import RealDisk

SIZE = 256 << 10  # Bytes of an extent
COUNT = 70  # Extents of a stream


class Threads(Tickets):
    """Tickets for which nothing is read."""

    def __init__(self) -> None:
        self._going = []

    def fetch_of(self, wanted: Range, client: int = 0, *, is_ahead: bool = False) -> None:  # type: ignore[override]  # no fetch
        """Read nothing."""


class Pack:
    """A sparse pack of many streams' extents, with a reader whose marks are counted."""

    def __init__(self, reader: PackSource) -> None:
        self.marks: set[Range] = set()
        self.reader = reader
        self.ahead = ReadAhead(Threads(), self, lambda: 1 << 20, lambda: 9)  # type: ignore[arg-type]  # its used part
        self.nowait = 1
        self.dropped: set[int] = set()

    def pin(self, pack: int, offset: int, length: int, what: int) -> None:
        self.reader.pin(pack, offset, length, what)
        self.marks.add((pack, offset, length))

    def unpin(self, pack: int, offset: int, length: int, is_mark: bool) -> None:
        self.marks.remove((pack, offset, length))
        self.reader.unpin(pack, offset, length, is_mark)

    def advise(self, *args: int) -> None:
        if not args[-1]:
            self.dropped.add(args[0])
        self.reader.advise(*args)  # type: ignore[call-arg,arg-type]  # the same four

    def miss(self, number: int, extent: int, seconds: float, pack: int = 1) -> bool:
        """A client misses an extent of its own stream."""
        base = number * COUNT
        extents = [(pack, (base + at) * SIZE, SIZE) for at in range(extent, COUNT)]
        return self.ahead.note(Session(number), ColdMiss([(*extents[0][:2], 100)], extents), seconds)


@pytest.fixture(params=["python", "native"])
def pack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pack]:
    path = tmp_path / "pack"
    with path.open("wb") as file:
        file.truncate(2000 * COUNT * SIZE)
    if request.param == "python":
        python = PyPackReader()
        python.add(1, RealDisk().open_read(path), "pack-1")
        yield Pack(python)
        python.drop(1)
        return
    if core.native is None:
        pytest.skip("without the native core")
    with path.open("rb") as file:
        native = core.native.PackReader(10_000)
        native.add(1, os.dup(file.fileno()), "pack-1")
    yield Pack(native)
    native.drop(1)


def test_a_reader_in_order_has_one_mark_that_moves(pack: Pack) -> None:
    """The mark is ahead of the reader, who takes it away, and none is left where the reader has passed."""
    assert not pack.miss(1, 0, 0.0)
    assert not pack.miss(1, 1, 0.0)
    assert pack.marks == {(1, (COUNT + 2) * SIZE, SIZE)}
    assert pack.miss(1, 2, 0.0)
    assert len(pack.marks) == 1
    pack.miss(1, 40, 0.0)
    (mark,) = pack.marks
    assert mark[1] > (COUNT + 40) * SIZE


def test_readers_that_stop_leave_no_mark(pack: Pack) -> None:
    """A reader is followed for some time; then its mark goes, so that other commands do not run again for it."""
    for number in range(50):
        pack.miss(number, 0, 0.0)
        pack.miss(number, 1, 0.0)
    assert len(pack.marks) == 50
    pack.miss(7, 50, IDLE_SECONDS - 1)
    pack.ahead.forget(IDLE_SECONDS)
    assert {mark[1] // SIZE // COUNT for mark in pack.marks} == {7}


def test_only_some_readers_are_followed(pack: Pack) -> None:
    """The reader whose last miss is the oldest is given up for another one, with its mark."""
    for number in range(1500):
        pack.miss(number, 0, 0.0)
        pack.miss(number, 1, 0.0)
    assert len(pack.marks) == 1024
    assert min(mark[1] for mark in pack.marks) // SIZE // COUNT == 1500 - 1024


@pytest.mark.parametrize("away", [30, 0])
def test_a_reader_that_goes_elsewhere_takes_its_mark_along(pack: Pack, away: int) -> None:
    """A client that reads another stream, or from the start again, leaves no mark behind."""
    pack.miss(1, away, 0.0)
    pack.miss(1, away + 1, 0.0)
    assert pack.marks
    pack.ahead.note(Session(1), ColdMiss([(1, 0, 10)], [(1, 0, SIZE)]), 0.0)
    assert not pack.marks


def test_a_pack_that_is_closed_has_no_mark(pack: Pack) -> None:
    """Readers within a pack that is let go are forgotten."""
    for number in range(3):
        pack.miss(number, 0, 0.0)
        pack.miss(number, 1, 0.0)
    pack.ahead.drop(2)
    assert len(pack.marks) == 3
    pack.ahead.drop(1)
    assert not pack.marks


def test_another_pack_that_gets_the_number_is_read_ahead_too(pack: Pack) -> None:
    """Nothing of a pack that is let go is remembered: neither what was read ahead, nor what readers have left."""
    pack.miss(1, 0, 0.0)
    pack.miss(1, 1, 0.0)
    marks = pack.marks.copy()
    pack.ahead.drop(1)
    pack.ahead.forget(KEPT_SECONDS)
    assert not pack.dropped
    pack.miss(1, 0, KEPT_SECONDS)
    pack.miss(1, 1, KEPT_SECONDS)
    assert pack.marks == marks


def test_the_marks_of_many_readers_are_taken_away_together(pack: Pack) -> None:
    """A command that meets the marks of many other readers takes away all that are before it."""
    for number in range(12):
        extents = [(1, at * SIZE, SIZE) for at in range(5 * number, COUNT)]
        for at in range(2):
            pack.ahead.note(Session(number), ColdMiss([extents[at]], extents[at:]), 0.0)
    assert len(pack.marks) == 12
    first = min(pack.marks)
    assert pack.ahead.clear(ColdMiss([first], [(1, at * SIZE, SIZE) for at in range(COUNT)]))
    assert not pack.marks
    assert not pack.ahead.clear(ColdMiss([first], []))


def test_what_may_still_be_filled_is_not_dropped(pack: Pack) -> None:
    """Extents that a reader in order has left are dropped from the page cache, but those of the newest pack stay."""
    for number in (1, 9):
        for extent in range(8):
            pack.miss(number, extent, float(extent), number)
    pack.ahead.forget(1000.0)
    assert pack.dropped == {1}
