"""Reads the payloads that DUMP of Redis makes, for strings and streams, so that RESTORE brings keys over from it.

PURE. Strings (plain, as numbers, compressed) and streams of the formats of Redis 5 to 7.4 and 8.0 (types 15, 19 and
21). Nothing in the bytes is believed; what they say is turned into the plain form of
:mod:`millstream.engine.serialization.dump`, and that checks the rest.

The three types of streams differ in what they have beside the entries: 15 (Redis 5) has no counters, so all entries
there are were all that were added; 19 (7.0) has the first id, the largest deleted one, the number added, and the
groups' counts; 21 (7.2) has consumers' active times. What a type does not have is what Redis takes it to be when it
loads one.

Source: the format as rdb.h, listpack.c, t_stream.c and lzf_d.c of Redis describe it.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from millstream.engine.ids import MAX64
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.serialization.dump import build_stream
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.streams.group import UNKNOWN
from millstream.engine.streams.listpack import back_length

NEWEST = 13
"""The newest version of the format whose payloads are taken; the types read here have not changed up to it."""

_STRING, _STREAM, _STREAM_2, _STREAM_3 = 0, 15, 19, 21
_TAIL = 10
# The polynomial of Redis's checksum, bits reversed
_POLYNOMIAL = 0x95AC9329AC4BC9B5
# Largest value that compressed bytes may stand for (Redis: proto-max-bulk-len)
_LARGEST = 512 * 1024 * 1024


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


def crc64(data: bytes) -> int:
    """Redis's CRC-64 (Jones)."""
    table, crc = _crc_table(), 0
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc


def is_whole(payload: bytes) -> bool:
    """Whether version and checksum are right."""
    if len(payload) <= _TAIL or int.from_bytes(payload[-_TAIL:-8], "little") > NEWEST:
        return False
    return crc64(payload[:-8]) == int.from_bytes(payload[-8:], "little")


def load(payload: bytes, idmp_duration: int, idmp_maxsize: int) -> Value:
    """The value in a payload that is whole.

    Args:
        payload: the whole payload.
        idmp_duration: seconds a stream made from it remembers messages.
        idmp_maxsize: messages it remembers for each producer.

    Raises:
        MalformedError: damaged, or of a type that is not read.
    """
    source = _Payload(payload[:-_TAIL])
    kind = source.byte()
    if kind == _STRING:
        value: Value = StringValue(source.string())
    elif kind in {_STREAM, _STREAM_2, _STREAM_3}:
        value = build_stream(_stream(source, kind, [idmp_duration, idmp_maxsize, 0, 0, []]))
    else:
        raise MalformedError("a type that is not read")
    source.end()
    return value


class _Payload:
    """Bytes read from front to end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """So many bytes."""
        start = self.at
        self.at += size
        if size < 0 or self.at > len(self.data):
            raise MalformedError("cut short")
        return self.data[start : self.at]

    def byte(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def little(self, size: int, *, signed: bool = False) -> int:
        """A number, lowest byte first."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def raw_id(self) -> int:
        """An id as 16 bytes, as it stands in a group's records."""
        return int.from_bytes(self.take(16), "big")

    def size(self) -> int:
        """A size: 6, 14, 32 or 64 bits, by its first two bits."""
        size, is_special = self._size()
        if is_special:
            raise MalformedError("a size expected")
        return size

    def _size(self) -> tuple[int, bool]:
        """A size, or the number of a special encoding."""
        first = self.byte()
        kind = first >> 6
        if kind == 0:
            return first & 63, False
        if kind == 1:
            return (first & 63) << 8 | self.byte(), False
        if kind == 3:
            return first & 63, True
        if first == 0x80:
            return int.from_bytes(self.take(4), "big"), False
        if first == 0x81:
            return int.from_bytes(self.take(8), "big"), False
        raise MalformedError("an unknown size")

    def entry_id(self) -> int:
        """An id as two sizes, as it stands in counters."""
        ms = self.size()
        return ms << 64 | self.size()

    def string(self) -> bytes:
        """Bytes: with their size before them, as a number of 8, 16 or 32 bits, or compressed."""
        size, is_special = self._size()
        if not is_special:
            return self.take(size)
        if size <= 2:
            return b"%d" % self.little(1 << size, signed=True)
        if size == 3:
            packed, full = self.size(), self.size()
            return decompress(self.take(packed), full)
        raise MalformedError("an unknown string")

    def end(self) -> None:
        """Nothing may be left over."""
        if self.at != len(self.data):
            raise MalformedError("bytes left over")


