"""One node of a stream's entries: the bytes of its entries in wire form, and the size of Redis's listpack for them.

PURE. :mod:`millstream.engine.streams.entries` is the store of nodes, and explains their form. The sizes come from
:mod:`millstream.engine.streams.listpack`. A store's ``nodes()`` returns this class or, with the native core, the double
in C. Both have the members under "what others see".
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import Any, cast

from hiredis import Reader, pack_command

from millstream.engine.ids import MAX64, pack_all, text, unpack_all
from millstream.engine.streams import listpack
from millstream.engine.streams.packed import PackedIds, smallest

# Header of each stored entry: an array of two elements
ENTRY_HEADER = b"*2\r\n"

# Memory in bytes of a block and of each entry, measured once: Python cannot report the size of such an object as a
# whole
_OVERHEAD = 600
_ENTRY_OVERHEAD = 8
# Largest size in bytes of the two counters at a listpack's head
_COUNTERS = 20
# Candidates for a mark: text does not contain these bytes, and binary values often lack some of them
_MARKS = tuple(bytes([each]) for each in (0, 1, 2, 3, 0x7F, 0xC0, 0xC1, 0xF5, 0xFE, 0xFF))
# A mark must save at least one in this many bytes to be worth slower reading
_WORTH = 10
# Bound of a payload's size in bytes; no block is as large
_PAYLOAD_MAX = 1 << 48
# The header of an array or a string in a reply
_HEAD = re.compile(rb"([*$])(0|[1-9][0-9]{0,17})\r\n")
# Positions of tombstones in most blocks
_NONE: frozenset[int] = frozenset()

# hiredis's stub expects a tuple of one element
_pack = cast("Callable[[tuple[bytes, ...]], bytes]", pack_command)


def encode_entry(entry_id: int, fields: list[bytes]) -> bytes:
    """One entry in wire form: ``[id, [field, value, ...]]``."""
    name = b"%d-%d" % (entry_id >> 64, entry_id & MAX64)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(name), name, _pack(tuple(fields)))


def bulk_id(entry_id: int) -> bytes:
    """Return an id in wire form, as a bulk string."""
    name = b"%d-%d" % (entry_id >> 64, entry_id & MAX64)
    return b"$%d\r\n%b\r\n" % (len(name), name)


def _wrapped(difference: int) -> int:
    """Wrap a difference between halves of ids around as C's int64 does."""
    return (difference + (1 << 63) & MAX64) - (1 << 63)


def _difference(value: int) -> int:
    """Size in a listpack of a difference between halves of ids, in bytes."""
    if 0 <= value <= 127:  # a shortcut for the most frequent numbers
        return 2
    return listpack.integer(_wrapped(value))


def _cut(pieces: list[bytes], head: bytes) -> tuple[bytes, list[bytes]]:
    """Replace ``head`` in each entry by one byte, so that a sealed node holds the first field's name once.

    In Redis's listpack, too, a node's first entry names the fields for all. Here the names must be cheap to restore. So
    only one contiguous part of each entry is cut, and reading a range replaces one byte by it. The cut is made only if
    it saves enough, and every entry has the part exactly once, so that lengths show where it was.

    Returns:
        The byte, empty if nothing was cut, and the bytes of each entry after the cut.
    """
    saved, wire = len(head) - 1, b"".join(pieces)
    # The byte must not occur in the node, since restoring replaces every occurrence
    mark = next((each for each in _MARKS if each not in wire), b"")
    if not mark or saved * len(pieces) * _WORTH < len(wire):
        return b"", pieces
    kept = [piece.replace(head, mark) for piece in pieces]
    # Each entry must contain the head exactly once: a value may contain the same bytes, and other entries may have
    # other fields
    if set(map(sub, map(len, pieces), map(len, kept))) != {saved}:
        return b"", pieces
    return mark, kept


def _shared(names: list[bytes], before: "Block | None") -> tuple[list[bytes], bytes]:
    """Return a block's field names and their head, as the objects of the block before if they are equal."""
    if before is not None and before.fields == names:
        return before.fields, before.head
    return names, b"\r\n*%d\r\n$%d\r\n%b\r\n$" % (2 * len(names), len(names[0]), names[0])


