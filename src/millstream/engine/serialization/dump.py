"""A key's value as bytes and back: what DUMP answers and RESTORE takes.

PURE. A payload is a type byte, the value in the plain form of :mod:`~millstream.engine.serialization.plain`, a version,
and a checksum over all of it. The bytes come from a client, so nothing in them is believed: every rule that the
engine keeps by construction is checked here, entries are encoded anew rather than copied, and nothing is revived as an
object. Payloads of Redis itself are read by :mod:`millstream.engine.serialization.rdb`.

A stream's plain form, all in order::

    [last id, max deleted id, entries added,
     [duration, maxsize, messages added, duplicates, [[producer, [message, id, message, id, ...]], ...]],
     [[entry, entry, ...], ...]          one list a block; an entry is [id, is dead, field, value, field, value, ...]
     [[name, last id, entries read, [[consumer, seen, active], ...],
       [[id, index of the consumer or None, time, count], ...]], ...]]    the records in time order, released first

Why not Redis's own format for what is written: it has no released records, no idempotent producers with their counts
and no tombstones in the order that trimming sees, so a stream would come back as another one.

The encoding that a collection shows is not in it: small collections come back in the small one, as in Redis. Neither is
the order of a set.
"""

from hashlib import blake2b
from typing import Any, TypeVar

from millstream.engine.collection_ops import pack_scores, unpack_scores
from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.ids import MAX_ID
from millstream.engine.keyspace import StringValue, Value
from millstream.engine.serialization import plain
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.pending import MAX_DELIVERIES, Consumer
from millstream.engine.streams.stream import LLONG_MAX, Stream

VERSION = 1
# Redis numbers its types upwards from 0 and its special bytes downwards from 255
FIRST_TYPE, LAST_TYPE = 0x80, 0x85
# Version and checksum at the end
_TAIL = 10
_CHECKSUM = 8

T = TypeVar("T")


def is_ours(payload: bytes) -> bool:
    """Whether the first byte names a type of this format, not one of Redis's."""
    return bool(payload) and FIRST_TYPE <= payload[0] <= LAST_TYPE


def dump(value: Value) -> bytes:
    """The payload of a value."""
    kind, content = _content(value)
    body = bytes([kind]) + plain.pack(content) + VERSION.to_bytes(2, "little")
    return body + _checksum(body)


def _content(value: Value) -> tuple[int, Any]:
    """The type byte, and the value in plain form."""
    if isinstance(value, StringValue):
        return 0x80, value.data
    if isinstance(value, Stream):
        return 0x81, _plain_stream(value)
    if isinstance(value, HashValue):
        return 0x82, [part for pair in value.fields.items() for part in pair]
    if isinstance(value, ZSetValue):
        members = value.between(0, len(value))
        return 0x83, [pack_scores([score for score, _ in members]), [member for _, member in members]]
    if isinstance(value, ListValue):
        return 0x84, value.between(0, len(value))
    assert isinstance(value, SetValue)
    return 0x85, sorted(value)


def _checksum(body: bytes) -> bytes:
    """Against damage, not against forgery: who can make a payload can make its checksum."""
    return blake2b(body, digest_size=_CHECKSUM).digest()


def is_whole(payload: bytes) -> bool:
    """Whether version and checksum are right: the two things for which RESTORE has an error of its own, as Redis."""
    if len(payload) <= _TAIL or payload[-_CHECKSUM:] != _checksum(payload[:-_CHECKSUM]):
        return False
    return int.from_bytes(payload[-_TAIL:-_CHECKSUM], "little") <= VERSION


def load(payload: bytes) -> Value:
    """The value in a payload that is whole.

    Raises:
        MalformedError: it is not one that :func:`dump` can have made.
    """
    content = plain.unpack(payload[1:-_TAIL])
    kind = payload[0]
    if kind == 0x80:
        return StringValue(_want(content, bytes))
    if kind == 0x81:
        return build_stream(content)
    if kind == 0x83:
        return _sorted_set(content)
    words = _words(content)
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
        if word in members:
            raise MalformedError("one member twice")
        members.add(word)
    return members


