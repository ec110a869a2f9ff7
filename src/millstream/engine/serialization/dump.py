"""A key's value as bytes and back: the payload that DUMP replies and RESTORE takes.

PURE. A payload is a type byte, the value in the plain form of :mod:`~millstream.engine.serialization.plain`, a version,
and a checksum over all of it. The bytes come from a client and are not trusted. This module checks every rule that the
engine keeps by construction, and encodes entries again instead of copying them. It makes no Python objects that the
payload names. :mod:`millstream.engine.serialization.rdb.payload` reads payloads of Redis itself.

A stream's plain form, all in order::

    [last id, max deleted id, entries added,
     [duration, maxsize, messages added, duplicates, [[producer, [message, id, message, id, ...]], ...]],
     [[entry, entry, ...], ...]          one list a block; an entry is [id, is dead, field, value, field, value, ...]
     [[name, last id, entries read, [[consumer, seen, active], ...],
       [[id, index of the consumer or None, time, count], ...]], ...]]    the records in time order, released first

Payloads are not written in Redis's own format, since a stream would lose information. That format does not have
released records, idempotent producers with their counts, or tombstones in the order that trimming sees.

The payload does not have a collection's encoding: a small collection is restored with the small one, as in Redis. It
does not have the order of a set either.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, TypeVar

from millstream.engine.collection_ops import pack_scores, unpack_scores
from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.ids import MAX_ID
from millstream.engine.keyspace import Keyspace, StringValue, Value, transition
from millstream.engine.serialization import plain
from millstream.engine.serialization.bulk import pack_entries, pack_records, read_entries, read_records
from millstream.engine.serialization.plain import MalformedError, number, part
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.pending import Consumer
from millstream.engine.streams.stream import LLONG_MAX, Stream
from millstream.replies import Buffer

VERSION = 1
# Redis numbers its types upwards from 0 and its special bytes downwards from 255
FIRST_TYPE, LAST_TYPE = 0x80, 0x85
# Sizes of the tail (version and checksum), and of the checksum alone
_TAIL = 10
_CHECKSUM = 8

T = TypeVar("T")


def is_ours(payload: bytes) -> bool:
    """True if the first byte names a type of this format, not one of Redis's."""
    return bool(payload) and FIRST_TYPE <= payload[0] <= LAST_TYPE


def dump(value: Value) -> bytes:
    """The payload of a value."""
    if isinstance(value, Stream):
        pieces = [b"\x81", *_packed_stream(value)]
    else:
        kind, content = _content(value)
        pieces = [bytes([kind]), plain.pack(content)]
    pieces.append(VERSION.to_bytes(2, "little"))
    pieces.append(_checksum(pieces))
    return b"".join(pieces)


def _content(value: Value) -> tuple[int, Any]:
    """The type byte and the plain form of a value other than a stream."""
    if isinstance(value, StringValue):
        return 0x80, value.data
    if isinstance(value, HashValue):
        return 0x82, [part for pair in value.fields.items() for part in pair]
    if isinstance(value, ZSetValue):
        # In the order of scores, so that equal sets have equal payloads
        members = value.between(0, len(value))
        return 0x83, [pack_scores([score for score, _ in members]), [member for _, member in members]]
    if isinstance(value, ListValue):
        return 0x84, value.between(0, len(value))
    assert isinstance(value, SetValue)
    return 0x85, sorted(value)  # sorted, since the order of a set is random


def _checksum(pieces: Iterable[Buffer]) -> bytes:
    """Return a checksum against damage, not against forgery: a client can make a payload with a valid checksum."""
    found = blake2b(digest_size=_CHECKSUM)
    for piece in pieces:
        found.update(piece)
    return found.digest()


def is_whole(payload: bytes) -> bool:
    """True if version and checksum are right; RESTORE has a separate error for these two, as in Redis."""
    if len(payload) <= _TAIL or payload[-_CHECKSUM:] != _checksum([memoryview(payload)[:-_CHECKSUM]]):
        return False
    return int.from_bytes(payload[-_TAIL:-_CHECKSUM], "little") <= VERSION