def expect_packed(packed: Any) -> None:
    """Check that a packed node from another server is valid, as the native core does when it unpacks one."""
    # The parts come from a file or another server
    if type(packed) is not list or [*map(type, packed)] != [bytes, bytes, list, list, list, bytes]:
        raise ValueError("a packed node is damaged: a part is of another type")
    ids, offsets, dead, counters, names, wire = packed
    if len(ids) % 16 or len(counters) != 3 or not all(isinstance(each, int) for each in (*dead, *counters)):
        raise ValueError("a packed node is damaged: a part is of another size")
    places, at, before, live, found = [], 0, -1, [], unpack_all(ids)
    tombs = iter([*dead, -1])  # -1 is a sentinel: no position is negative
    tomb = next(tombs)
    for place, entry_id in enumerate(found):
        places.append(at)
        name, fields, at = _read_entry(wire, at)
        if place == tomb:
            tomb = next(tombs)
        else:
            live.append(place)
        # Only a tombstone may repeat the previous id, and a live entry's bytes must contain its id
        if entry_id < before or (place in live[-1:] and (entry_id == before or name != text(entry_id))):
            raise ValueError("a packed node is damaged: an id is another one")
        # A mark stands for the first entry's names; other names would change all entries that share them
        if not place and fields[::2] != names:
            raise ValueError("a packed node is damaged: its names are not those of its first entry")
        before = entry_id
    low, high = (live[0], live[-1] + 1) if live else (len(found), 0)
    if not found or at != len(wire) or tomb != -1 or counters[:2] != [low, high]:
        raise ValueError("a packed node is damaged: ids, bytes and tombstones are not of one number")
    # Readers use the offset of an entry alone, without a walk
    if offsets != struct.pack(f"<{len(places)}I", *places):
        raise ValueError("a packed node is damaged: an entry begins elsewhere")


def _read_entry(wire: bytes, at: int) -> tuple[bytes, list[bytes], int]:
    """Return the id and the fields of an entry in wire form, and the position after it."""
    count, at = _read_head(wire, at, b"*")
    if count != 2:
        raise ValueError("a packed node is damaged: an entry has no two parts")
    (name,), at = _read_words(wire, at, 1)
    count, at = _read_head(wire, at, b"*")
    # Checked before the strings are read: a damaged count may be any number
    if not count or count % 2 or count > len(wire):
        raise ValueError("a packed node is damaged: an entry has the wrong number of words")
    fields, at = _read_words(wire, at, count)
    return name, fields, at


