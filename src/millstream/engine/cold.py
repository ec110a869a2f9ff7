"""Cold entries as plain values: extents of nodes in files, their holes, and what an entry store offers for them.

PURE. A store is ``[extents][nodes]``: its oldest nodes are cold, all others are hot, and the last one is always hot. An
:class:`Extent` says what its frame in a pack holds (:mod:`millstream.engine.streams.extents`), less the *holes*: what
was deleted since. So length, ends and the number of nodes are right without reading.

Reading goes through :class:`ColdReads`, which all stores of a keyspace share. A :class:`ColdSource` reads the files. A
read that would wait raises :class:`ColdMiss` with the ranges that are missing, unless ``may_wait`` is set. Bytes that
are not those of the frame raise :class:`ColdDamage`, for this reader only.

Changes come in two steps, because a replayed log must not read a pack. A command *plans*: it reads, and returns plain
values for a transition. The applier uses these values and reads nothing. A plan (``places``) is a list with one item
for each changed extent, in order::

    [index of the extent before the change,
     number of live entries left,
     ordinals of entries that die,                             an ordinal counts the entries of the whole frame
     numbers of nodes that go,                                 a node that goes takes its entries along
     first, last, first live, last live id, 16 bytes each]     of the nodes that are left; all 0 without one

Both sets are packed as of :func:`pack_bits`. An extent without a node goes.

:class:`~millstream.engine.streams.entries.PyEntryStore` documents the stores' methods.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from millstream.engine.ids import pack_all, unpack_all

T = TypeVar("T")
Range = tuple[int, int, int]
"""A part of a pack: its number, an offset in the file, and a number of bytes."""
Places = list[list[Any]]
"""A plan, see the module's text."""

FRAME_HEAD = 24  # Bytes of a frame before its payload
EXTENT_HEAD = 9  # Bytes of a payload before its table
FRAME_MAX = 0x7FFFFFFF  # Largest number of bytes of a frame
ROW_SIZE = 88  # Bytes of an extent in a transition
EXTENT_BYTES = 112  # Memory of an extent without holes
EXTENTS_MOST = 4096  # Largest number of extents in one transition
ASKED_MAX = 1 << 20  # Bytes that one miss asks for at most, apart from the last range
WANTED_MAX = 64 << 20  # Bytes that a miss of single entries asks for at most, which is what is kept for clients
AHEAD_MAX, AHEAD_COUNT = 8 << 20, 64  # Bytes and number of the extents that a miss names as next
# A look at the size of a range ends after these times the bytes that are too many: more are hardly ever dead
_SPARSE = 4
_PAGE = 64  # Number of extents that a store lists at a time
_TRIED = 8  # Damaged nodes that a walk passes over one by one if it waits for the disk
_ROW = struct.Struct("<QIIII")
_NUMBER = struct.Struct("<I")


class ColdMiss(Exception):  # noqa: N818 - control flow, not an error
    """Ranges that the reader wants, and that only waiting for a disk would return. Nothing was changed."""

    def __init__(self, ranges: list[Range], ahead: Sequence[Range] = ()) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.ahead = ahead  # Extents from the missed one on that a reader in order wants next; none if that is unknown


class ColdDamage(Exception):  # noqa: N818 - becomes the reply MSDAMAGED of the one command that reads
    """Entries of an extent cannot be read: those of one node if it alone was read or is wrong, else all."""

    def __init__(self, extent: "Extent", reason: str, reads: "ColdReads", first: int = -1, last: int = -1) -> None:
        super().__init__(reason)
        self.extent = extent  # Extent with the entries
        self.first = extent.first if first < 0 else first  # First and last id of what cannot be read
        self.last = extent.last if last < 0 else last
        self.reads = reads  # The reader that met the damage


class Lost:
    """The damage that a walk over single entries, by ascending or repeated ids, has met. It is then passed over.

    A walk that waits for a failing disk holds up all clients. After some nodes it passes over whole extents.
    """

    __slots__ = ("_first", "_last", "_waits", "damage")

    def __init__(self) -> None:
        self.damage: ColdDamage | None = None  # The first one
        self._first, self._last = 0, -1
        self._waits = 0  # Damages for which the walk may have waited

    def __contains__(self, entry_id: int) -> bool:
        """True if an entry lies in the damage that was met last."""
        return self._first <= entry_id <= self._last

    def add(self, damage: ColdDamage) -> None:
        """Note damage that was met."""
        self.damage = self.damage or damage
        self._waits += damage.reads.may_wait
        place = damage if self._waits <= _TRIED else damage.extent
        self._first, self._last = place.first, place.last


def up_to_damage(rows: Iterable[T]) -> Iterator[T]:
    """Yield what can be read before damage; raise if that is nothing."""
    found = False
    try:
        for row in rows:
            yield row
            found = True
    except ColdDamage:
        if not found:
            raise


class ColdSource(Protocol):
    """A reader of packs."""

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack's file; raise :class:`ColdMiss` if that would wait, OSError if the disk fails."""
        ...

    def name(self, pack: int) -> str:
        """Name of a pack's file, for errors."""
        ...