def _hash(words: list[bytes]) -> HashValue:
    """Words in pairs; a field that is named twice would make two dumps of one hash."""
    if len(words) % 2 or len(set(words[::2])) != len(words) // 2:
        raise MalformedError("a field without its value, or twice")
    value = HashValue()
    for at in range(0, len(words), 2):
        value.put(words[at], words[at + 1])
    return value


def _sorted_set(content: object) -> ZSetValue:
    """Scores packed together, then members in the same order."""
    packed, members = _fields(content, 2)
    words = _words(members)
    if not words or len(_want(packed, bytes)) != 8 * len(words) or len(set(words)) != len(words):
        raise MalformedError("members without scores, or twice")
    value = ZSetValue()
    for word, score in zip(words, unpack_scores(packed), strict=True):
        if score != score:  # noqa: PLR0124 - only NaN is not equal to itself
            raise MalformedError("a score that is no number")
        value.put(word, score)
    return value


# ---------------------------------------------------------------------- a stream as plain values


def _plain_stream(stream: Stream) -> list[Any]:
    """A stream in the form of the module's text.

    Groups and consumers stand by name, so that equal streams are equal bytes.
    """
    return [
        stream.last_id,
        stream.max_deleted,
        stream.entries_added,
        _plain_idempotence(stream.idempotence),
        [_plain_node(node) for node in stream.entries.nodes()],
        [_plain_group(name, stream.groups[name]) for name in sorted(stream.groups)],
    ]


def _plain_node(node: Block) -> list[Any]:
    """Entries with their tombstones: which node an entry lies in, and what was deleted there, shows in trimming."""
    return [[entry_id, is_dead, *fields] for entry_id, is_dead, fields in node.entries()]


def _plain_group(name: bytes, group: Group) -> list[Any]:
    """A group; its records in time order.

    So reading them needs no sorting, and those of one moment keep their order.
    """
    names = sorted(group.consumers)
    index: dict[bytes, int] = {consumer: at for at, consumer in enumerate(names)}
    consumers = [[each, group.consumers[each].seen, group.consumers[each].active] for each in names]
    records = [
        [one.id, None if one.consumer is None else index[one.consumer.name], one.time, one.count] for one in group.order
    ]
    return [name, group.last_id, group.entries_read, consumers, records]


def _plain_idempotence(memory: Idempotence) -> list[Any]:
    """What a stream remembers of its producers, oldest message first."""
    producers = [
        [producer, [part for pair in messages.items() for part in pair]]
        for producer, messages in memory.producers.items()
    ]
    return [memory.duration, memory.maxsize, memory.added, memory.duplicates, producers]


# ---------------------------------------------------------------------- plain values as a stream


def build_stream(content: object) -> Stream:
    """The stream of a plain form.

    Args:
        content: as in the module's text; a group's entries read may be None for "as far as the stream can tell".

    Raises:
        MalformedError: a rule that every stream keeps is broken.
    """
    last, max_deleted, added, memory, blocks, groups = _fields(content, 6)
    stream = _memory_of(memory)
    stream.entries = _store_of(_want(blocks, list))
    stream.last_id = _number(last, MAX_ID)
    stream.max_deleted = _number(max_deleted, MAX_ID)
    stream.entries_added = _number(added, LLONG_MAX)
    if stream.entries.last_live_id > stream.last_id or stream.max_deleted > stream.last_id:
        raise MalformedError("an id above the last")
    stream.entries.reach_back(stream.last_id)
    if stream.length > stream.entries_added:
        raise MalformedError("more entries than were added")
    for each in _want(groups, list):
        name, group = _group_of(stream, each)
        if name in stream.groups:
            raise MalformedError("two groups of one name")
        stream.groups[name] = group
    return stream


def _memory_of(content: object) -> Stream:
    """A stream with nothing but its producers."""
    duration, maxsize, added, duplicates, producers = _fields(content, 5)
    stream = Stream(_number(duration, LLONG_MAX), _number(maxsize, LLONG_MAX))
    for each in _want(producers, list):
        producer, pairs = _fields(each, 2)
        _want(pairs, list)
        messages = stream.idempotence.producers.setdefault(_want(producer, bytes), {})
        if len(pairs) % 2 or len(pairs) // 2 > stream.idempotence.maxsize:
            raise MalformedError("too many messages")
        for at in range(0, len(pairs), 2):
            messages[_want(pairs[at], bytes)] = _number(pairs[at + 1], MAX_ID)
    stream.idempotence.added = _number(added, LLONG_MAX)
    stream.idempotence.duplicates = _number(duplicates, LLONG_MAX)
    return stream


