"""Reads the payloads that DUMP of Redis makes, for strings and streams, so that RESTORE brings keys over from it.

PURE. Strings (plain, as numbers, compressed) and streams of the formats of Redis 5 to 7.4 and 8.0 (types 15, 19 and
21). Nothing in the bytes is believed; what is one number or one name goes through the checks of
:mod:`millstream.engine.serialization.dump`, what is many through :mod:`millstream.engine.serialization.rdb_bulk`.

The three types of streams differ in what they have beside the entries: 15 (Redis 5) has no counters, so all entries
there are were all that were added; 19 (7.0) has the first id, the largest deleted one, the number added, and the
groups' counts; 21 (7.2) has consumers' active times. What a type does not have is what Redis takes it to be when it
loads one.

Source: the format as rdb.h and t_stream.c of Redis describe it.
"""

from typing import Any

from millstream.engine.ids import MAX64
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.serialization.dump import add_group, make_stream
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb_bulk import (
    Payload,
    assign_pending,
    crc64,
    decompress,
    read_listpacks,
    read_pending,
)
from millstream.engine.streams.group import UNKNOWN
from millstream.engine.streams.stream import Stream

NEWEST = 13
"""The newest version of the format whose payloads are taken; the types read here have not changed up to it."""

_STRING, _STREAM, _STREAM_2, _STREAM_3 = 0, 15, 19, 21
_TAIL = 10


def is_whole(payload: bytes) -> bool:
    """Whether version and checksum are right."""
    if len(payload) <= _TAIL or int.from_bytes(payload[-_TAIL:-8], "little") > NEWEST:
        return False
    return crc64(memoryview(payload)[:-8]) == int.from_bytes(payload[-8:], "little")


def load(payload: bytes, idmp_duration: int, idmp_maxsize: int) -> Value:
    """The value in a payload that is whole.

    Args:
        payload: the whole payload.
        idmp_duration: seconds a stream made from it remembers messages.
        idmp_maxsize: messages it remembers for each producer.

    Raises:
        MalformedError: damaged, or of a type that is not read.
    """
    source = Payload(payload[:-_TAIL])
    kind = source.byte()
    if kind == _STRING:
        value: Value = StringValue(_string(source))
    elif kind in {_STREAM, _STREAM_2, _STREAM_3}:
        value = _stream(source, kind, [idmp_duration, idmp_maxsize, 0, 0, []])
    else:
        raise MalformedError("a type that is not read")
    source.end()
    return value


def _string(source: Payload) -> bytes:
    """Bytes: with their size before them, as a number of 8, 16 or 32 bits, or compressed."""
    size, is_special = source.size_or_special()
    if not is_special:
        return source.take(size)
    if size <= 2:
        return b"%d" % source.little(1 << size, signed=True)
    if size == 3:
        packed, full = source.size(), source.size()
        return decompress(source.take(packed), full)
    raise MalformedError("an unknown string")


def _stream(source: Payload, kind: int, memory: list[Any]) -> Stream:
    """A stream, but for what it remembers of its producers, which no payload has that is read here."""
    entries = read_listpacks([(_string(source), _string(source)) for _ in range(source.size())])
    length = source.size()
    last = source.entry_id()
    max_deleted, added = 0, length
    if kind >= _STREAM_2:
        source.entry_id()  # the first entry's id, which the entries tell as well
        max_deleted, added = source.entry_id(), source.size()
    if length != entries.length:
        raise MalformedError("not as many entries as it says")
    stream = make_stream([last, max_deleted, added, memory], entries)
    for _ in range(source.size()):
        _group(source, kind, stream)
    return stream


def _group(source: Payload, kind: int, stream: Stream) -> None:
    """The stream's next group.

    Records come twice: in the group with time and count, then in each consumer by id alone. Both must name the same
    ones.
    """
    name, last = _string(source), source.entry_id()
    read = None if kind < _STREAM_2 else source.size()
    if read is not None and read == MAX64:
        read = UNKNOWN
    count = source.size()
    records, source.at = read_pending(source.data, source.at, count)
    consumers, ids = [], []
    for _ in range(source.size()):
        consumer, seen = _string(source), source.little(8, signed=True)
        active = source.little(8, signed=True) if kind >= _STREAM_3 else seen
        consumers.append([consumer, seen, active])
        ids.append(source.take(16 * source.size()))
    group, holders = add_group(stream, [name, last, read, consumers])
    assign_pending(group, records, list(zip(holders, ids, strict=True)))