class ColdReads:
    """The way from the stores of one keyspace to its packs; a replay has no source, and so reads none."""

    __slots__ = ("may_wait", "source", "streams")

    def __init__(self) -> None:
        self.source: ColdSource | None = None  # Reader of the packs
        self.may_wait = True  # A read may wait for the disk
        self.streams: WeakSet[Any] = WeakSet()  # Streams in memory that had cold entries

    def read(self, pack: int, offset: int, length: int) -> bytes:
        """Return a part of a pack's file."""
        if self.source is None:
            raise ValueError("an entry in a pack was read, but there is no reader of packs here")
        return self.source.read(pack, offset, length, may_wait=self.may_wait)

    def packs(self) -> set[int]:
        """Numbers of the packs to which a stream in memory refers, without a walk over all keys."""
        return {pack for stream in self.streams for pack, _ in stream.entries.pack_sizes()}


class Holes(NamedTuple):
    """The entries and nodes of an extent that were deleted since it was written, one bit each."""

    dead: int = 0  # Entries by ordinal; entries of a node that is gone may be among them
    gone: int = 0  # Nodes by number

    @property
    def footprint(self) -> int:
        """Memory in bytes."""
        return (self.dead.bit_length() + 7) // 8 + (self.gone.bit_length() + 7) // 8

    def pack(self) -> list[bytes]:
        """Both sets as bytes for a transition, see :func:`pack_bits`."""
        return [pack_bits(self.dead), pack_bits(self.gone)]


NO_HOLES = Holes()


def bits_of(numbers: Iterable[int]) -> int:
    """Return the set of these numbers."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def numbers_of(bits: int) -> list[int]:
    """Return the numbers of a set, ascending."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def pack_bits(bits: int) -> bytes:
    """Return a set as bytes: 0 and its numbers with 4 bytes each, or 1 and a bitmap if that is shorter; little-endian.

    The empty set is packed as an empty string.
    """
    size = (bits.bit_length() + 7) // 8
    if not bits:
        return b""
    if bits.bit_count() * _NUMBER.size <= size:
        return b"\0" + b"".join(map(_NUMBER.pack, numbers_of(bits)))
    return b"\1" + bits.to_bytes(size, "little")


def unpack_bits(data: bytes) -> int:
    """Return the set of :func:`pack_bits`."""
    if not data:
        return 0
    if data[0]:
        return int.from_bytes(data[1:], "little")
    return bits_of(number for (number,) in _NUMBER.iter_unpack(data[1:]))


def count_bits(data: bytes) -> int:
    """Return the size of a set of :func:`pack_bits`."""
    if not data:
        return 0
    return int.from_bytes(data[1:], "little").bit_count() if data[0] else (len(data) - 1) // _NUMBER.size


class Extent(NamedTuple):
    """A run of neighbouring nodes in a pack; holes are taken off its live entries and its ends."""

    pack: int  # Number of the pack
    offset: int  # Position of the frame in the file
    length: int  # Size of the frame in bytes, its head included
    nodes: int  # Number of nodes in the frame
    stored: int  # Number of entries in the frame, tombstones included
    live: int  # Number of live entries
    first: int  # First stored id of the nodes that are left
    last: int  # Last stored id of these
    first_live: int  # First live id; 0 if there is none
    last_live: int  # Last live id; 0 if there is none
    holes: Holes = NO_HOLES  # Entries and nodes that were deleted since

    @property
    def left(self) -> int:
        """Number of nodes that are left."""
        return self.nodes - self.holes.gone.bit_count()

    @property
    def footprint(self) -> int:
        """Memory in bytes."""
        return EXTENT_BYTES + self.holes.footprint

    @property
    def ends(self) -> bytes:
        """The four ids, 16 bytes each."""
        return pack_all([self.first, self.last, self.first_live, self.last_live])

    def row(self) -> bytes:
        """The extent without pack and holes, for a transition."""
        return _ROW.pack(self.offset, self.length, self.nodes, self.stored, self.live) + self.ends

    @property
    def is_sound(self) -> bool:
        """True if a program's own records may have it: all that is summed or used as a size."""
        ends = [self.first, self.first_live, self.last_live, self.last] if self.live else [self.first, self.last]
        return (
            ends == sorted(ends)
            and (self.last_live > 0 if self.live else self.first_live == self.last_live == 0)
            and 0 <= self.live <= self.stored <= self.length
            and 0 < self.left <= self.nodes <= self.length
            and FRAME_HEAD + EXTENT_HEAD <= self.length <= FRAME_MAX
            and self.offset < 1 << 62
        )

    def expect_same_entries(self, other: "Extent") -> None:
        """Raise unless another extent has the same live entries as far as this can be seen."""
        if self[5:10] != other[5:10] or self.left != other.left:
            raise ValueError("an extent is to take the place of another one that has other entries")


