"""The transitions that only a snapshot holds: parts of values in their final state.

See :mod:`millstream.engine.serialization.snapshot`.

PURE. The first three arguments of each are keyspace, database and key. They make new values and never meet one that a
command has changed, so they check nothing. The names are the log's own format: never change the meaning of one; add
another.
"""

from typing import Any

from millstream.engine.collections import Collection, HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.ids import PackedId, unpack, unpack_all
from millstream.engine.keyspace import Keyspace, transition
from millstream.engine.streams.stream import Stream
from millstream.engine.streams.stream_ops import group_in, stream_in

_KINDS: dict[bytes, type[Collection]] = {kind.kind: kind for kind in (HashValue, ZSetValue, ListValue, SetValue)}


@transition("vnew", counts=True)
def _collection_new(space: Keyspace, db: int, key: bytes, kind: bytes, encoding: bytes) -> None:
    """Make an empty collection, before its elements; a small one may have a large one's encoding."""
    value = _KINDS[kind]()
    value.begin(encoding)
    space.databases[db].keys[key] = value


@transition("xmake", counts=True)
def _stream_make(
    space: Keyspace, db: int, key: bytes, last: PackedId, max_deleted: PackedId, counters: list[int]
) -> None:
    """Make a stream without entries, with its counters: entries added, and those of its producers' messages."""
    added, duration, maxsize, messages, duplicates = counters
    stream = Stream(duration, maxsize)
    stream.last_id, stream.max_deleted, stream.entries_added = unpack(last), unpack(max_deleted), added
    stream.idempotence.added, stream.idempotence.duplicates = messages, duplicates
    space.databases[db].keys[key] = stream


@transition("xblocks")
def _blocks(space: Keyspace, db: int, key: bytes, blocks: list[list[Any]]) -> None:
    """Add the next blocks of a stream's entries."""
    stream_in(space, db, key).entries.extend(blocks)


@transition("xmessages", counts=True)
def _messages(space: Keyspace, db: int, key: bytes, producer: bytes, names: list[bytes], ids: bytes) -> None:
    """Add a producer's recorded messages, oldest first."""
    stream_in(space, db, key).idempotence.fill(producer, dict(zip(names, unpack_all(ids), strict=True)))


@transition("gconsumers")
def _consumers(space: Keyspace, db: int, key: bytes, group: bytes, consumers: list[Any]) -> None:
    """Add the next consumers of a group, as a flat list: name, seen time and active time of each."""
    found = group_in(space, db, key, group)
    for at in range(0, len(consumers), 3):
        if consumers[at] in found.consumers:  # its records would belong to a consumer that cannot be found
            raise ValueError("a consumer twice")
        found.consumer(consumers[at], consumers[at + 1]).active = consumers[at + 2]


@transition("gpending")
def _pending(
    space: Keyspace,
    db: int,
    key: bytes,
    group: bytes,
    ids: bytes,
    holders: list[int],
    times: list[int],
    counts: list[int],
) -> None:
    """Add the next records of a group in time order; a holder is a consumer's index, -1 for released."""
    found = group_in(space, db, key, group)
    # A holder is an index, not a name, which each record would repeat
    consumers = list(found.consumers.values())
    for entry_id, at, time, count in zip(unpack_all(ids), holders, times, counts, strict=True):
        found.restore(entry_id, None if at < 0 else consumers[at], time, count)


@transition("gsort")
def _sort(space: Keyspace, db: int, key: bytes, group: bytes) -> None:
    """Sort a group's records by id, after the last one was added."""
    group_in(space, db, key, group).restored()
