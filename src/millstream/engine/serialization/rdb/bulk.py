"""The slow parts of reading Redis's payloads: checksum, compressed strings, listpacks of entries, pending records.

PURE. The functions here are the specification, and run if the native core was not built. Their doubles
(``_core/rdb.c``) return the same for the same bytes, and refuse the same input. The bytes are not trusted.

Source: the format as rdb.h, listpack.c, crc64.c and lzf_d.c of Redis describe it.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from millstream import core
from millstream.engine.ids import MAX64
from millstream.engine.serialization.plain import OLDEST, MalformedError, number
from millstream.engine.serialization.rdb.sizes import Payload
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import Group
from millstream.engine.streams.listpack import back, is_integer
from millstream.engine.streams.pending import MAX_DELIVERIES, Consumer

# Polynomial of Redis's checksum, with reversed bits
_POLYNOMIAL = 0x95AC9329AC4BC9B5
# Largest uncompressed value in bytes (Redis: proto-max-bulk-len)
_LARGEST = 512 * 1024 * 1024
_LLONG_MAX = 2**63 - 1
# Bytes of a record: an id, a time, a count
_RECORD = 32


# ---------------------------------------------------------------------- checksum, compression


@cache
def _crc_table() -> tuple[int, ...]:
    """The checksum's table, made on first use: few servers ever read such a payload."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def py_crc64(data: bytes | memoryview, crc: int = 0) -> int:
    """Return Redis's CRC-64 (Jones), continued from the CRC of the bytes before."""
    table = _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc


