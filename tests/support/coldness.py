"""Packs in memory for tests of cold entries: each first read is a miss, and every read is counted.

With ``MILLSTREAM_TEST_COLD`` in the environment every node of this process works on cold entries. Each node of a
stream is cold as soon as it is sealed, in an extent of its own. A test must see no difference.
"""

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from millstream.commands.context.context import Context
from millstream.engine import cold_ops
from millstream.engine.cold import FRAME_HEAD, ColdMiss, ColdReads, Range, extent_of
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.streams import extents
from millstream.engine.streams.stream import Stream
from millstream.errors import DiskError
from millstream.node.batch import Batches, PlainRun
from millstream.node.log import codec, packs, replay
from millstream.node.tiering.reading import ColdRunner

T = TypeVar("T")


class MemoryPacks:
    """Packs in memory; a part of one is there only after a read that was allowed to wait for it."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {1: bytearray()}  # bytes of each pack
        self.there: list[Range] = []  # ranges that were read before
        self.misses = 0  # number of reads that would have waited
        self.reads = self.read_bytes = self.held = self.blocking = 0  # figures for INFO, which are not counted here
        self.nowait = 1
        self.marks: list[tuple[Range, bytes | int]] = []  # parts that are missed once more
        self.advice: list[tuple[Range, bool]] = []  # what a node has told the system
        self.pins: list[tuple[Range, bytes | int]] = []  # what a node keeps for its clients, or an errno
        self.fails = False  # every read fails, as on a broken disk
        self.blind = False  # no read is allowed

    def write(self, payload: bytes, pack: int = 1) -> tuple[int, int]:
        """Append a frame; return its offset and size in bytes."""
        file = self.files.setdefault(pack, bytearray())
        offset = len(file)
        file += bytes(FRAME_HEAD) + payload
        return offset, FRAME_HEAD + len(payload)

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack."""
        if self.blind:
            raise AssertionError("a replay reads a pack")
        if self.fails:
            raise OSError(5, "Input/output error")
        here = any(_contains(each, (pack, offset, length)) for each, data in self.pins if isinstance(data, bytes))
        here = here or any(
            each[0] == pack and each[1] <= offset and offset + length <= each[1] + each[2] for each in self.there
        )
        is_marked = not may_wait and any(_contains(mark, (pack, offset, length)) for mark, _ in self.marks)
        broken = [code for each, code in self.pins if isinstance(code, int) and _overlap(each, (pack, offset, length))]
        if broken and not (here or is_marked):
            raise OSError(broken[0], "what a thread could not read")
        if is_marked or not (here or may_wait):
            self.misses += 1
            raise ColdMiss([(pack, offset, length)])
        if not here:
            self.there.append((pack, offset, length))
        return bytes(self.files[pack][offset : offset + length])

    def name(self, pack: int) -> str:
        """Return the name of a pack's file."""
        return f"pack-{pack}"

    def fetch(self, pack: int, offset: int, length: int) -> bytes:
        """Return a part of a pack as a thread would."""
        if self.fails:
            raise OSError(5, "Input/output error")
        return bytes(self.files[pack][offset : offset + length])

    def pin(self, pack: int, offset: int, length: int, what: bytes | int) -> None:
        """Keep a part, an error of it, or a mark."""
        (self.pins if what else self.marks).append(((pack, offset, length), what))

    def unpin(self, pack: int, offset: int, length: int, is_mark: bool = False) -> None:
        """Let a part go."""
        pins = self.marks if is_mark else self.pins
        at = next((at for at, (pin, _) in enumerate(pins) if pin == (pack, offset, length)), -1)
        if at >= 0:
            del pins[at]

    def advise(self, pack: int, offset: int, length: int, is_needed: bool) -> None:
        """Note what a node tells the system."""
        self.advice.append(((pack, offset, length), is_needed))

    def forget(self) -> None:
        """Let every range be missed again."""
        self.there.clear()

    def patiently(self, reads: ColdReads, run: Callable[[], T], most: int = 100) -> T:
        """Run without waiting; after a miss read what is missing, and run again."""
        self.forget()
        before, reads.may_wait = reads.may_wait, False
        try:
            for _ in range(most):
                try:
                    return run()
                except ColdMiss as miss:
                    for each in miss.ranges:
                        self.read(*each, may_wait=True)
            raise DiskError("a read misses again and again")
        finally:
            reads.may_wait = before


class BadSector(MemoryPacks):
    """Packs on a disk of which some bytes cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.bad = range(0)
        self.failed = 0  # number of reads that failed

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack."""
        if self.bad and offset < self.bad.stop and self.bad.start < offset + length:
            self.failed += 1
            raise OSError(5, "Input/output error")
        return super().read(pack, offset, length, may_wait=may_wait)