def _store_of(blocks: list[Any]) -> EntryStore:
    """Entries, each added as XADD adds it, so that sizes are computed and not believed."""
    store = EntryStore()
    last = 0
    for entries in blocks:
        for at, entry in enumerate(_want(entries, list)):
            if len(_want(entry, list)) < 4 or len(entry) % 2:
                raise MalformedError("an entry without its fields")
            entry_id, is_dead, *fields = entry
            # A tombstone may share its id with what lies before it in its node, see PyEntryStore.reach_back
            lowest = last if is_dead and at else last + 1
            if _number(entry_id, MAX_ID) < lowest or not all(isinstance(each, bytes) for each in fields):
                raise MalformedError("entries out of order, or not of bytes")
            last = entry_id
            store.append(entry_id, fields, fresh=at == 0, dead=_want(is_dead, bool))
        if not entries:
            raise MalformedError("a block without entries")
    return store


def _group_of(stream: Stream, content: object) -> tuple[bytes, Group]:
    """A group of a stream that has its entries already.

    The count of entries read may have to be told from them.
    """
    name, last, read, consumers, records = _fields(content, 5)
    last = _number(last, MAX_ID)
    if read is None:
        distance = stream.distance(last)
        read = UNKNOWN if distance is None else distance
    group = Group(last, _number(read, LLONG_MAX, lowest=UNKNOWN))
    holders = []
    for each in _want(consumers, list):
        consumer, seen, active = _fields(each, 3)
        holder = Consumer(_want(consumer, bytes), _number(seen, LLONG_MAX, lowest=-LLONG_MAX))
        holder.active = _number(active, LLONG_MAX, lowest=-LLONG_MAX)
        holders.append(holder)
        group.consumers[holder.name] = holder
    if len(group.consumers) != len(holders):
        raise MalformedError("two consumers of one name")
    latest = -LLONG_MAX
    for each in _want(records, list):
        latest = _add_record(group, holders, each, latest)
    return _want(name, bytes), group


def _add_record(group: Group, holders: list[Consumer], content: object, latest: int) -> int:
    """Add the next record in time order; the time from which the one behind it may be.

    Args:
        group: the group so far.
        holders: its consumers, which records name by their place.
        content: the record in plain form.
        latest: the time of the one before.

    Raises:
        MalformedError: it is there already, out of order, or of a consumer that is not.
    """
    entry_id, at, time, count = _fields(content, 4)
    if _number(entry_id, MAX_ID) in group.pending:
        raise MalformedError("one entry pending twice")
    _number(count, MAX_DELIVERIES)
    if at is not None:
        holder = holders[_number(at, len(holders) - 1)]
        group.assign(entry_id, holder, _number(time, LLONG_MAX, lowest=latest), count)
        return int(time)
    if group.order.released != len(group.pending):
        raise MalformedError("a released entry behind an owned one")
    group.release(entry_id, count)
    return latest


# ---------------------------------------------------------------------- checks


def _want(value: object, kind: type[T]) -> T:
    """The value, if it is exactly of that type: a bool is an int to Python, and must not be one here."""
    if type(value) is not kind:
        raise MalformedError(f"{kind.__name__} expected")
    return value


def _words(value: object) -> list[bytes]:
    found: list[Any] = _want(value, list)
    if not all(type(each) is bytes for each in found):
        raise MalformedError("bytes expected")
    return found


def _fields(value: object, count: int) -> list[Any]:
    found: list[Any] = _want(value, list)
    if len(found) != count:
        raise MalformedError(f"{count} parts expected")
    return found


def _number(value: object, highest: int, *, lowest: int = 0) -> int:
    number = _want(value, int)
    if not lowest <= number <= highest:
        raise MalformedError("a number out of range")
    return number