def _read_words(wire: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    words = []
    for _ in range(count):
        size, at = _read_head(wire, at, b"$")
        words.append(wire[at : at + size])
        at += size + 2
        if wire[at - 2 : at] != b"\r\n":
            raise ValueError("a packed node is damaged: a word is cut off")
    return words, at


def _read_head(wire: bytes, at: int, mark: bytes) -> tuple[int, int]:
    found = _HEAD.match(wire, at)
    if found is None or found[1] != mark:
        raise ValueError("a packed node is damaged: a head is missing")
    return int(found[2]), found.end()


class Block:
    """One node.

    Other modules use ``live`` and the members under "what others see"; only the store uses the remaining ones.
    """

    __slots__ = (
        *("dead", "fields", "footprint", "head", "high", "ids", "live", "low", "mark", "offsets", "payload", "wire"),
    )

    def __init__(self, entry_id: int, fields: list[bytes], before: "Block | None" = None) -> None:
        names, head = _shared(fields[::2], before)
        # All stored ids, including tombstones, ascending; packed once the block is sealed. Equal ids: see
        # :meth:`EntryStore.reach_back`
        self.ids: list[int] | PackedIds = []
        self.offsets: Sequence[int] = ()  # Position of each entry in ``wire``, packed; empty until sealed
        # Bytes of each entry; joined once sealed, with ``mark`` in place of ``head``, see :func:`_cut`
        self.wire: list[bytes] | bytes = []
        # Positions of tombstones; a set of this block's own from the first tombstone on
        self.dead: set[int] | frozenset[int] = _NONE
        self.live = 0  # Number of live entries
        self.low = 0  # Position of the first live entry; if there is none, after the last tombstone
        self.high = 0  # Position after the last live entry; 0 if there is none
        self.fields, self.head, self.mark = names, head, b""
        self.footprint = _OVERHEAD  # Approximate memory in bytes, which grows with each entry
        # Size of the listpack in bytes, without the two counters at its head
        self.payload = listpack.EMPTY + listpack.integer(len(names)) + listpack.integer(0)
        for name in names:
            self.payload += listpack.string(name)
        self.append(entry_id, fields)

    def append(self, entry_id: int, fields: list[bytes]) -> None:
        """Add an entry after the last one. The node's size grows as Redis's listpack would, see :meth:`size`."""
        wire, ids = self.wire, self.ids
        assert isinstance(wire, list), "a sealed block takes no more entries"
        assert isinstance(ids, list), "they are packed when the bytes are sealed"
        encoded = encode_entry(entry_id, fields)
        wire.append(encoded)
        ids.append(entry_id)
        self.live += 1
        self.high = len(ids)
        self.payload += self._entry_size(entry_id, fields, len(encoded))
        self.footprint += len(encoded) + _ENTRY_OVERHEAD

    def _entry_size(self, entry_id: int, fields: list[bytes], added: int) -> int:
        """Listpack size of one entry in bytes: flags, id difference, fields unless shared, values, element count."""
        # As in Redis, both differences are relative to the node's first entry, deleted or not. The sequences are
        # subtracted even if the milliseconds differ
        master = self.ids[0]
        ms_diff, seq_diff = (entry_id >> 64) - (master >> 64), (entry_id & MAX64) - (master & MAX64)
        size = 2 + _difference(ms_diff) + (2 if 0 <= seq_diff <= 127 else _difference(seq_diff))
        count = len(fields) // 2
        if fields[::2] == self.fields:
            return size + listpack.strings(fields[1::2], added) + listpack.integer(count + 3)
        size += listpack.strings(fields, added)
        return size + listpack.integer(count) + listpack.integer(2 * count + 4)

    def seal(self) -> None:
        """Close the block to new entries; replies may share its bytes from now on."""
        if isinstance(self.ids, list):
            self.mark, pieces = _cut(self.pieces(), self.head)
            self.offsets = smallest(list(accumulate(map(len, pieces[:-1]), initial=0)))
            self.wire = b"".join(pieces)
            self.ids = PackedIds.of(self.ids)

    def unseal(self) -> None:
        """Open the block to entries again, after later blocks were dropped; bytes shared before do not change."""
        # Cleared only after pieces(), which reads offsets and mark
        self.wire = self.pieces()
        self.ids, self.offsets, self.mark = list(self.ids), (), b""

    def pieces(self) -> list[bytes]:
        """The bytes of each entry."""
        wire = self.wire
        if isinstance(wire, list):
            return wire
        found = [wire[begin:end] for begin, end in pairwise([*self.offsets, len(wire)])]
        return [piece.replace(self.mark, self.head) for piece in found] if self.mark else found

    def left(self, entry_id: int) -> int:
        """The number of stored ids below this one."""
        return bisect_left(self.ids, entry_id) if isinstance(self.ids, list) else self.ids.left(entry_id)

    def right(self, entry_id: int) -> int:
        """The number of stored ids at or below this one."""
        return bisect_right(self.ids, entry_id) if isinstance(self.ids, list) else self.ids.right(entry_id)

    def remove(self, position: int) -> None:
        """Turn a live entry into a tombstone.

        Its bytes stay: replies point into them, so they cannot move. ``low`` and ``high`` skip tombstones at the ends,
        so a stream that is deleted from the front is read without visiting them.
        """
        dead = self.dead
        if isinstance(dead, frozenset):
            dead = self.dead = set()
        dead.add(position)
        self.live -= 1
        # Both loops also end without a live entry: ``dead`` contains no positions outside of the block
        while self.low in dead:
            self.low += 1
        while self.high - 1 in dead:
            self.high -= 1

    def reach_back(self, last: int) -> None:
        """Give tombstones above ``last`` its id, see :meth:`PyEntryStore.reach_back`; the node's size stays."""
        above = self.right(last)
        if above == len(self.ids):
            return
        assert isinstance(self.wire, list), "only the last block can lie above"
        assert isinstance(self.ids, list), "they are packed when the bytes are sealed"
        # Encoded again, because an entry's bytes contain the id, which may have another length
        again = [encode_entry(last, fields) for _, _, fields in list(self.entries())[above:]]
        self.footprint += sum(map(len, again)) - sum(map(len, self.wire[above:]))
        self.wire[above:] = again
        self.ids[above:] = [last] * (len(self.ids) - above)

    def slice(self, start: int, stop: int) -> bytes | memoryview:
        """The wire bytes of entries ``start`` to ``stop``, shared if the block is sealed and nothing was cut.

        A view costs nothing but keeps the whole block in memory. Below half a kilobyte a copy is as cheap and does not.
        """
        wire, offsets = self.wire, self.offsets
        if isinstance(wire, list):
            return b"".join(wire[start:stop])  # an open block stores each entry separately
        begin = offsets[start]
        end = offsets[stop] if stop < len(offsets) else len(wire)
        # In a sealed block, a mark may stand for the names
        if self.mark:
            return wire[begin:end].replace(self.mark, self.head)
        if begin == 0 and end == len(wire):
            return wire
        return memoryview(wire)[begin:end] if end - begin > 512 else wire[begin:end]

    # ------------------------------------------------------------------ other forms

    @property
    def first(self) -> int:
        """The lowest id ever stored in the block."""
        return self.ids[0]

    @property
    def last(self) -> int:
        """The highest id ever stored in the block."""
        return self.ids[-1]

    @property
    def stored(self) -> int:
        """The number of stored entries, tombstones included."""
        return len(self.ids)

    @property
    def size(self) -> int:
        """Size that the node's listpack would have, in bytes."""
        return self.payload + listpack.integer(self.live) + listpack.integer(len(self.dead))

    def live_ids(self) -> list[int]:
        """Ids of the live entries, ascending."""
        if not self.dead:
            return self.ids.copy()
        return [entry for at, entry in enumerate(self.ids) if at not in self.dead]

    def entries(self) -> Iterator[tuple[int, bool, list[bytes]]]:
        """Every stored entry: its id, a flag for a tombstone, its fields and values in turn."""
        reader = Reader()
        reader.feed(b"".join(self.pieces()))
        for at, entry_id in enumerate(self.ids):
            yield entry_id, at in self.dead, reader.gets()[1]

    def pack(self) -> list[Any]:
        """The block as plain values for a snapshot, with its bytes unchanged."""
        wire, offsets = self.wire, self.offsets
        if isinstance(wire, list):
            offsets = list(accumulate(map(len, wire[:-1]), initial=0))
            wire = b"".join(wire)
        elif self.mark:  # each entry contains the mark once
            # Entry n follows n marks, each of which expands by this number of bytes
            longer = len(self.head) - 1
            offsets = [offset + at * longer for at, offset in enumerate(offsets)]
            wire = wire.replace(self.mark, self.head)
        packed = struct.pack(f"<{len(offsets)}I", *offsets)
        counters = [self.low, self.high, self.payload]
        ids = pack_all(self.ids) if isinstance(self.ids, list) else self.ids.pack()
        return [ids, packed, sorted(self.dead), counters, self.fields, wire]

    def listpack(self) -> bytes:
        """The listpack that Redis would have for this node.

        A difference between halves of ids wraps around at 64 bits, as in C.
        """
        entries = list(self.entries())
        master, _, fields = entries[0]
        names = fields[::2]
        dead = sum(is_dead for _, is_dead, _ in entries)
        # Local names, for speed: this runs for each entry of a full copy
        small, string = listpack.integer_element, listpack.element
        out = [small(len(entries) - dead), small(dead), small(len(names)), *map(string, names), small(0)]
        same, length = small(len(names) + 3), len(fields)
        for entry_id, is_dead, fields in entries:
            ms, seq = _wrapped((entry_id >> 64) - (master >> 64)), _wrapped((entry_id & MAX64) - (master & MAX64))
            # An entry with the first entry's names stores only its values
            if fields[::2] == names and len(fields) == length:
                out += [small(2 | is_dead), small(ms), small(seq), *map(string, fields[1::2]), same]
            else:
                head = [small(int(is_dead)), small(ms), small(seq), small(len(fields) // 2)]
                out += [*head, *map(string, fields), small(len(fields) + 4)]
        return listpack.pack(out)

    @classmethod
    def unpack(cls, packed: list[Any], before: "Block | None") -> "Block":
        """Return a sealed block from the result of :meth:`pack`; it shares equal field names with ``before``.

        A checksum covers the bytes. The comparisons here are cheap, and keep every position within the bytes.
        """
        ids, offsets, dead, (low, high, payload), fields, wire = packed
        count = len(ids) // 16
        if not count or len(ids) % 16 or len(offsets) != 4 * count or not 0 <= payload <= _PAYLOAD_MAX:
            raise ValueError("a packed node is damaged: a part is of another size")
        if not 0 <= low <= count or not 0 <= high <= count or (dead and not 0 <= dead[0] <= dead[-1] < count):
            raise ValueError("a packed node is damaged: its live entries lie elsewhere")
        block = cls.__new__(cls)
        block.ids = PackedIds.unpack(ids)
        block.fields, block.head = _shared(fields, before)
        block.offsets = smallest(struct.unpack(f"<{len(offsets) // 4}I", offsets))
        if block.offsets[0] or max(block.offsets) >= len(wire):
            raise ValueError("a packed node is damaged: an entry begins elsewhere")
        block.wire, block.mark = wire, b""  # cutting would double the time of a start
        block.dead = set(dead) or _NONE
        block.live, block.low, block.high = len(block.ids) - len(dead), low, high
        block.payload = payload
        block.footprint = _OVERHEAD + len(wire) + count * _ENTRY_OVERHEAD
        return block

    def copy(self) -> "Block":
        """An independent copy; sealed bytes are shared."""
        twin = Block.__new__(Block)
        # Sealed, packed data never changes
        twin.ids = self.ids.copy() if isinstance(self.ids, list) else self.ids
        twin.offsets = self.offsets
        twin.wire = self.wire.copy() if isinstance(self.wire, list) else self.wire
        twin.dead = set(self.dead) or _NONE
        twin.live, twin.low, twin.high = self.live, self.low, self.high
        twin.fields, twin.head, twin.mark, twin.payload = self.fields, self.head, self.mark, self.payload
        twin.footprint = self.footprint
        return twin
