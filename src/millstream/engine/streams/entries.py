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
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine.ids import MAX_ID
from millstream.engine.streams.memory import Total
from millstream.engine.streams.nodes import Block
from millstream.replies import Buffer

# Largest node in bytes, even if stream-node-max-bytes is larger (Redis: STREAM_LISTPACK_MAX_SIZE)
NODE_BYTES_CAP = 1 << 30

Run = tuple[Block, int, int]


class PyEntryStore:
    """A stream's entries."""

    __slots__ = ("_blocks", "_counted", "_firsts", "length")

    def __init__(self) -> None:
        self._blocks: list[Block] = []  # oldest first
        self._firsts: list[int] = []  # first stored id of each block, for binary search
        self.length = 0  # Number of live entries
        self._counted = 0  # Bytes of this store that are included in Total

    def __del__(self) -> None:
        Total.bytes -= self._counted

    def _count(self, growth: int) -> None:
        self._counted += growth
        Total.bytes += growth

    @property
    def footprint(self) -> int:
        """Memory of the store in bytes, computed from scratch."""
        return sum(block.footprint for block in self._blocks)

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
        before = None
        if self._blocks:
            before = self._blocks[-1]
            before.seal()
        for each in packed:
            block = Block.unpack(each, before)
            if before is not None and block.ids[0] < before.ids[-1]:
                raise ValueError("packed nodes are out of order")
            blocks.append(before := block)
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
        return 0

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
        return self._find(entry_id) is not None

    def wire(self, entry_id: int) -> bytes | memoryview | None:
        """One entry's wire bytes, or None if it is not there."""
        found = self._find(entry_id)
        if found is None:
            return None
        return self._blocks[found[0]].slice(found[1], found[1] + 1)

    def remove(self, entry_id: int, *, keep: bool = False) -> bool:
        """Delete one entry; report whether it existed. A block without a live entry stays only if ``keep``."""
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
        """Delete entries with ids below ``bound``, and blocks that end below it; return the number of entries."""
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

    def ends_below(self, bound: int) -> bool:
        """True if :meth:`remove_below` would change anything."""
        # The second half: a first block that extends beyond the bound may still have live entries below it
        first = self.first_id
        return bool(self._blocks) and (self._blocks[0].ids[-1] < bound or 0 < first < bound)

    def emptied(self, bound: int) -> list[int]:
        """Indexes of blocks that end below ``bound`` and have no live entry."""
        below = takewhile(lambda block: block.ids[-1] < bound, self._blocks)
        return [at for at, block in enumerate(below) if not block.live]

    def drop_emptied(self, bound: int) -> None:
        """Drop the blocks that end below ``bound`` and have no live entry."""
        # From the back, so that the remaining indexes stay valid
        for index in reversed(self.emptied(bound)):
            self._drop(index)

    def _drop(self, index: int) -> None:
        """Drop a block. A block that becomes the last one takes entries again, as in Redis."""
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
        return len(self._blocks)

    def nodes(self) -> Iterator[Block]:
        """The nodes, oldest first; the store must not change while a caller iterates or holds a node."""
        return iter(self._blocks)

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

    def copy(self) -> "PyEntryStore":
        """An independent copy."""
        twin = PyEntryStore()
        twin._blocks = [block.copy() for block in self._blocks]
        twin._firsts = self._firsts.copy()
        twin.length = self.length
        twin._count(twin.footprint)
        return twin


def _node_bytes(max_bytes: int) -> int:
    """Largest size of a node in bytes, by ``stream-node-max-bytes``."""
    return max_bytes if 0 < max_bytes <= NODE_BYTES_CAP else NODE_BYTES_CAP


if TYPE_CHECKING:
    EntryStore = PyEntryStore
else:
    EntryStore = core.choose(PyEntryStore)