def unpack_extents(pack: int, rows: bytes, holes: Sequence[Sequence[Any]]) -> list[Extent]:
    """Return the extents of a transition; an item of ``holes`` is the index of an extent and its packed holes."""
    if not rows or len(rows) % ROW_SIZE:
        raise ValueError("extents of another size")
    found = []
    for at in range(0, len(rows), ROW_SIZE):
        ids = unpack_all(rows[at + _ROW.size : at + ROW_SIZE])
        found.append(Extent(pack, *_ROW.unpack_from(rows, at), *ids))
    for index, dead, gone in holes:
        found[index] = found[index]._replace(holes=Holes(unpack_bits(dead), unpack_bits(gone)))
    return found


def figures_of(rows: bytes, at: int) -> tuple[int, int, int]:
    """Return nodes, stored and live entries of the extent of an index."""
    _, _, nodes, stored, live = _ROW.unpack_from(rows, at * ROW_SIZE)
    return nodes, stored, live


def last_of(rows: bytes, at: int) -> int:
    """Return the last stored id of the extent of an index."""
    begin = at * ROW_SIZE + _ROW.size + 16
    return unpack_all(rows[begin : begin + 16])[0]


def index_of(store: Any, first: int) -> int:
    """Return the index of the first extent that ends at an id or behind it."""

    def last(index: int) -> int:
        record = store.cold_record(index, 1)
        assert record is not None, "the index is one of the extents'"
        return last_of(record[1], 0)

    return bisect_left(range(store.extent_count), first, key=last)


def records_of(extents: Sequence[Extent], most: int) -> Iterator[tuple[int, bytes, list[list[Any]]]]:
    """Yield arguments of transitions that add extents: the pack, at most ``most`` rows, and the holes."""
    for number, group in groupby(extents, key=lambda extent: extent.pack):
        run = list(group)
        for at in range(0, len(run), most):
            part = run[at : at + most]
            holes = [[index, *each.holes.pack()] for index, each in enumerate(part) if each.holes != NO_HOLES]
            yield number, b"".join(each.row() for each in part), holes


def extent_of(nodes: Sequence[Any], pack: int, offset: int, length: int) -> Extent:
    """Return the extent that these neighbouring hot nodes, of either core, are once their frame is written."""
    live = [node for node in nodes if node.live]
    ends = (live[0].live_ids()[0], live[-1].live_ids()[-1]) if live else (0, 0)
    stored = sum(node.stored for node in nodes)
    total = sum(node.live for node in nodes)
    return Extent(pack, offset, length, len(nodes), stored, total, nodes[0].first, nodes[-1].last, *ends)


def want(store: Any, ids: Iterable[int]) -> None:
    """Raise one miss for all that reading these entries needs, unless all of it is there; pass over damaged ones."""
    if not store.extent_count or store.reads.may_wait:
        return
    missed: dict[Range, None] = {}
    size, lost = 0, Lost()  # bytes that are missed
    for each in ids:
        if each in lost:
            continue
        try:
            store.want_range(each, each)
        except ColdDamage as damage:  # for the reader, if it reads these entries at all
            lost.add(damage)
        except ColdMiss as miss:
            fresh = [wanted for wanted in miss.ranges if wanted not in missed]
            missed |= dict.fromkeys(fresh)
            size += sum(length for _, _, length in fresh)
            if size >= WANTED_MAX:
                break
    if missed:
        raise ColdMiss(list(missed))


def cold_records(store: Any, most: int = EXTENTS_MOST, at: int = 0) -> Iterator[tuple[int, bytes, list[list[Any]]]]:
    """Yield arguments of ``add_cold`` that make the cold part of a store again, each of at most so many extents.

    ``at`` is the index of the first extent.
    """
    while (record := store.cold_record(at, most)) is not None:
        yield record
        at += len(record[1]) // ROW_SIZE


def each_extent(store: Any) -> Iterator[tuple[int, int, int, int]]:
    """Yield live entries, last stored id, nodes and bytes of each extent. It reads none, and lists few at a time."""
    at = 0
    while page := store.extents(at, _PAGE):
        yield from page
        at += len(page)


def least_size(store: Any, start: int, end: int, count: int, most: int, *, backwards: bool) -> int:
    """Return a size that the live cold entries of a range have at least, of which ``count`` are read (-1: all).

    Nothing is read. A size of more than ``most`` bytes may be a part of it.
    """
    if count < 0 or count >= store.cold_live:
        return int(store.cold_weight(start, end))
    total, step, looked = store.extent_count, -1 if backwards else 1, 0
    at = bisect_left(range(total), end if backwards else start, key=lambda index: store.extents(index, 1)[0][1])
    at = min(at, total - 1) if backwards else at
    low, high = (end + 1, end) if backwards else (start, start - 1)
    while 0 <= at < total and looked < _SPARSE * most:
        live, last, _, length = store.extents(at, 1)[0]
        count -= live
        if count < 0 or (last < start if backwards else last > end):
            break
        looked += length
        at += step
        if not backwards:
            high = last
        else:
            low = max(start, store.extents(at, 1)[0][1] + 1 if at >= 0 else start)
    return int(store.cold_weight(low, high)) if low <= high else 0
