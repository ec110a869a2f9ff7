"""The ordered store of entries: blocks that are at once Redis's nodes and the bytes of our replies.

PURE. A block holds the entries of one Redis node *in the form in which they are replied*: ``*2``, the id, the array of
fields and values. A range of n contiguous entries is then a few slices, and the same bytes serve RESP2 and RESP3. A
block that takes no more entries is sealed to immutable ``bytes``, so replies may hold on to it without copying.

Why not a tree of entries: entries come at one end and mostly go at the other, so a list of blocks with the first id of
each beside it is found by two bisections and appended to at its end. Encoding when an entry is added costs the same as
when it is read, and is done once for all its readers. What that costs is a copy of the last, unsealed block's part for
each reader of it.

Deleting marks a tombstone; a block goes when its last live entry does. There is one exception: trimming removes a block
for the ids it ever held, so it can empty one whose newest entries had been deleted before, and that one stays, with
nothing but tombstones. All this shows in Redis (node counts, ``~`` trimming), so it is exact here: see
:mod:`millstream.engine.streams.listpack` for the sizes.

Invariants, checked by the state-machine tests: ids ascend within and over blocks; only the last block is unsealed;
``length`` is the sum of the blocks' live entries; ``low`` and ``high`` of a block are its outermost live entries.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, cast

from hiredis import pack_command

from millstream.engine.ids import MAX64, MAX_ID, pack_all, unpack_all
from millstream.engine.streams import listpack

# The largest node whatever stream-node-max-bytes says (Redis: STREAM_LISTPACK_MAX_SIZE)
NODE_BYTES_CAP = 1 << 30
# Every stored entry begins with this header of a two-element array
ENTRY_HEADER = b"*2\r\n"

# hiredis's stub asks for a tuple of one element
_pack = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)

Run = tuple["Block", int, int]


def encode_entry(entry_id: int, fields: list[bytes]) -> bytes:
    """One entry in wire form: ``[id, [field, value, ...]]``."""
    name = b"%d-%d" % (entry_id >> 64, entry_id & MAX64)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(name), name, _pack(tuple(fields)))


class Block:
    """One node.

    Attributes:
        ids: every id ever stored here, tombstones included, ascending; equal ones: see :meth:`EntryStore.reach_back`.
        offsets: where each entry starts in ``wire``.
        wire: the entries' bytes; ``bytes`` once sealed.
        dead: positions of tombstones.
        live: entries that are not tombstones.
        low: position of the first live entry; without one, behind the last tombstone.
        high: position behind the last live entry; 0 without one.
        fields: names of the first entry's fields: later entries with the same names take less room in a node.
        payload: listpack bytes of everything but the two counters at its head.
    """

    __slots__ = ("dead", "fields", "high", "ids", "live", "low", "offsets", "payload", "wire")

    def __init__(self, entry_id: int, fields: list[bytes]) -> None:
        names = fields[::2]
        self.ids: list[int] = []
        self.offsets: list[int] = []
        self.wire: bytes | bytearray = bytearray()
        self.dead: set[int] = set()
        self.live = 0
        self.low = 0
        self.high = 0
        self.fields = names
        self.payload = listpack.EMPTY + listpack.integer(len(names)) + listpack.integer(0)
        for name in names:
            self.payload += listpack.string(name)
        self.append(entry_id, fields)

    def append(self, entry_id: int, fields: list[bytes]) -> None:
        """Add an entry behind the last one. The node's size grows by what Redis's listpack would, see :meth:`size`."""
        wire = self.wire
        assert isinstance(wire, bytearray), "a sealed block takes no more entries"
        self.offsets.append(len(wire))
        encoded = encode_entry(entry_id, fields)
        wire += encoded
        self.ids.append(entry_id)
        self.live += 1
        self.high = len(self.ids)
        self.payload += self._entry_size(entry_id, fields, len(encoded))

    def _entry_size(self, entry_id: int, fields: list[bytes], added: int) -> int:
        """Listpack bytes of one entry: flags, id difference, fields unless shared, values, element count.

        Args:
            entry_id: its id.
            fields: names and values in turn.
            added: bytes that names and values have at most together; small ones are looked up in a cache.
        """
        master = self.ids[0]
        # Differences are stored as signed 64-bit numbers
        seq_diff = _signed((entry_id & MAX64) - (master & MAX64))
        ms_diff = _signed((entry_id >> 64) - (master >> 64))
        size = 2 + listpack.integer(ms_diff) + listpack.integer(seq_diff)
        count = len(fields) // 2
        if fields[::2] == self.fields:
            return size + listpack.strings(fields[1::2], added) + listpack.integer(count + 3)
        size += listpack.strings(fields, added)
        return size + listpack.integer(count) + listpack.integer(2 * count + 4)

    def live_ids(self) -> list[int]:
        """Ids of the live entries, ascending."""
        if not self.dead:
            return self.ids.copy()
        return [entry for at, entry in enumerate(self.ids) if at not in self.dead]

    def size(self) -> int:
        """Bytes this node's listpack would have."""
        return self.payload + listpack.integer(self.live) + listpack.integer(len(self.dead))

    def seal(self) -> None:
        """Take no more entries; replies may share the bytes from now on."""
        self.wire = bytes(self.wire)

    def unseal(self) -> None:
        """Take entries again, since the blocks behind are gone; bytes shared before stay as they are."""
        self.wire = bytearray(self.wire)

    def remove(self, position: int) -> None:
        """Turn a live entry into a tombstone.

        Its bytes stay: giving them back would move all that replies point into. ``low`` and ``high`` pass over
        tombstones at the ends, so that streams that are deleted from the front are not walked in vain.
        """
        dead = self.dead
        dead.add(position)
        self.live -= 1
        while self.low in dead:
            self.low += 1
        while self.high - 1 in dead:
            self.high -= 1

    def slice(self, start: int, stop: int) -> bytes | memoryview:
        """The wire bytes of entries ``start`` to ``stop``, shared where the block is sealed.

        A view of a sealed block costs nothing and keeps the whole block alive; below half a kilobyte a copy is as cheap
        and keeps nothing.
        """
        wire = self.wire
        begin = self.offsets[start]
        end = self.offsets[stop] if stop < len(self.offsets) else len(wire)
        if isinstance(wire, bytearray):
            return bytes(wire[begin:end])
        if begin == 0 and end == len(wire):
            return wire
        return memoryview(wire)[begin:end] if end - begin > 512 else wire[begin:end]

    def pack(self) -> list[Any]:
        """The block as plain values, for a snapshot; its bytes as they are."""
        offsets = struct.pack(f"<{len(self.offsets)}I", *self.offsets)
        counters = [self.low, self.high, self.payload]
        return [pack_all(self.ids), offsets, sorted(self.dead), counters, self.fields, bytes(self.wire)]

    @classmethod
    def unpack(cls, packed: list[Any], before: "Block | None") -> "Block":
        """The block that :meth:`pack` packed, sealed; ``before`` is one that may share its field names."""
        ids, offsets, dead, (low, high, payload), fields, wire = packed
        block = cls.__new__(cls)
        block.ids = unpack_all(ids)
        block.offsets = list(struct.unpack(f"<{len(offsets) // 4}I", offsets))
        block.wire = wire
        block.dead = set(dead)
        block.live, block.low, block.high = len(block.ids) - len(dead), low, high
        block.fields = before.fields if before is not None and before.fields == fields else fields
        block.payload = payload
        return block

    def copy(self) -> "Block":
        """An independent copy; sealed bytes are shared."""
        twin = Block.__new__(Block)
        twin.ids = self.ids.copy()
        twin.offsets = self.offsets.copy()
        twin.wire = self.wire if isinstance(self.wire, bytes) else bytearray(self.wire)
        twin.dead = self.dead.copy()
        twin.live, twin.low, twin.high = self.live, self.low, self.high
        twin.fields, twin.payload = self.fields, self.payload
        return twin


