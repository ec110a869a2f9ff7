"""Packs in memory for tests of cold entries: each first read is a miss, and every read is counted.

With ``MILLSTREAM_TEST_TIER=cold`` in the environment every node of this process works on cold entries. Each node of a
stream is cold as soon as it is sealed, in an extent of its own. A test must see no difference.
"""

import os
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
from millstream.node.log import codec, replay
from millstream.node.tiering.reading import ColdRunner

T = TypeVar("T")


class MemoryPacks:
    """Packs in memory; a part of one is there only after a read that was allowed to wait for it."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {1: bytearray()}  # bytes of each pack
        self.there: list[Range] = []  # ranges that were read before
        self.misses = 0  # number of reads that would have waited
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
        here = any(
            each[0] == pack and each[1] <= offset and offset + length <= each[1] + each[2] for each in self.there
        )
        if not here and not may_wait:
            self.misses += 1
            raise ColdMiss([(pack, offset, length)])
        if not here:
            self.there.append((pack, offset, length))
        return bytes(self.files[pack][offset : offset + length])

    def name(self, pack: int) -> str:
        """Return the name of a pack's file."""
        return f"pack-{pack}"

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


IS_COLD = os.environ.get("MILLSTREAM_TEST_TIER") == "cold"
hot_log = pytest.mark.skipif(IS_COLD, reason="the test reads the log, which also records cold entries")
EVERYWHERE = MemoryPacks()
"""The packs of all nodes of a process whose tests run with cold entries."""


def begin() -> None:
    """Let every node of this process have cold entries, and forbid a replay to read them."""
    make, commit, run, apply = Keyspace.__init__, Context.commit, ColdRunner.run, replay.apply

    def _make(space: Keyspace) -> None:
        make(space)
        space.reads.source = EVERYWHERE

    def _commit(ctx: Context, step: Transition, *, soft: bool = False, is_planned: bool = False) -> Any:
        result = commit(ctx, step, soft=soft, is_planned=is_planned)
        if not is_planned:  # it has committed others that are
            return result
        place = step[3:5] if step[0] in {"move", "copy"} else step[1:3]
        if step[0] not in cold_ops.OPS and len(place) == 2 and isinstance(place[1], bytes):
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
