"""One node of a stream's entries: their bytes as they are replied, and how large Redis's listpack of them would be.

PURE. The store of them, and why they are as they are, is :mod:`millstream.engine.streams.entries`; the sizes come from
:mod:`millstream.engine.streams.listpack`. What a store's ``nodes()`` gives out is this class or, with the native core,
its double there; both have what stands under "what others see".
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

from hiredis import Reader, pack_command

from millstream.engine.ids import MAX64, pack_all
from millstream.engine.streams import listpack
from millstream.engine.streams.packed import PackedIds, smallest

# Every stored entry begins with this header of a two-element array
ENTRY_HEADER = b"*2\r\n"

# Measured once: Python's objects have no size that could be asked for as a whole
_OVERHEAD = 600
_ENTRY_OVERHEAD = 8
# The two counters at a listpack's head have at most this
_COUNTERS = 20
# Of most blocks
_NONE: frozenset[int] = frozenset()

# hiredis's stub asks for a tuple of one element
_pack = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)


def encode_entry(entry_id: int, fields: list[bytes]) -> bytes:
    """One entry in wire form: ``[id, [field, value, ...]]``."""
    return b"*2\r\n%b%b" % (bulk_id(entry_id), _pack(tuple(fields)))


def bulk_id(entry_id: int) -> bytes:
    """An id as it is replied."""
    name = b"%d-%d" % (entry_id >> 64, entry_id & MAX64)
    return b"$%d\r\n%b\r\n" % (len(name), name)


def _difference(value: int) -> int:
    """Listpack bytes of a difference between halves of ids, which C's int64 holds, and wraps around."""
    if 0 <= value <= 127:  # the most frequent case of the general one below
        return 2
    value &= MAX64
    return listpack.integer(value - 2**64 if value >= 2**63 else value)