def _signed(value: int) -> int:
    """The value as C's int64 holds it."""
    value &= MAX64
    return value - 2**64 if value >= 2**63 else value


class EntryStore:
    """A stream's entries.

    Attributes:
        blocks: oldest first.
        length: live entries.
    """

    __slots__ = ("_firsts", "blocks", "length")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._firsts: list[int] = []  # first stored id of each block, for bisection
        self.length = 0

    def needs_block(self, added: int, max_bytes: int, max_entries: int) -> bool:
        """Whether an entry starts a new node, by Redis's two rules: bytes and number of entries.

        Tombstones count as entries, since they are in Redis's listpack too. The bytes are those of fields and values as
        they are, not as the listpack stores them: the rule is Redis's, and not exact there either.

        Args:
            added: bytes of the entry's fields and values.
            max_bytes: ``stream-node-max-bytes``; 0 for no other bound than a gigabyte.
            max_entries: ``stream-node-max-entries``; 0 for no bound.
        """
        if not self.blocks:
            return True
        block = self.blocks[-1]
        if max_bytes == 0 or max_bytes > NODE_BYTES_CAP:
            max_bytes = NODE_BYTES_CAP
        if block.size() + added >= max_bytes:
            return True
        return max_entries != 0 and len(block.ids) >= max_entries

    def append(self, entry_id: int, fields: list[bytes], *, fresh: bool) -> None:
        """Add an entry with an id above all others.

        Args:
            entry_id: its id.
            fields: names and values in turn.
            fresh: whether it starts a new node, which the command decided by :meth:`needs_block`; then the last one is
                sealed.
        """
        if fresh:
            if self.blocks:
                self.blocks[-1].seal()
            self.blocks.append(Block(entry_id, fields))
            self._firsts.append(entry_id)
        else:
            self.blocks[-1].append(entry_id, fields)
        self.length += 1

    def extend(self, blocks: list[Block]) -> None:
        """Add sealed blocks behind the others; the last of them takes more entries."""
        if self.blocks:
            self.blocks[-1].seal()
        self.blocks += blocks
        self._firsts += [block.ids[0] for block in blocks]
        self.length += sum(block.live for block in blocks)
        self.blocks[-1].unseal()

    @property
    def first_id(self) -> int:
        """Id of the oldest live entry, 0 if there is none."""
        for block in self.blocks:
            if block.live:
                return block.ids[block.low]
        return 0

    @property
    def last_live_id(self) -> int:
        """Id of the newest live entry, 0 if there is none."""
        for block in reversed(self.blocks):
            if block.live:
                return block.ids[block.high - 1]
        return 0

    def _find(self, entry_id: int) -> tuple[int, int] | None:
        """Index of the block and position in it of a live entry."""
        index = bisect_right(self._firsts, entry_id) - 1
        if index < 0:
            return None
        block = self.blocks[index]
        position = bisect_left(block.ids, entry_id)
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
        return self.blocks[found[0]].slice(found[1], found[1] + 1)

    def remove(self, entry_id: int, *, keep: bool = False) -> bool:
        """Delete one entry; whether it was there. Its block stays without a live entry only if ``keep``."""
        found = self._find(entry_id)
        if found is None:
            return False
        index, position = found
        block = self.blocks[index]
        if block.live == 1 and not keep:
            self._drop(index)
        else:
            block.remove(position)
        self.length -= 1
        return True

    def remove_below(self, bound: int, *, keep: bool) -> list[int]:
        """Delete every entry with an id below ``bound``, and every block that ends below it.

        Args:
            bound: the smallest id that stays.
            keep: the block in which the bound lies stays even if nothing in it lives.

        Returns:
            The ids deleted, ascending.
        """
        removed: list[int] = []
        whole = 0
        for block in self.blocks:
            if block.ids[-1] >= bound:
                break
            removed += block.live_ids()
            whole += 1
        del self.blocks[:whole], self._firsts[:whole]
        if self.blocks:
            block = self.blocks[0]
            for at in range(block.low, bisect_left(block.ids, bound)):
                if at not in block.dead:
                    removed.append(block.ids[at])
                    block.remove(at)
            if not block.live and not keep:
                self._drop(0)
        self.length -= len(removed)
        return removed

    def ends_below(self, bound: int) -> bool:
        """Whether :meth:`remove_below` would change anything."""
        first = self.first_id
        return bool(self.blocks) and (self.blocks[0].ids[-1] < bound or 0 < first < bound)

    def emptied(self, bound: int) -> list[int]:
        """Indexes of blocks that end below ``bound`` and have no live entry."""
        below = takewhile(lambda block: block.ids[-1] < bound, self.blocks)
        return [at for at, block in enumerate(below) if not block.live]

    def drop_emptied(self, bound: int) -> None:
        """Drop the blocks that end below ``bound`` and have no live entry."""
        for index in reversed(self.emptied(bound)):
            self._drop(index)

    def _drop(self, index: int) -> None:
        """Forget a block. One that is the last from now on takes entries again, as the node before it does in Redis."""
        del self.blocks[index], self._firsts[index]
        if index and index == len(self.blocks):
            self.blocks[-1].unseal()

    def reach_back(self, last: int) -> None:
        """Make room above ``last``, an id at or above every live one, for entries to come.

        Tombstones above it would be in the way of finding what is stored at their ids later. Those of a block that
        begins at or below ``last`` count as stored at ``last`` from now on, so that the block is as full as before.
        Blocks that lie above as a whole go; Redis keeps them, and then finds its own nodes out of order.
        """
        while self.blocks and self.blocks[-1].ids[0] > last:
            self._drop(len(self.blocks) - 1)
        if self.blocks:
            ids = self.blocks[-1].ids
            above = bisect_right(ids, last)
            ids[above:] = [last] * (len(ids) - above)

    def runs(self, start: int, end: int, count: int = -1) -> Iterator[Run]:
        """Live entries with ids in [start, end], oldest first, as runs within blocks.

        Args:
            start: smallest id.
            end: largest id.
            count: at most this many entries; negative for all.

        Yields:
            The block, the first position and the position behind the last.
        """
        if start > end or not self.blocks:
            return
        index = max(bisect_right(self._firsts, start) - 1, 0)
        blocks = self.blocks
        while index < len(blocks) and count:
            block = blocks[index]
            if block.ids[0] > end:
                return
            low = max(bisect_left(block.ids, start), block.low)
            high = min(bisect_right(block.ids, end), block.high)
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
        """The stretches of a block without a tombstone between two positions."""
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

    def ids(self, start: int = 0, end: int = MAX_ID, count: int = -1) -> Iterator[int]:
        """Ids of live entries, oldest first.

        Args:
            start: the smallest id.
            end: the largest id, itself included.
            count: most ids; negative for all.
        """
        for block, low, high in self.runs(start, end, count):
            yield from block.ids[low:high]

    def reversed_runs(self, start: int, end: int, count: int = -1) -> Iterator[Run]:
        """Live entries, newest first, one entry a run.

        Args:
            start: the smallest id.
            end: the largest id, itself included.
            count: most entries; negative for all.
        """
        if start > end or not self.blocks:
            return
        index = bisect_right(self._firsts, end) - 1
        while index >= 0 and count:
            block = self.blocks[index]
            low = max(bisect_left(block.ids, start), block.low)
            high = min(bisect_right(block.ids, end), block.high)
            for at in range(high - 1, low - 1, -1):
                if at in block.dead:
                    continue
                yield block, at, at + 1
                count -= 1
                if count == 0:
                    return
            if low > 0 and block.ids[0] < start:
                return
            index -= 1

    def copy(self) -> "EntryStore":
        """An independent copy."""
        twin = EntryStore()
        twin.blocks = [block.copy() for block in self.blocks]
        twin._firsts = self._firsts.copy()
        twin.length = self.length
        return twin
