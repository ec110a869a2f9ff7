"""A keyspace as the transitions that make it again from an empty one: the content of a snapshot of the log.

PURE. Everything that a command can show or use is restored: orders, times, counters, encodings, tombstones, nodes.
Entries are not encoded again: blocks are stored unchanged. The transitions that only snapshots have are in
:mod:`millstream.engine.serialization.snapshot_ops`. Each holds a bounded part of a value, and those of one value follow
each other.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from millstream.engine import ids
from millstream.engine.cold import cold_records
from millstream.engine.cold_ops import named_packs
from millstream.engine.collection_ops import pack_scores
from millstream.engine.collections import Collection, HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import Keyspace, StringValue, Transition, Value
from millstream.engine.streams.group import Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.stream import Stream

# Largest number of a collection's elements, or a group's records, in one transition
ELEMENTS = 1024
# Largest size of the elements in one transition, in bytes
LARGE_BYTES = 1 << 24
# Bytes of entries in one transition; it contains at least one block
BLOCK_BYTES = 1 << 18

T = TypeVar("T")


def transitions(space: Keyspace, *, is_thawed: bool = False) -> Iterator[Transition]:
    """Yield transitions that make this keyspace from an empty one; it must not change meanwhile.

    With ``is_thawed`` all entries are hot in what they make, and cold ones are read, one node at a time.
    """
    packs = [] if is_thawed else named_packs(space)
    if packs:
        yield ("tpacks", NO_DATABASE, packs)
    if space.primary is not None:
        yield ("role", NO_DATABASE, *space.primary, *([True] if space.hands_over else []))
    past = space.history
    if past.replid or past.is_given_up:
        yield ("hist", past.db, past.replid, past.offset, past.replid2, past.second, list(past.earlier))
    for base in space.databases:
        for key, value in base.keys.items():
            expires_at = base.expires.get(key)
            # The record of a string's value includes the expiry: one record for each key
            if isinstance(value, StringValue):
                yield ("set", base.index, key, value.data, expires_at)
                continue
            if isinstance(value, Stream):
                yield from _stream(base.index, key, value, is_thawed=is_thawed)
            else:
                yield from _value(base.index, key, value)
            # After the value, since an expiry of a missing key is refused
            if expires_at is not None:
                yield ("expire", base.index, key, expires_at)


def _value(db: int, key: bytes, value: Value) -> Iterator[Transition]:
    """Yield transitions that make a collection, its encoding first: a shrunk collection may keep the large one."""
    assert isinstance(value, Collection)
    yield ("vnew", db, key, value.kind, value.encoding)
    if isinstance(value, HashValue):
        for pairs in _parts(value.fields.items(), lambda pair: len(pair[0]) + len(pair[1])):
            yield ("hset", db, key, [word for pair in pairs for word in pair])
    elif isinstance(value, ZSetValue):
        for ranked in _parts(value.between(0, len(value)), lambda pair: len(pair[1])):
            scores = pack_scores([score for score, _ in ranked])
            yield ("zadd", db, key, [member for _, member in ranked], scores)
    elif isinstance(value, ListValue):
        for items in _parts(value.between(0, len(value)), len):
            yield ("lpush", db, key, items, False)  # at the tail, so that the parts keep their order
    else:
        assert isinstance(value, SetValue)
        for members in _parts(value.in_order(), len):
            yield ("sadd", db, key, members)


def _parts(items: Iterable[T], size: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """Yield items in bounded groups, so that records stay small; ``size`` in bytes makes large items go alone."""
    # A list, because the caller may pass views of dictionaries, which have no slices
    every = list(items)
    for at in range(0, len(every), ELEMENTS):
        part = every[at : at + ELEMENTS]
        if size is not None and sum(map(size, part)) > LARGE_BYTES:
            yield from ([item] for item in part)
        else:
            yield part


def _stream(db: int, key: bytes, stream: Stream, *, is_thawed: bool) -> Iterator[Transition]:
    """Yield transitions that make a stream: counters, blocks, producers, then groups, which depend on these."""
    memory = stream.idempotence
    counters = [stream.entries_added, memory.duration, memory.maxsize, memory.added, memory.duplicates]
    yield ("xmake", db, key, ids.pack(stream.last_id), ids.pack(stream.max_deleted), counters)
    if not is_thawed:
        yield from (("tcold", db, key, *record) for record in cold_records(stream.entries))
    packed, size = [], 0
    for node in stream.entries.nodes() if is_thawed else stream.entries.hot_nodes():
        packed.append(node.pack())
        # The last part contains the entries' bytes; ids and offsets are small in comparison
        size += len(packed[-1][-1])
        if size >= BLOCK_BYTES:
            yield ("xblocks", db, key, packed)
            packed, size = [], 0
    if packed:
        yield ("xblocks", db, key, packed)
    yield from _producers(db, key, memory)
    for name, group in stream.groups.items():
        yield from _group(db, key, name, group)


def _producers(db: int, key: bytes, memory: Idempotence) -> Iterator[Transition]:
    """Yield each producer, also one without messages, since the counters show it."""
    for producer, messages in memory.producers.items():
        yield ("xidmppid", db, key, producer)
        for part in _parts(messages.items()):
            yield ("xmessages", db, key, producer, [name for name, _ in part], ids.pack_all([at for _, at in part]))


def _group(db: int, key: bytes, name: bytes, group: Group) -> Iterator[Transition]:
    """Yield a group, its consumers, then its records in time order; one sort by id at the end follows."""
    yield ("gnew", db, key, name, ids.pack(group.last_id), group.entries_read)
    for part in _parts(group.consumers.values()):
        consumers = [word for each in part for word in (each.name, each.seen, each.active)]
        yield ("gconsumers", db, key, name, consumers)
    # By index, not by name: a group may have millions of records, and names may be long
    places = {consumer: at for at, consumer in enumerate(group.consumers)}
    for records in _parts(group.order):
        holders = [-1 if one.consumer is None else places[one.consumer.name] for one in records]
        times, counts = [one.time for one in records], [one.count for one in records]
        yield ("gpending", db, key, name, ids.pack_all([one.id for one in records]), holders, times, counts)
    # Without it the records would only be in time order, and no command would find them by id
    if len(group.pending):
        yield ("gsort", db, key, name)