def decompress(data: bytes, size: int) -> bytes:
    """Undo LZF.

    Args:
        data: the compressed bytes.
        size: how many there were before.

    Raises:
        MalformedError: they are not what they are said to be.
    """
    if size > min(_LARGEST, len(data) * 264):  # three bytes make at most 264
        raise MalformedError("larger than it can be")
    source, out = _Payload(data), bytearray()
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
        out += (piece * (length // len(piece) + 1))[:length]  # what is copied may overlap what it makes
    if len(out) != size:
        raise MalformedError("not the size it is said to be")
    return bytes(out)


# ---------------------------------------------------------------------- streams


def _stream(source: _Payload, kind: int, memory: list[Any]) -> list[Any]:
    """The plain form of a stream."""
    blocks = [_block(source.string(), source.string()) for _ in range(source.size())]
    length = source.size()
    last = source.entry_id()
    max_deleted, added = 0, length
    if kind >= _STREAM_2:
        source.entry_id()  # the first entry's id, which the entries tell as well
        max_deleted, added = source.entry_id(), source.size()
    if length != sum(not entry[1] for block in blocks for entry in block):
        raise MalformedError("not as many entries as it says")
    blocks = [block for block in blocks if block]
    groups = [_group(source, kind) for _ in range(source.size())]
    return [last, max_deleted, added, memory, blocks, groups]


def _group(source: _Payload, kind: int) -> list[Any]:
    """A group in plain form.

    Records come twice: in the group with time and count, then in each consumer by id alone. Both must name the same
    ones.
    """
    name, last = source.string(), source.entry_id()
    read = None if kind < _STREAM_2 else source.size()
    if read is not None and read == MAX64:
        read = UNKNOWN
    records: dict[int, list[Any]] = {}
    for _ in range(source.size()):
        entry_id = source.raw_id()
        time = source.little(8, signed=True)
        records[entry_id] = [entry_id, None, time, source.size()]
    consumers = []
    for at in range(source.size()):
        consumer, seen = source.string(), source.little(8, signed=True)
        active = source.little(8, signed=True) if kind >= _STREAM_3 else seen
        consumers.append([consumer, seen, active])
        for _ in range(source.size()):
            record = records.get(source.raw_id())
            if record is None or record[1] is not None:
                raise MalformedError("a consumer's record that is not its group's, or another's")
            record[1] = at
    if any(record[1] is None for record in records.values()):
        raise MalformedError("a record without its consumer")
    # These formats do not keep the order of time; entries delivered together are ordered by id
    return [name, last, read, consumers, sorted(records.values(), key=lambda record: (record[2], record[0]))]


def _block(key: bytes, packed: bytes) -> list[list[Any]]:
    """The entries of one node, dead ones too.

    A node's head holds the counters and the fields of its first entry; entries with the same fields (flag 2) have
    values only. Ids are differences to the node's own, which is the key it lies under.
    """
    if len(key) != 16:
        raise MalformedError("a node without its id")
    ms, seq = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
    items = _listpack(packed)
    live, dead = _integer(items), _integer(items)
    names = [_next(items) for _ in range(_integer(items))]
    if _integer(items):
        raise MalformedError("a node's head does not end")
    entries = []
    for _ in range(live + dead):
        flags = _integer(items)
        entry_id = ((ms + _integer(items)) & MAX64) << 64 | (seq + _integer(items)) & MAX64
        if flags & 2:
            fields = [part for name in names for part in (name, _next(items))]
        else:
            fields = [_next(items) for _ in range(2 * _integer(items))]
        _integer(items)  # how many elements the entry took, for walking backwards
        entries.append([entry_id, bool(flags & 1), *fields])
    if next(items, None) is not None or sum(bool(entry[1]) for entry in entries) != dead:
        raise MalformedError("a node's counters are wrong")
    return entries


def _next(items: Iterator[bytes]) -> bytes:
    """The next element, which must be there."""
    item = next(items, None)
    if item is None:
        raise MalformedError("a node cut short")
    return item


def _integer(items: Iterator[bytes]) -> int:
    """The next element, which must be a number."""
    try:
        return int(_next(items))
    except ValueError:
        raise MalformedError("a number expected") from None


# Sizes of the encodings of integers behind their first byte, whole
_INTEGERS = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}


def _listpack(packed: bytes) -> Iterator[bytes]:
    """The elements of a listpack, numbers as they are written.

    The size of each stands behind it too, for walking backwards; it is passed over, having from one to five bytes.
    """
    source = _Payload(packed)
    if source.little(4) != len(packed) or packed[-1:] != b"\xff":
        raise MalformedError("not a listpack")
    source.take(2)  # how many elements, if they are few
    while source.at < len(packed) - 1:
        start = source.at
        yield _element(source)
        source.take(back_length(source.at - start))


def _element(source: _Payload) -> bytes:
    """One element; its first bits say whether it is a number or a string and of how many bits or bytes."""
    first = source.byte()
    if first < 0x80:
        return b"%d" % first
    if first < 0xC0:
        return source.take(first & 63)
    if first < 0xE0:
        value = (first & 31) << 8 | source.byte()
        return b"%d" % (value - 8192 if value >= 4096 else value)
    if first < 0xF0:
        return source.take((first & 15) << 8 | source.byte())
    if first == 0xF0:
        return source.take(source.little(4))
    if first in _INTEGERS:
        return b"%d" % source.little(_INTEGERS[first], signed=True)
    raise MalformedError("an unknown element")