class Block:
    """One node.

    Attributes:
        ids: every id ever stored here, tombstones included, ascending; equal ones: see :meth:`EntryStore.reach_back`;
            packed once sealed.
        wire: the bytes of each entry; all together once sealed.
        offsets: where each entry starts in them, packed; none until sealed.
        dead: positions of tombstones; a set of the block's own once there is one.
        live: entries that are not tombstones.
        low: position of the first live entry; without one, behind the last tombstone.
        high: position behind the last live entry; 0 without one.
        fields: names of the first entry's fields: later entries with the same names take less room in a node.
        payload: listpack bytes of everything but the two counters at its head.

    What others see: ``live`` and the properties and methods under that heading; the rest is the store's.
    """

    __slots__ = ("dead", "fields", "high", "ids", "live", "low", "offsets", "payload", "wire")

    def __init__(self, entry_id: int, fields: list[bytes], before: "Block | None" = None) -> None:
        names = fields[::2]
        if before is not None and before.fields == names:
            names = before.fields
        self.ids: list[int] | PackedIds = []
        self.offsets: Sequence[int] = ()
        self.wire: list[bytes] | bytes = []
        self.dead: set[int] | frozenset[int] = _NONE
        self.live = 0
        self.low = 0
        self.high = 0
        self.fields: list[bytes] = names
        self.payload = listpack.EMPTY + listpack.integer(len(names)) + listpack.integer(0)
        for name in names:
            self.payload += listpack.string(name)
        self.append(entry_id, fields)

    def append(self, entry_id: int, fields: list[bytes]) -> None:
        """Add an entry behind the last one. The node's size grows by what Redis's listpack would, see :meth:`size`."""
        wire, ids = self.wire, self.ids
        assert isinstance(wire, list), "a sealed block takes no more entries"
        assert isinstance(ids, list), "they are packed when the bytes are sealed"
        encoded = encode_entry(entry_id, fields)
        wire.append(encoded)
        ids.append(entry_id)
        self.live += 1
        self.high = len(ids)
        self.payload += self._entry_size(entry_id, fields, len(encoded))

    def _entry_size(self, entry_id: int, fields: list[bytes], added: int) -> int:
        """Listpack bytes of one entry: flags, id difference, fields unless shared, values, element count.

        Args:
            entry_id: its id.
            fields: names and values in turn.
            added: bytes that names and values have at most together; small ones are looked up in a cache.
        """
        master = self.ids[0]
        size = 2 + _difference((entry_id >> 64) - (master >> 64)) + _difference((entry_id & MAX64) - (master & MAX64))
        count = len(fields) // 2
        if fields[::2] == self.fields:
            return size + listpack.strings(fields[1::2], added) + listpack.integer(count + 3)
        size += listpack.strings(fields, added)
        return size + listpack.integer(count) + listpack.integer(2 * count + 4)

    def fill(self, first_id: int, run: list[list[bytes]], wires: list[bytes], most: int, max_bytes: int) -> int:
        """Add entries with ids that follow each other, until one might be too much for the node; how many were added.

        It is :meth:`append` in a loop, where most of :meth:`_entry_size` is the same for all entries.

        Args:
            first_id: id of the first.
            run: names and values in turn of each.
            wires: their wire forms, which are longer than what the rule of bytes counts.
            most: how many may be added at most.
            max_bytes: how large the node may become.
        """
        ids, kept, names, master = self.ids, self.wire, self.fields, self.ids[0]
        assert isinstance(kept, list), "a sealed block takes no more entries"
        assert isinstance(ids, list), "they are packed when the bytes are sealed"
        if (first_id & MAX64) + len(run) > MAX64:
            return 0  # the milliseconds change on the way
        seq_diff = (first_id & MAX64) - (master & MAX64)
        same = 2 + _difference((first_id >> 64) - (master >> 64)) + listpack.integer(len(names) + 3)
        payload, entry_id = self.payload, first_id
        for fields, wire in zip(run, wires, strict=True):
            size = len(wire)
            if most <= 0 or payload + _COUNTERS + size >= max_bytes:
                break
            if fields[::2] == names:
                payload += same + _difference(seq_diff) + listpack.strings(fields[1::2], size)
            else:
                payload += self._entry_size(entry_id, fields, size)
            kept.append(wire)
            ids.append(entry_id)
            entry_id += 1
            seq_diff += 1
            most -= 1
        added = entry_id - first_id
        if added:  # else the last one may be a tombstone
            self.high = len(ids)
            self.live += added
            self.payload = payload
        return added

    def seal(self) -> None:
        """Take no more entries; replies may share the bytes from now on."""
        if isinstance(self.ids, list):
            pieces = self.pieces()
            self.offsets = smallest(list(accumulate(map(len, pieces[:-1]), initial=0)))
            self.wire = b"".join(pieces)
            self.ids = PackedIds.of(self.ids)

    def unseal(self) -> None:
        """Take entries again, since the blocks behind are gone; bytes shared before stay as they are."""
        self.wire = self.pieces()
        self.ids, self.offsets = list(self.ids), ()

    def pieces(self) -> list[bytes]:
        """The bytes of each entry."""
        wire = self.wire
        if isinstance(wire, list):
            return wire
        return [wire[begin:end] for begin, end in pairwise([*self.offsets, len(wire)])]

    def left(self, entry_id: int) -> int:
        """How many stored ids are below this one."""
        return bisect_left(self.ids, entry_id) if isinstance(self.ids, list) else self.ids.left(entry_id)

    def right(self, entry_id: int) -> int:
        """How many stored ids are at or below this one."""
        return bisect_right(self.ids, entry_id) if isinstance(self.ids, list) else self.ids.right(entry_id)

    def remove(self, position: int) -> None:
        """Turn a live entry into a tombstone.

        Its bytes stay: giving them back would move all that replies point into. ``low`` and ``high`` pass over
        tombstones at the ends, so that streams that are deleted from the front are not walked in vain.
        """
        dead = self.dead
        if isinstance(dead, frozenset):
            dead = self.dead = set()
        dead.add(position)
        self.live -= 1
        while self.low in dead:
            self.low += 1
        while self.high - 1 in dead:
            self.high -= 1

    def reach_back(self, last: int) -> None:
        """Tombstones above ``last`` get its id, see :meth:`PyEntryStore.reach_back`; the node's size stays."""
        above = self.right(last)
        if above == len(self.ids):
            return
        assert isinstance(self.wire, list), "only the last block can lie above"
        assert isinstance(self.ids, list), "they are packed when the bytes are sealed"
        self.wire[above:] = [encode_entry(last, fields) for _, _, fields in list(self.entries())[above:]]
        self.ids[above:] = [last] * (len(self.ids) - above)

    def slice(self, start: int, stop: int) -> bytes | memoryview:
        """The wire bytes of entries ``start`` to ``stop``, shared where the block is sealed.

        A view of a sealed block costs nothing and keeps the whole block alive; below half a kilobyte a copy is as cheap
        and keeps nothing.
        """
        wire, offsets = self.wire, self.offsets
        if isinstance(wire, list):
            return b"".join(wire[start:stop])
        begin = offsets[start]
        end = offsets[stop] if stop < len(offsets) else len(wire)
        if begin == 0 and end == len(wire):
            return wire
        return memoryview(wire)[begin:end] if end - begin > 512 else wire[begin:end]

    # ------------------------------------------------------------------ what others see

    @property
    def first(self) -> int:
        """The first id ever stored here."""
        return self.ids[0]

    @property
    def last(self) -> int:
        """The last id ever stored here."""
        return self.ids[-1]

    @property
    def stored(self) -> int:
        """How many entries are stored, tombstones included."""
        return len(self.ids)

    @property
    def size(self) -> int:
        """Bytes this node's listpack would have."""
        return self.payload + listpack.integer(self.live) + listpack.integer(len(self.dead))

    @property
    def footprint(self) -> int:
        """Bytes of memory, by and large."""
        return _OVERHEAD + sum(map(len, self.pieces())) + len(self.ids) * _ENTRY_OVERHEAD

    def live_ids(self) -> list[int]:
        """Ids of the live entries, ascending."""
        if not self.dead:
            return self.ids.copy()
        return [entry for at, entry in enumerate(self.ids) if at not in self.dead]

    def entries(self) -> Iterator[tuple[int, bool, list[bytes]]]:
        """Every stored entry: its id, whether it is a tombstone, fields and values in turn."""
        reader = Reader()
        reader.feed(b"".join(self.pieces()))
        for at, entry_id in enumerate(self.ids):
            yield entry_id, at in self.dead, reader.gets()[1]

    def pack(self) -> list[Any]:
        """The block as plain values, for a snapshot; its bytes as they are."""
        wire, offsets = self.wire, self.offsets
        if isinstance(wire, list):
            offsets = list(accumulate(map(len, wire[:-1]), initial=0))
            wire = b"".join(wire)
        packed = struct.pack(f"<{len(offsets)}I", *offsets)
        counters = [self.low, self.high, self.payload]
        return [pack_all(self.ids[:]), packed, sorted(self.dead), counters, self.fields, wire]

    @classmethod
    def unpack(cls, packed: list[Any], before: "Block | None") -> "Block":
        """The block that :meth:`pack` packed, sealed; ``before`` is one that may share its field names."""
        ids, offsets, dead, (low, high, payload), fields, wire = packed
        block = cls.__new__(cls)
        block.ids = PackedIds.unpack(ids)
        block.offsets = smallest(struct.unpack(f"<{len(offsets) // 4}I", offsets))
        block.wire = wire
        block.dead = set(dead) or _NONE
        block.live, block.low, block.high = len(block.ids) - len(dead), low, high
        block.fields = before.fields if before is not None and before.fields == fields else fields
        block.payload = payload
        return block

    def copy(self) -> "Block":
        """An independent copy; sealed bytes are shared."""
        twin = Block.__new__(Block)
        # What is packed and sealed never changes
        twin.ids = self.ids.copy() if isinstance(self.ids, list) else self.ids
        twin.offsets = self.offsets
        twin.wire = self.wire.copy() if isinstance(self.wire, list) else self.wire
        twin.dead = set(self.dead) or _NONE
        twin.live, twin.low, twin.high = self.live, self.low, self.high
        twin.fields, twin.payload = self.fields, self.payload
        return twin