def load(payload: bytes) -> Value:
    """Return the value in a payload with valid checksum."""
    # RESTORE has verified checksum and version, but not the content
    kind, body = payload[0], payload[1:-_TAIL]
    if kind == 0x81:
        return _read_stream(body)
    content = plain.unpack(body)
    if kind == 0x80:
        return StringValue(_want(content, bytes))
    if kind == 0x83:
        return _sorted_set(content)
    words = _words(content)
    # Redis has no empty collections; LPOP of one would always fail with an internal error
    if not words:
        raise MalformedError("an empty collection")
    if kind == 0x82:
        return _hash(words)
    if kind == 0x84:
        value = ListValue()
        for word in words:
            value.push(word, left=False)
        return value
    members = SetValue()
    for word in words:
        # Duplicates would make the set smaller than its writer intended
        if word in members:
            raise MalformedError("one member twice")
        members.add(word)
    return members


def _hash(words: list[bytes]) -> HashValue:
    """Make a hash from fields and values in turn; refuse a repeated field, since equal hashes must have equal dumps."""
    if len(words) % 2 or len(set(words[::2])) != len(words) // 2:
        raise MalformedError("a field without its value, or twice")
    value = HashValue()
    for at in range(0, len(words), 2):
        value.put(words[at], words[at + 1])
    return value


def _sorted_set(content: object) -> ZSetValue:
    """Make a sorted set from packed scores and members in the same order."""
    packed, members = part(content, 2)
    words = _words(members)
    if not words or len(_want(packed, bytes)) != 8 * len(words) or len(set(words)) != len(words):
        raise MalformedError("members without scores, or twice")
    value = ZSetValue()
    for word, score in zip(words, unpack_scores(packed), strict=True):
        if score != score:  # noqa: PLR0124 - only NaN differs from itself
            raise MalformedError("a score that is not a number")
        value.put(word, score)
    return value


# ---------------------------------------------------------------------- a stream as plain values


def _packed_stream(stream: Stream) -> Iterator[bytes]:
    """Yield a stream in the plain form above, in pieces.

    Groups and consumers are sorted by name, so that equal streams are equal bytes.
    """
    counters = [stream.last_id, stream.max_deleted, stream.entries_added, _plain_idempotence(stream.idempotence)]
    yield plain.pack_list(6)
    yield from map(plain.pack, counters)
    yield from pack_entries(stream.entries)
    yield plain.pack_list(len(stream.groups))
    for name in sorted(stream.groups):
        yield from _packed_group(name, stream.groups[name])


def _packed_group(name: bytes, group: Group) -> Iterator[bytes]:
    """Yield a group with its consumers and records."""
    names = sorted(group.consumers)
    places: dict[bytes, int] = {consumer: at for at, consumer in enumerate(names)}
    consumers = [[each, group.consumers[each].seen, group.consumers[each].active] for each in names]
    yield plain.pack_list(5)
    yield from map(plain.pack, [name, group.last_id, group.entries_read, consumers])
    yield pack_records(group, places)


def _plain_idempotence(memory: Idempotence) -> list[Any]:
    """A stream's producers and their messages in plain form, oldest message first."""
    producers = [
        [producer, [part for pair in messages.items() for part in pair]]
        for producer, messages in memory.producers.items()
    ]
    return [memory.duration, memory.maxsize, memory.added, memory.duplicates, producers]


# ---------------------------------------------------------------------- plain values as a stream


def _read_stream(content: bytes) -> Stream:
    """Return the stream of a plain form."""
    source = plain.PlainSource(content)
    if source.opened() != 6:
        raise MalformedError("a stream has six parts")
    last, max_deleted, added, memory = (source.value() for _ in range(4))
    entries, source.at = read_entries(content, source.at)
    stream = make_stream([last, max_deleted, added, memory], entries)
    # Entries come before groups: a record may only name an id up to the last one
    for _ in range(source.opened()):
        if source.opened() != 5:
            raise MalformedError("a group has five parts")
        group, holders = add_group(stream, [source.value() for _ in range(4)])
        source.at = read_records(content, source.at, group, holders)
    source.end()
    return stream