def py_decompress(data: bytes, size: int) -> bytes:
    """Decompress LZF data."""
    if size > min(_LARGEST, len(data) * 264):  # three bytes expand to 264 at most
        raise MalformedError("larger than it can be")
    source, out = Payload(data), bytearray()
    while source.at < len(data) and len(out) <= size:
        control = source.byte()
        if control < 32:
            out += source.take(control + 1)
            continue
        length = control >> 5
        if length == 7:
            length += source.byte()
        distance = ((control & 31) << 8 | source.byte()) + 1
        start = len(out) - distance
        if start < 0:
            raise MalformedError("points before the beginning")
        length += 2
        piece = bytes(out[start : start + length])
        out += (piece * (length // len(piece) + 1))[:length]  # the copied bytes may overlap the result
    if len(out) != size:
        raise MalformedError("not the size it is said to be")
    return bytes(out)


# ---------------------------------------------------------------------- entries


def py_read_listpacks(nodes: Iterable[tuple[bytes, bytes]]) -> EntryStore:
    """A store of the entries of nodes."""
    store, last, newest = EntryStore(), 0, 0
    for key, packed in nodes:
        for at, (entry_id, is_dead, fields) in enumerate(_node(key, packed)):
            fresh = at == 0
            # A tombstone may have the same id as the entry before it in its node, see PyEntryStore.reach_back
            if entry_id <= last and not (is_dead and at and entry_id == last):
                # Redis up to 7.0 adds entries below tombstones after XSETID lowers the last id
                if entry_id <= store.last_live_id or not store.node_count:
                    raise MalformedError("entries out of order")
                # If the node's first id is above the entry, the node has only tombstones: the entry replaces its
                # beginning
                fresh = fresh or entry_id <= newest
                store.reach_back(entry_id - 1)
            store.append(entry_id, fields, fresh=fresh, dead=is_dead)
            last, newest = entry_id, entry_id if fresh else newest
    return store


def _node(key: bytes, packed: bytes) -> list[tuple[int, bool, list[bytes]]]:
    """The entries of one node with their tombstones: id, True for a tombstone, fields.

    A node's head holds the counters and the fields of its first entry; entries with the same fields (flag 2) have
    values only. Ids are differences to the node's own id, which is its key.
    """
    # The key in the radix tree is the id of the node's first entry, deleted or not
    if len(key) != 16:
        raise MalformedError("a node without its id")
    ms, seq = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
    items = listpack(packed)
    live, dead = _count(items), _count(items)
    names = [_next(items) for _ in range(_count(items))]
    # The head ends with a zero, at which a backwards walk stops
    if _integer(items):
        raise MalformedError("a node's head does not end")
    entries = []
    for _ in range(live + dead):
        flags = _integer(items)
        # A difference may be negative; C computes with 64 bits, so each half wraps around on its own
        entry_id = ((ms + _integer(items)) & MAX64) << 64 | (seq + _integer(items)) & MAX64
        if flags & 2:
            fields = [part for name in names for part in (name, _next(items))]
        else:
            fields = [_next(items) for _ in range(2 * _count(items))]
        if not fields:
            raise MalformedError("an entry without its fields")
        # Number of elements back to the entry's flags, which XREVRANGE of another server uses
        if _integer(items) != (len(names) + 3 if flags & 2 else len(fields) + 4):
            raise MalformedError("a node that cannot be walked backwards")
        entries.append((entry_id, bool(flags & 1), fields))
    # Another server trims by these counters without reading the entries
    if next(items, None) is not None or sum(is_dead for _, is_dead, _ in entries) != dead:
        raise MalformedError("a node's counters are wrong")
    return entries


def _next(items: Iterator[bytes]) -> bytes:
    """Return the next element, or raise if there is none."""
    item = next(items, None)
    if item is None:
        raise MalformedError("a node cut short")
    return item


def _integer(items: Iterator[bytes]) -> int:
    """Return the next element as a number; a number written as text must be in canonical form, as for Redis."""
    item = _next(items)
    if not is_integer(item):
        raise MalformedError("a number expected")
    return int(item)


def _count(items: Iterator[bytes]) -> int:
    """Return the next element as a count."""
    return number(_integer(items), _LLONG_MAX)


# Size of each encoding of integers after its first byte
_INTEGERS = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}


def listpack(packed: bytes) -> Iterator[bytes]:
    """The elements of a listpack, with integers as text.

    The size of each also follows it, for walking backwards: it has from one to five bytes, and must be right.
    """
    if packed[:4] != len(packed).to_bytes(4, "little") or len(packed) < 7 or packed[-1] != 0xFF:
        raise MalformedError("not a listpack")
    source = Payload(packed[:-1], 6)  # skips the total size and the number of elements
    while source.at < len(source.data):
        start = source.at
        found = _element(source)
        behind = back(source.at - start)
        if source.take(len(behind)) != behind:
            raise MalformedError("a listpack that cannot be walked backwards")
        yield found


def _element(source: Payload) -> bytes:
    """Read one element; its first bits give its type, number or string, and its size."""
    first = source.byte()
    # The prefixes are unambiguous: 0 is a 7-bit number, 10 a short text, 110 a 13-bit number, 1110 a 12-bit length
    if first < 0x80:
        return b"%d" % first
    if first < 0xC0:
        return source.take(first & 63)
    if first < 0xE0:
        value = (first & 31) << 8 | source.byte()
        return b"%d" % (value - 8192 if value >= 4096 else value)  # two's complement in 13 bits
    if first < 0xF0:
        return source.take((first & 15) << 8 | source.byte())
    if first == 0xF0:
        return source.take(source.little(4))
    if first in _INTEGERS:
        return b"%d" % source.little(_INTEGERS[first], signed=True)
    raise MalformedError("an unknown element")


# ---------------------------------------------------------------------- pending records


def py_read_pending(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    """Read a group's records, lowest id first: id, then time and count in 8 bytes. Return them and the position."""
    source, found = Payload(data, at), []
    for _ in range(count):
        found += [source.take(24), source.size().to_bytes(8, "little")]
    return b"".join(found), source.at


def py_assign_pending(group: Group, records: bytes, owned: list[tuple[Consumer, bytes]]) -> None:
    """Put records into a group.

    These formats do not keep the time order; entries delivered together are ordered by id.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for at in range(0, len(records), _RECORD):
        time = int.from_bytes(records[at + 16 : at + 24], "little", signed=True)
        count = int.from_bytes(records[at + 24 : at + 32], "little")
        times = number(time, _LLONG_MAX, lowest=OLDEST), number(count, MAX_DELIVERIES)
        # Compares identities: two equal records of one id are invalid too
        if found.setdefault(records[at : at + 16], times) is not times:
            raise MalformedError("one entry pending twice")
    holders: dict[bytes, Consumer] = {}
    for consumer, ids in owned:
        for at in range(0, len(ids), 16):
            entry_id = ids[at : at + 16]
            # Each record belongs to the group and to one consumer; Redis would free it twice for a second owner
            if entry_id not in found or entry_id in holders:
                raise MalformedError("a consumer's record that is not its group's, or another's")
            holders[entry_id] = consumer
    if len(holders) != len(found):
        raise MalformedError("a record without its consumer")
    # By time, like a group's list; equal times by id, like deliveries of a single read
    for entry_id, (time, count) in sorted(found.items(), key=lambda item: (item[1][0], item[0])):
        group.assign(int.from_bytes(entry_id, "big"), holders[entry_id], time, count)


if TYPE_CHECKING:
    crc64, decompress = py_crc64, py_decompress
    read_listpacks = py_read_listpacks
    read_pending, assign_pending = py_read_pending, py_assign_pending
else:
    crc64, decompress = core.choose(py_crc64), core.choose(py_decompress)
    read_listpacks = core.choose(py_read_listpacks)
    read_pending, assign_pending = core.choose(py_read_pending), core.choose(py_assign_pending)
