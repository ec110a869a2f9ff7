"""A whole value as the commands that make it, in words that Redis 7.0 and everything newer knows. PURE."""

from collections.abc import Iterable, Iterator

import hiredis

from millstream.engine import ids
from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.streams.group import Group
from millstream.engine.streams.stream import Stream

# Elements in one command
_ELEMENTS = 1024


def value_words(key: bytes, value: Value) -> Iterator[list[bytes]]:
    """The commands that make a value at a key that does not exist.

    Pending records whose entries are gone are not made: there is no command for them.
    """
    if isinstance(value, StringValue):
        yield [b"SET", key, value.data]
    elif isinstance(value, Stream):
        yield from _stream(key, value)
    else:
        command, elements = _collection(value)
        for at in range(0, len(elements), _ELEMENTS):
            yield [command, key, *elements[at : at + _ELEMENTS]]


def _collection(value: Value) -> tuple[bytes, list[bytes]]:
    """The command that adds to a collection, and all that is to be added."""
    if isinstance(value, HashValue):
        return b"HSET", [word for pair in value.fields.items() for word in pair]
    if isinstance(value, ZSetValue):
        ranked = value.between(0, len(value))
        return b"ZADD", [word for score, member in ranked for word in (repr(score).encode(), member)]
    if isinstance(value, ListValue):
        return b"RPUSH", list(value.between(0, len(value)))
    assert isinstance(value, SetValue)
    return b"SADD", list(value.in_order())


def _stream(key: bytes, stream: Stream) -> Iterator[list[bytes]]:
    if stream.length:
        for entry, wire in stream.entries.rows(0, ids.MAX_ID):
            yield [b"XADD", key, ids.text(entry), *_fields(bytes(wire))]
    else:
        yield [b"XADD", key, b"MAXLEN", b"0", b"0-1", b"", b""]  # makes a stream and leaves nothing in it
    counters = [b"ENTRIESADDED", b"%d" % stream.entries_added, b"MAXDELETEDID", ids.text(stream.max_deleted)]
    yield [b"XSETID", key, ids.text(stream.last_id), *counters]
    for name, group in stream.groups.items():
        yield from _group(key, name, group)


def _fields(wire: bytes) -> list[bytes]:
    """Names and values of an entry in the form in which it is replied."""
    reader = hiredis.Reader()
    reader.feed(wire)
    _, fields = reader.gets()  # a pair, as every entry
    return list(fields)


def _group(key: bytes, name: bytes, group: Group) -> Iterator[list[bytes]]:
    position, read = ids.text(group.last_id), b"%d" % group.entries_read
    yield [b"XGROUP", b"CREATE", key, name, position, b"ENTRIESREAD", read]
    for consumer in group.consumers:
        yield [b"XGROUP", b"CREATECONSUMER", key, name, consumer]
    for record in group.order:
        holder = b"" if record.consumer is None else record.consumer.name
        yield from claims(key, name, holder, record.time, [record.id], [record.count])


def claims(
    key: bytes, group: bytes, consumer: bytes, time: int, entries: list[int], counts: Iterable[int]
) -> Iterator[list[bytes]]:
    """XCLAIM of entries, those of one count together.

    Args:
        key: the stream's key.
        group: the group.
        consumer: who gets them.
        time: wall milliseconds of the delivery.
        entries: their ids.
        counts: the deliveries of each.
    """
    alike: dict[int, list[bytes]] = {}
    for entry, count in zip(entries, counts, strict=True):
        alike.setdefault(count, []).append(ids.text(entry))
    for count, names in alike.items():
        options = [b"TIME", b"%d" % time, b"RETRYCOUNT", b"%d" % count, b"FORCE", b"JUSTID"]
        yield [b"XCLAIM", key, group, consumer, b"0", *names, *options]