def make_stream(counters: list[Any], entries: EntryStore) -> Stream:
    """Return a stream without groups."""
    last, max_deleted, added, memory = counters
    stream = _memory_of(memory)
    stream.entries = entries
    stream.last_id = number(last, MAX_ID)
    stream.max_deleted = number(max_deleted, MAX_ID)
    stream.entries_added = number(added, LLONG_MAX)
    # The next XADD would generate an existing id
    if entries.last_live_id > stream.last_id or stream.max_deleted > stream.last_id:
        raise MalformedError("an id above the last")
    # A payload may have tombstones above its last id, which would make the next XADD fail
    entries.reach_back(stream.last_id)
    # A group's lag is the difference of the two, and would be negative
    if stream.length > stream.entries_added:
        raise MalformedError("more entries than were added")
    return stream


def _memory_of(content: object) -> Stream:
    """Return a stream with nothing but its producers."""
    duration, maxsize, added, duplicates, producers = part(content, 5)
    stream = Stream(number(duration, LLONG_MAX), number(maxsize, LLONG_MAX))
    for each in _want(producers, list):
        producer, pairs = part(each, 2)
        _want(pairs, list)
        messages: dict[bytes, int] = {}
        # A client made these bytes: RESTORE accepts only what the server could have written
        if len(pairs) % 2 or len(pairs) // 2 > stream.idempotence.maxsize:
            raise MalformedError("too many messages")
        for at in range(0, len(pairs), 2):
            messages[_want(pairs[at], bytes)] = number(pairs[at + 1], MAX_ID)
        stream.idempotence.fill(_want(producer, bytes), messages)
    stream.idempotence.added = number(added, LLONG_MAX)
    stream.idempotence.duplicates = number(duplicates, LLONG_MAX)
    return stream


def add_group(stream: Stream, content: list[Any]) -> tuple[Group, list[Consumer]]:
    """Add a group without records to a stream that has its entries; return the group and its consumers in order."""
    name, last, read, consumers = content
    last = number(last, MAX_ID)
    # None comes from the reader of another format, which lacks the count
    if read is None:
        distance = stream.distance(last)
        read = UNKNOWN if distance is None else distance
    group = Group(last, number(read, LLONG_MAX, lowest=UNKNOWN))
    holders = []
    for each in _want(consumers, list):
        consumer, seen, active = part(each, 3)
        holder = group.consumer(_want(consumer, bytes), number(seen, LLONG_MAX, lowest=plain.OLDEST))
        holder.active = number(active, LLONG_MAX, lowest=plain.OLDEST)
        holders.append(holder)
    if len(group.consumers) != len(holders):
        raise MalformedError("two consumers of one name")
    if _want(name, bytes) in stream.groups:
        raise MalformedError("two groups of one name")
    stream.add_group(name, group)
    return group, holders


# ---------------------------------------------------------------------- checks


def _want(value: object, kind: type[T]) -> T:
    """Return the value if it is exactly of that type: to Python a bool is an int, but here it is not."""
    if type(value) is not kind:
        raise MalformedError(f"{kind.__name__} expected")
    return value


def _words(value: object) -> list[bytes]:
    found: list[Any] = _want(value, list)
    if not all(type(each) is bytes for each in found):
        raise MalformedError("bytes expected")
    return found


@transition("restore", counts=True)
def _restore(space: Keyspace, db: int, key: bytes, payload: bytes, expires_at: int | None) -> None:
    """Replace a key's value by that of a payload.

    The log holds the payload in Millstream's own form, whichever form RESTORE got, and :func:`load` reads it again. So
    a payload that was once valid stays valid: a check that is added later must not refuse what older versions logged.
    """
    base, value = space.databases[db], load(payload)
    base.keys[key] = value
    if expires_at is None:
        base.expires.pop(key, None)
    else:
        base.expires[key] = expires_at