class GatedPacks(MemoryPacks):
    """Packs whose reads by threads end when a test says so."""

    def __init__(self, seconds: float = 0) -> None:
        super().__init__()
        self.gate = threading.Event()  # set: reads end
        self.seconds = seconds  # time that each read takes once the gate is open
        self.begun: list[Range] = []  # reads that threads have begun, in order
        self.waited: list[Range] = []  # reads that were allowed to wait for the disk, outside of the threads

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack, which is there only while it is pinned."""
        found = super().read(pack, offset, length, may_wait=may_wait)
        if self.there:
            self.waited.append(self.there.pop())
        return found

    def fetch(self, pack: int, offset: int, length: int) -> bytes:
        """Return a part of a pack once the gate is open."""
        self.begun.append((pack, offset, length))
        self.gate.wait()
        if self.seconds:
            threading.Event().wait(self.seconds)
        return super().fetch(pack, offset, length)


def _overlap(one: Range, other: Range) -> bool:
    return one[0] == other[0] and one[1] < other[1] + other[2] and other[1] < one[1] + one[2]


def _contains(outer: Range, inner: Range) -> bool:
    return outer[0] == inner[0] and outer[1] <= inner[1] and inner[1] + inner[2] <= outer[1] + outer[2]


def chilled(store: Any, packs: MemoryPacks, nodes: int, each: int, pack: int = 1) -> list[bytes]:
    """Write a store's first hot nodes to a pack, ``each`` of them in an extent; return the extents' rows."""
    hot = list(store.hot_nodes())[:nodes]
    rows = []
    for at in range(0, len(hot), each):
        part = hot[at : at + each]
        place = packs.write(extents.encode(part), pack)
        rows.append(extent_of(part, pack, *place).row())
    return rows


def chill(space: Keyspace, packs: MemoryPacks, db: int, key: bytes, each: int = 1) -> Transition | None:
    """Write all sealed nodes of the stream at a key; return the transition that makes them cold, not applied yet."""
    value = space.databases[db].keys.get(key)
    if not isinstance(value, Stream):
        return None
    rows = chilled(value.entries, packs, len(list(value.entries.hot_nodes())) - 1, each)
    return ("tcold", db, key, 1, b"".join(rows), []) if rows else None


IS_COLD = bool(os.environ.get("MILLSTREAM_TEST_COLD"))
hot_log = pytest.mark.skipif(IS_COLD, reason="the test reads the log, which also records cold entries")
EVERYWHERE = MemoryPacks()
"""The packs of all nodes of a process whose tests run with cold entries."""


def begin() -> None:
    """Let every node of this process have cold entries, and forbid a replay to read them."""
    packs.references = lambda _: iter(())  # type: ignore[assignment]  # no manifest names these packs
    make, commit, run, apply = Keyspace.__init__, Context.commit, ColdRunner.run, replay.apply

    def _make(space: Keyspace) -> None:
        make(space)
        space.reads.source = EVERYWHERE

    def _commit(ctx: Context, step: Transition, *, soft: bool = False, is_planned: bool = False) -> Any:
        result = commit(ctx, step, soft=soft, is_planned=is_planned)
        if not is_planned:  # it has committed others that are
            return result
        place = step[3:5] if step[0] in {"move", "copy"} else step[1:3]
        if step[0] not in cold_ops.SILENT and len(place) == 2 and isinstance(place[1], bytes):
            cold = chill(ctx.host.keyspace, EVERYWHERE, *place)
            if cold is not None:
                commit(ctx, cold, soft=True, is_planned=True)
        return result

    def _chilled(batches: Batches, run: PlainRun) -> PlainRun:
        """Make cold all that a run of plain commands has sealed, in the record that is made next."""
        space, journal = batches._keyspace, batches._journal  # noqa: SLF001 - the native runner makes no other transitions
        steps = [] if run.record is None else codec.unpack(run.record)[1]
        for place in {(step[1], step[2]) for step in steps if step[0] == "xadd"}:
            cold = chill(space, EVERYWHERE, *place)
            if cold is not None:
                space.apply(cold)
                journal.note(cold, soft=True)
        EVERYWHERE.forget()
        return run

    def _native(name: str) -> None:
        plain = getattr(Batches, name)
        setattr(Batches, name, lambda batches, *args, **options: _chilled(batches, plain(batches, *args, **options)))

    for name in ("run", "run_inside", "run_again", "end_calls"):
        _native(name)

    def _run(runner: ColdRunner, *args: Any) -> Any:
        try:
            return run(runner, *args)
        finally:
            EVERYWHERE.forget()

    def _apply(*args: Any) -> Any:
        before, EVERYWHERE.blind = EVERYWHERE.blind, True
        try:
            return apply(*args)
        finally:
            EVERYWHERE.blind = before

    Keyspace.__init__, Context.commit, ColdRunner.run = _make, _commit, _run  # type: ignore[method-assign]  # every test
    replay.apply = _apply
