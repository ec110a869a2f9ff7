"""One node of a stream's entries: their bytes as they are replied, and how large Redis's listpack of them would be.

PURE. The store of them, and why they are as they are, is :mod:`millstream.engine.streams.entries`; the sizes come from
:mod:`millstream.engine.streams.listpack`. What a store's ``nodes()`` gives out is this class or, with the native core,
its double there; both have what stands under "what others see".
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, MutableSequence
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
# No block is so large
_PAYLOAD_MAX = 1 << 48
# Of most blocks
_NONE: frozenset[int] = frozenset()

# hiredis's stub asks for a tuple of one element
_pack = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)


def encode_entry(entry_id: int, fields: list[bytes]) -> bytes:
    """One entry in wire form: ``[id, [field, value, ...]]``."""
    name = b"%d-%d" % (entry_id >> 64, entry_id & MAX64)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(name), name, _pack(tuple(fields)))


def _signed(value: int) -> int:
    """The value as C's int64 holds it."""
    value &= MAX64
    return value - 2**64 if value >= 2**63 else value


class Block:
    """One node.

    Attributes:
        ids: every id ever stored here, tombstones included, ascending; equal ones: see :meth:`EntryStore.reach_back`;
            packed once sealed.
        offsets: where each entry starts in ``wire``; packed once sealed.
        wire: the entries' bytes; ``bytes`` once sealed.
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
        self.offsets: MutableSequence[int] = []
        self.wire: bytes | bytearray = bytearray()
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
        assert isinstance(wire, bytearray), "a sealed block takes no more entries"
        assert isinstance(ids, list), "they are packed when the bytes are sealed"
        self.offsets.append(len(wire))
        encoded = encode_entry(entry_id, fields)
        wire += encoded
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
        # Differences are stored as signed 64-bit numbers
        seq_diff = _signed((entry_id & MAX64) - (master & MAX64))
        ms_diff = _signed((entry_id >> 64) - (master >> 64))
        size = 2 + listpack.integer(ms_diff) + listpack.integer(seq_diff)
        count = len(fields) // 2
        if fields[::2] == self.fields:
            return size + listpack.strings(fields[1::2], added) + listpack.integer(count + 3)
        size += listpack.strings(fields, added)
        return size + listpack.integer(count) + listpack.integer(2 * count + 4)

    def seal(self) -> None:
        """Take no more entries; replies may share the bytes from now on."""
        if isinstance(self.ids, list):
            self.wire = bytes(self.wire)
            self.ids = PackedIds.of(self.ids)
            self.offsets = smallest(self.offsets)

    def unseal(self) -> None:
        """Take entries again, since the blocks behind are gone; bytes shared before stay as they are."""
        self.wire = bytearray(self.wire)
        self.ids = list(self.ids)
        self.offsets = list(self.offsets)

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
        entries = list(self.entries())[above:]
        assert isinstance(self.wire, bytearray), "only the last block can lie above"
        assert isinstance(self.ids, list), "they are packed when the bytes are sealed"
        del self.ids[above:], self.wire[self.offsets[above] :], self.offsets[above:]
        for _, _, fields in entries:
            self.ids.append(last)
            self.offsets.append(len(self.wire))
            self.wire += encode_entry(last, fields)

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
        return _OVERHEAD + len(self.wire) + len(self.ids) * _ENTRY_OVERHEAD

    def live_ids(self) -> list[int]:
        """Ids of the live entries, ascending."""
        if not self.dead:
            return self.ids.copy()
        return [entry for at, entry in enumerate(self.ids) if at not in self.dead]

    def entries(self) -> Iterator[tuple[int, bool, list[bytes]]]:
        """Every stored entry: its id, whether it is a tombstone, fields and values in turn."""
        reader = Reader()
        reader.feed(bytes(self.wire))
        for at, entry_id in enumerate(self.ids):
            yield entry_id, at in self.dead, reader.gets()[1]

    def pack(self) -> list[Any]:
        """The block as plain values, for a snapshot; its bytes as they are."""
        offsets = struct.pack(f"<{len(self.offsets)}I", *self.offsets)
        counters = [self.low, self.high, self.payload]
        return [pack_all(self.ids[:]), offsets, sorted(self.dead), counters, self.fields, bytes(self.wire)]

    @classmethod
    def unpack(cls, packed: list[Any], before: "Block | None") -> "Block":
        """The block that :meth:`pack` packed, sealed; ``before`` is one that may share its field names.

        A checksum has seen to its bytes; what is compared here costs next to nothing and keeps every place within them.

        Raises:
            ValueError: its parts do not belong together.
        """
        ids, offsets, dead, (low, high, payload), fields, wire = packed
        count = len(ids) // 16
        if not count or len(ids) % 16 or len(offsets) != 4 * count or not 0 <= payload <= _PAYLOAD_MAX:
            raise ValueError("a packed node is damaged: a part is of another size")
        if not 0 <= low <= count or not 0 <= high <= count or (dead and not 0 <= dead[0] <= dead[-1] < count):
            raise ValueError("a packed node is damaged: its live entries lie elsewhere")
        block = cls.__new__(cls)
        block.ids = PackedIds.unpack(ids)
        block.offsets = smallest(struct.unpack(f"<{len(offsets) // 4}I", offsets))
        if block.offsets[0] or max(block.offsets) >= len(wire):
            raise ValueError("a packed node is damaged: an entry begins elsewhere")
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
        twin.offsets = self.offsets[:] if isinstance(self.offsets, list) else self.offsets
        twin.wire = self.wire if isinstance(self.wire, bytes) else bytearray(self.wire)
        twin.dead = set(self.dead) or _NONE
        twin.live, twin.low, twin.high = self.live, self.low, self.high
        twin.fields, twin.payload = self.fields, self.payload
        return twin
