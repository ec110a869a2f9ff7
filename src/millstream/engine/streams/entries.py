"""The ordered store of entries: each block is both a node as in Redis and the bytes of a reply.

PURE. The classes here are the specification, and run if the native core was not built. The double in C
(``_core/entries.c``) stores entries in another form, but behaves and replies the same.

A block holds the entries of one Redis node *in the form in which they are replied*: ``*2``, the id, the array of fields
and values. A range of n contiguous entries is then a few slices, and the same bytes serve RESP2 and RESP3. A full block
is sealed to immutable ``bytes``, so replies may refer to it without copying. If entries are small, sealing also cuts
the first field's name out of each, and reading puts it back.

The store is not a tree, since entries are added at one end and mostly removed at the other. It is a list of blocks with
a list of their first ids. Two bisections find an entry. An entry is encoded once, when it is added, for all its
readers. The price: each read of the last, unsealed block copies the part that it replies.

Deleting marks a tombstone; a block goes when its last live entry does. There is one exception: trimming compares the
bound with every id that a block ever held. So trimming can empty a block whose newest entries were deleted before. That
block stays, with nothing but tombstones. All this shows in Redis (node counts, ``~`` trimming), so it is exact here:
see :mod:`millstream.engine.streams.listpack` for the sizes.

Invariants, checked by the state-machine tests: ids ascend within and over blocks; only the last block is unsealed.
``length`` is the sum of the blocks' live entries; ``low`` and ``high`` of a block are its outermost live entries.

The oldest nodes may be cold: in a file, and known here by extents (:mod:`millstream.engine.cold`). All below is about
hot nodes, unless it says otherwise. If there is anything, at least one node is hot, and takes the next entry.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, groupby, takewhile
from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine import cold
from millstream.engine.cold import EXTENT_BYTES, ColdReads, Extent, Places
from millstream.engine.ids import MAX_ID
from millstream.engine.streams.cold import ColdNode, PyCold
from millstream.engine.streams.memory import Total
from millstream.engine.streams.nodes import Block
from millstream.replies import Buffer

# Largest node in bytes, even if stream-node-max-bytes is larger (Redis: STREAM_LISTPACK_MAX_SIZE)
NODE_BYTES_CAP = 1 << 30

Run = tuple[Block, int, int]


class PyEntryStore:
    """A stream's entries."""

    __slots__ = ("_blocks", "_cold", "_counted", "_firsts", "length", "reads")

    def __init__(self) -> None:
        self._blocks: list[Block] = []  # oldest first
        self._firsts: list[int] = []  # first stored id of each block, for binary search
        self.length = 0  # Number of live entries
        self._counted = 0  # Bytes of this store that are included in Total
        self._cold: PyCold | None = None  # Nodes before the first block; None if none is cold
        self.reads: ColdReads | None = None  # The way to cold nodes, set before the first extent is added

    def __del__(self) -> None:
        Total.bytes -= self._counted

    def _count(self, growth: int) -> None:
        self._counted += growth
        Total.bytes += growth

    @property
    def footprint(self) -> int:
        """Memory of the store in bytes, computed from scratch."""
        return sum(block.footprint for block in self._blocks) + (0 if self._cold is None else self._cold.footprint)

    @property
    def taken(self) -> int:
        """Memory of the nodes in bytes, as counted with each change."""
        return self._counted

    def needs_block(self, added: int, max_bytes: int, max_entries: int) -> bool:
        """Report whether an entry starts a new node, by Redis's two rules: bytes and number of entries.

        Tombstones count as entries, since they are in Redis's listpack too. The bytes are the plain sizes of fields and
        values, not their sizes in a listpack: Redis's rule is as inexact.
        """
        if not self._blocks:
            return True
        block = self._blocks[-1]
        if block.size + added >= _node_bytes(max_bytes):
            return True
        return max_entries != 0 and len(block.ids) >= max_entries  # 0 means unlimited

    def append(self, entry_id: int, fields: list[bytes], *, fresh: bool, dead: bool = False) -> None:
        """Add an entry with an id above all others."""
        # A tombstone may have the id of the one before it (reach_back), but a live entry must not
        if self._blocks and entry_id < self._blocks[-1].ids[-1] + (not dead):
            raise ValueError("an id that is not above all stored")
        if fresh:
            before = self._blocks[-1] if self._blocks else None
            # Sealed before the next block is created: only the last block may be open
            if before is not None:
                before.seal()
            self._blocks.append(Block(entry_id, fields, before))
            self._firsts.append(entry_id)
            self._count(self._blocks[-1].footprint)
        else:
            before = self._blocks[-1]
            size = before.footprint
            before.append(entry_id, fields)
            self._count(before.footprint - size)
        if dead:
            block = self._blocks[-1]
            block.remove(len(block.ids) - 1)
        else:
            self.length += 1

    def extend(self, packed: list[list[Any]]) -> None:
        """Append nodes from a snapshot (:meth:`~millstream.engine.streams.nodes.Block.pack`).

        Neighbouring blocks with equal field names share one list of them: a stream of millions of like entries has it
        once.
        """
        blocks: list[Block] = []
        before, last = None, self.cold_last
        if self._blocks:
            before = self._blocks[-1]
            before.seal()
            last = before.last
        for each in packed:
            before = Block.unpack(each, before)
            if before.first < last:
                raise ValueError("packed nodes are out of order")
            blocks.append(before)
            last = before.last
        self._blocks += blocks
        self._firsts += [block.ids[0] for block in blocks]
        self.length += sum(block.live for block in blocks)
        self._count(sum(block.footprint for block in blocks))
        if self._blocks:
            # Only the last block is open; unpack() seals each one
            self._blocks[-1].unseal()

    @property
    def first_id(self) -> int:
        """Id of the oldest live entry, 0 if there is none."""
        if self._cold is not None and self._cold.live:
            return self._cold.first_live
        for block in self._blocks:
            if block.live:
                return block.ids[block.low]
        return 0

    @property
    def last_live_id(self) -> int:
        """Id of the newest live entry, 0 if there is none."""
        for block in reversed(self._blocks):
            if block.live:
                return block.ids[block.high - 1]
        return 0 if self._cold is None else self._cold.last_live

    def _find(self, entry_id: int) -> tuple[int, int] | None:
        """Return the indexes of a live entry: of its block, and within the block."""
        index = bisect_right(self._firsts, entry_id) - 1  # the last block that begins at or below the id
        if index < 0:
            return None
        block = self._blocks[index]
        position = block.left(entry_id)
        # an id in `dead` is a tombstone: its entry was deleted
        if position == len(block.ids) or block.ids[position] != entry_id or position in block.dead:
            return None
        return index, position

    def __contains__(self, entry_id: int) -> bool:
        if self._cold is not None and entry_id <= self._cold.last:
            return self._cold.find(entry_id) is not None
        return self._find(entry_id) is not None

    def wire(self, entry_id: int) -> bytes | memoryview | None:
        """One entry's wire bytes, or None if it is not there."""
        if self._cold is not None and entry_id <= self._cold.last:
            there = self._cold.find(entry_id)
            return None if there is None else there[0].block().slice(there[1], there[1] + 1)
        found = self._find(entry_id)
        if found is None:
            return None
        return self._blocks[found[0]].slice(found[1], found[1] + 1)

    def remove(self, entry_id: int, *, keep: bool = False) -> bool:
        """Delete one entry; report whether it existed. A node without a live entry stays only if ``keep``."""
        if self._cold is not None and entry_id <= self._cold.last:
            raise ValueError("an entry in a pack is removed by a plan")
        found = self._find(entry_id)
        if found is None:
            return False
        index, position = found
        block = self._blocks[index]
        # Every range would find a block without live entries, for nothing
        if block.live == 1 and not keep:
            self._drop(index)
        else:
            block.remove(position)
        self.length -= 1
        return True

    def remove_below(self, bound: int, *, keep: bool) -> int:
        """Delete entries with ids below ``bound``, and nodes that end below it; return the number of entries."""
        if self._cold is not None:
            raise ValueError("entries in packs are trimmed by a plan")
        removed = whole = 0
        for block in self._blocks:
            if block.ids[-1] >= bound:
                break
            removed += block.live
            whole += 1
            self._count(-block.footprint)
        # A single deletion: one by one, each would move the remaining items of both lists
        del self._blocks[:whole], self._firsts[:whole]
        if self._blocks:
            block = self._blocks[0]
            # remove() moves block.low, but the range was computed before
            for at in range(block.low, block.left(bound)):
                if at not in block.dead:
                    removed += 1
                    block.remove(at)
            if not block.live and not keep:
                self._drop(0)
        self.length -= removed
        return removed

    def drop_emptied(self, bound: int) -> None:
        """Drop the blocks that end below ``bound`` and have no live entry."""
        below = takewhile(lambda block: block.last < bound, self._blocks)
        for index in reversed([at for at, block in enumerate(below) if not block.live]):
            self._drop(index)

    def _drop(self, index: int) -> None:
        """Drop a block. A block that becomes the last one takes entries again, as in Redis."""
        if self._cold is not None and len(self._blocks) == 1:
            raise ValueError("the last node in memory goes by a plan")
        self._count(-self._blocks[index].footprint)
        del self._blocks[index], self._firsts[index]
        if index and index == len(self._blocks):
            self._blocks[-1].unseal()

    def reach_back(self, last: int) -> None:
        """Make room above ``last``, an id at or above every live one, for entries to come.

        Tombstones above ``last`` would hide later entries with their ids. In a block that begins at or below ``last``,
        they count as stored at ``last`` from now on. So the block is as full as before. Blocks that begin above it are
        dropped; Redis keeps them, and then finds its own nodes out of order.
        """
        while self._blocks and self._blocks[-1].ids[0] > last:
            self._drop(len(self._blocks) - 1)
        if self._blocks:
            block = self._blocks[-1]
            size = block.footprint
            block.reach_back(last)
            self._count(block.footprint - size)

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self._blocks) + (0 if self._cold is None else self._cold.nodes)

    def nodes(self, skipped: int = 0) -> Iterator[Block | ColdNode]:
        """The nodes, oldest first, without those of the first ``skipped`` extents.

        The store must not change while a caller iterates or holds a node.
        """
        if self._cold is None:
            return iter(self._blocks)
        return chain(self._cold.every(skipped), self._blocks)

    def reply(self, start: int, end: int, count: int = -1, *, backwards: bool = False) -> tuple[int, list[Buffer], int]:
        """Live entries with ids in [start, end] in wire form.

        Returns:
            The number of entries, their bytes in any number of pieces, and the last id (0 if there is none).
        """
        number = 0
        buffers: list[Buffer] = []
        for block, low, high in (self._reversed_runs if backwards else self._runs)(start, end, count):
            number += high - low
            buffers.append(block.slice(low, high))
        return number, buffers, block.ids[high - 1] if number else 0

    def rows(self, start: int, end: int, count: int = -1) -> Iterator[tuple[int, Buffer]]:
        """Live entries with ids in [start, end] one by one, oldest first: the id and the wire form.

        The store must not change during the iteration.
        """
        for block, low, high in self._runs(start, end, count):
            for at in range(low, high):
                yield block.ids[at], block.slice(at, at + 1)

    def _runs(self, start: int, end: int, count: int = -1) -> Iterator[Run]:
        """Live entries with ids in [start, end], oldest first, as runs within blocks.

        Yields:
            The block, the first position, and the position after the last one.
        """
        if start > end or not self._blocks:
            return
        blocks, firsts = self._blocks, self._firsts
        if self._cold is not None and start <= self._cold.last:
            for run in self._cold_runs(self._cold, start, end, count):
                yield run
                count -= run[2] - run[1] if count > 0 else 0
        # The block that may contain ``start`` is the last one that begins at or before it, or else the first one
        index = max(bisect_right(firsts, start) - 1, 0)
        while index < len(blocks) and count:
            block = blocks[index]
            if firsts[index] > end:
                return
            low = max(block.left(start), block.low) if firsts[index] < start else block.low
            high = min(block.right(end), block.high) if end != MAX_ID else block.high
            for run_low, run_high in self._live_runs(block, low, high):
                stop = run_high if count < 0 else min(run_high, run_low + count)
                yield block, run_low, stop
                if count > 0:
                    count -= stop - run_low
                    if count == 0:
                        return
            index += 1

    def _cold_runs(self, part: PyCold, start: int, end: int, count: int) -> Iterator[Run]:
        """The same of cold nodes."""
        part.want_range(start, end, count)
        for node in part.between(start, end):
            block = node.block()
            low, high = max(block.left(start), block.low), min(block.right(end), block.high)
            for run_low, run_high in self._live_runs(block, low, high):
                stop = run_high if count < 0 else min(run_high, run_low + count)
                yield block, run_low, stop
                count -= stop - run_low if count > 0 else 0
                if count == 0:
                    return  # before the next node is read

    @staticmethod
    def _live_runs(block: Block, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The runs of live entries between two positions of a block."""
        # Nearly always true: nothing was deleted from the middle
        if not block.dead:
            if low < high:
                yield low, high
            return
        at = low
        while at < high:
            if at in block.dead:
                at += 1
                continue
            start = at
            while at < high and at not in block.dead:
                at += 1
            yield start, at

    def ids(self, start: int = 0, end: int = MAX_ID, count: int = -1) -> list[int]:
        """Ids of live entries, oldest first."""
        found: list[int] = []
        for block, low, high in self._runs(start, end, count):
            found += block.ids[low:high]
        return found

    def _reversed_runs(self, start: int, end: int, count: int = -1) -> Iterator[Run]:
        """Live entries, newest first, as runs of one entry each."""
        if start > end or not self._blocks:
            return
        index = bisect_right(self._firsts, end) - 1
        while index >= 0 and count:
            block = self._blocks[index]
            low = max(block.left(start), block.low)
            high = min(block.right(end), block.high)
            for at in range(high - 1, low - 1, -1):
                if at in block.dead:
                    continue
                yield block, at, at + 1
                count -= 1
                if count == 0:
                    return
            # The start is within this block, so all earlier blocks are below it
            if low > 0 and block.ids[0] < start:
                return
            index -= 1
        if self._cold is not None and start <= self._cold.last and count:
            yield from self._reversed_cold_runs(self._cold, start, end, count)

    @staticmethod
    def _reversed_cold_runs(part: PyCold, start: int, end: int, count: int) -> Iterator[Run]:
        part.want_range(start, end, count, backwards=True)
        for node in part.between(start, end, backwards=True):
            block = node.block()
            low, high = max(block.left(start), block.low), min(block.right(end), block.high)
            for at in range(high - 1, low - 1, -1):
                if at not in block.dead:
                    yield block, at, at + 1
                    count -= 1
                    if count == 0:
                        return

    def copy(self) -> "PyEntryStore":
        """An independent copy."""
        twin = PyEntryStore()
        twin._blocks = [block.copy() for block in self._blocks]
        twin._firsts = self._firsts.copy()
        twin.length, twin.reads = self.length, self.reads
        twin._cold = None if self._cold is None else self._cold.copy()
        twin._count(twin.footprint)
        return twin

    # ------------------------------------------------------------------ the cold part
    # ``nodes()`` yields cold nodes too, which read when they are asked for more than their table says. ``append``,
    # ``extend``, ``needs_block`` and ``reach_back`` concern hot nodes only. A transition changes cold entries by a plan
    # alone: ``punch``, ``cut``, ``warm`` and ``move_cold`` read nothing.

    @property
    def extent_count(self) -> int:
        """Number of extents."""
        return 0 if self._cold is None else len(self._cold.extents)

    @property
    def cold_live(self) -> int:
        """Live entries of all extents."""
        return 0 if self._cold is None else self._cold.live

    @property
    def cold_last(self) -> int:
        """Last stored id of the last extent, -1 without one."""
        return -1 if self._cold is None else self._cold.last

    @property
    def cold_bytes(self) -> int:
        """Bytes of all frames."""
        return 0 if self._cold is None else sum(extent.length for extent in self._cold.extents)

    @property
    def hole_bytes(self) -> int:
        """Memory of all holes in bytes."""
        return 0 if self._cold is None else self._cold.taken - EXTENT_BYTES * len(self._cold.extents)

    @property
    def sealed_bytes(self) -> int:
        """Memory in bytes of the blocks except the last."""
        if not self._blocks:
            return 0
        return self._counted - self._blocks[-1].footprint - (0 if self._cold is None else self._cold.taken)

    def pack_sizes(self) -> list[tuple[int, int]]:
        """The number of the pack and the bytes of each run of extents in one pack."""
        runs = groupby([] if self._cold is None else self._cold.extents, lambda extent: extent.pack)
        return [(pack, sum(extent.length for extent in run)) for pack, run in runs]

    def extents(self, begin: int, most: int) -> list[tuple[int, int, int, int]]:
        """Live entries, last stored id, nodes and bytes of up to ``most`` extents, from one on."""
        found = [] if self._cold is None else self._cold.extents[begin : begin + most]
        return [(extent.live, extent.last, extent.left, extent.length) for extent in found]

    def hot_nodes(self) -> Iterator[Block]:
        """The blocks."""
        return iter(self._blocks)

    def cold_record(self, index: int, most: int) -> tuple[int, bytes, list[list[Any]]] | None:
        """Return arguments of :meth:`add_cold` that make the extents from an index on; None behind the last one."""
        if self._cold is None or index < 0:
            return None
        return next(cold.records_of(self._cold.extents[index : index + most], most), None)

    def add_cold(self, pack: int, rows: bytes, holes: list[list[Any]]) -> None:
        """Add extents behind the others; they take the place of the first blocks, if there are blocks.

        As many blocks go as the extents have nodes left. Raise ValueError if ends, live or (without nodes gone) stored
        entries differ, or if no block would be left.
        """
        found = cold.unpack_extents(pack, rows, holes)
        if self.reads is None:
            raise ValueError("extents without a way to read them")
        there = self._matching(found)
        part = PyCold(self.reads) if self._cold is None else self._cold
        before = part.taken
        part.add(found)
        self._cold = part
        self.length += sum(extent.live for extent in found) - sum(block.live for block in self._blocks[:there])
        self._count(part.taken - before - sum(block.footprint for block in self._blocks[:there]))
        del self._blocks[:there], self._firsts[:there]

    def _matching(self, found: list[Extent]) -> int:
        """The number of blocks that are in these extents; raise if they differ."""
        at = 0
        for extent in found if self._blocks else ():
            part = self._blocks[at : at + extent.left]
            at += extent.left
            if at >= len(self._blocks):
                raise ValueError("extents of more nodes than there are")
            there = cold.extent_of(part, *extent[:3])
            is_whole = extent.left == extent.nodes
            if (
                there[5:10] != extent[5:10]
                or there.stored > extent.stored
                or (is_whole and there.stored < extent.stored)
            ):
                raise ValueError("extents of other entries")
        return at

    def want_range(self, start: int, end: int, count: int = -1, *, backwards: bool = False) -> None:
        """Raise one miss for what reading a range needs."""
        if self._cold is not None:
            self._cold.want_range(start, end, count, backwards=backwards)

    def cold_weight(self, start: int, end: int) -> int:
        """Return the least size in bytes of the live entries of the extents that lie whole between two ids."""
        return 0 if self._cold is None else self._cold.weight(start, end)

    def _part(self) -> PyCold:
        if self._cold is None:
            raise ValueError("nothing is cold here")
        return self._cold

    def plan_delete(self, ids: list[int], floor: int | None = None) -> Places:
        """Plan the deletion of cold entries; with ``floor`` emptied nodes stay, except those below it."""
        return self._part().plan_delete(ids, floor)

    def plan_cut(self, bound: int) -> Places:
        """Plan the trimming of the extent that holds a bound; extents that end below it are not part of the plan."""
        return self._part().plan_cut(bound)

    def plan_warm(self) -> tuple[list[Any], Places]:
        """Plan to make the last cold node hot."""
        return self._part().plan_warm()

    def punch(self, places: Places) -> int:
        """Apply a plan; return the number of entries that died."""
        if not places:
            return 0
        part = self._part()
        before = part.taken
        removed = part.punch(places)
        self.length -= removed
        self._count(part.taken - before)
        if not part.extents:
            self._cold = None
        return removed

    def cut(self, bound: int, places: Places) -> int:
        """Apply a plan of :meth:`plan_cut`, then remove all below ``bound``; a block that is emptied stays."""
        removed = self.punch(places)
        if self._cold is not None:
            before = self._cold.taken
            gone = self._cold.forget_below(bound)
            self._count(self._cold.taken - before)
            self.length -= gone
            removed += gone
            if self._cold.extents:
                return removed
            self._cold = None
        return removed + self.remove_below(bound, keep=True)

    def warm(self, node: list[Any], places: Places) -> None:
        """Apply a plan of :meth:`plan_warm`: the node is the first block."""
        block = Block.unpack(node, None)
        self.punch(places)
        self._blocks.insert(0, block)
        self._firsts.insert(0, block.first)
        self.length += block.live
        self._count(block.footprint)

    def move_cold(self, index: int, pack: int, row: bytes, holes: list[list[Any]]) -> None:
        """Replace an extent by one elsewhere with the same entries."""
        part = self._part()
        (extent,) = cold.unpack_extents(pack, row, holes)
        before = part.taken
        part.replace(index, extent)
        self._count(part.taken - before)


def _node_bytes(max_bytes: int) -> int:
    """Largest size of a node in bytes, by ``stream-node-max-bytes``."""
    return max_bytes if 0 < max_bytes <= NODE_BYTES_CAP else NODE_BYTES_CAP


if TYPE_CHECKING:
    EntryStore = PyEntryStore
else:
    EntryStore = core.choose(PyEntryStore)
