"""The transitions of hashes, sorted sets, lists and sets.

PURE. The first three arguments are as everywhere: keyspace, database, key. Adding to a key that does not exist makes
the collection; emptying one leaves it, and the command deletes the key with ``unset`` in the same record. Scores are
eight bytes each (:func:`pack_scores`), so that they fit any log, and come back bit for bit; as text, -0 and the last
digits would depend on who printed them. The names are the log's own format: never change what one means; add another.
"""

import struct
from typing import TypeVar

from millstream.engine.collections import Collection, HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import Keyspace, transition

C = TypeVar("C", bound=Collection)


def pack_scores(scores: list[float]) -> bytes:
    """Scores as big-endian doubles, one after another."""
    return struct.pack(f">{len(scores)}d", *scores)


def unpack_scores(packed: bytes) -> tuple[float, ...]:
    """What :func:`pack_scores` packed."""
    return struct.unpack(f">{len(packed) // 8}d", packed)


def _made(space: Keyspace, db: int, key: bytes, kind: type[C]) -> C:
    """The collection at a key, new if there is none."""
    keys = space.databases[db].keys
    value = keys.get(key)
    if value is None:
        value = keys[key] = kind()
    assert isinstance(value, kind)
    return value


def _found(space: Keyspace, db: int, key: bytes, kind: type[C]) -> C:
    """The collection at a key, which is there: the command has looked."""
    value = space.databases[db].keys[key]
    assert isinstance(value, kind)
    return value


@transition("hset")
def _hash_set(space: Keyspace, db: int, key: bytes, pairs: list[bytes]) -> None:
    """Set fields: field, value, field, value."""
    value = _made(space, db, key, HashValue)
    for at in range(0, len(pairs), 2):
        value.put(pairs[at], pairs[at + 1])


@transition("hdel")
def _hash_delete(space: Keyspace, db: int, key: bytes, fields: list[bytes]) -> None:
    """Delete fields that exist."""
    value = _found(space, db, key, HashValue)
    for field in fields:
        value.drop(field)


@transition("zadd")
def _zset_add(space: Keyspace, db: int, key: bytes, members: list[bytes], scores: bytes) -> None:
    """Set members' scores, new or not."""
    _made(space, db, key, ZSetValue).put_all(dict(zip(members, unpack_scores(scores), strict=True)))


@transition("zrem")
def _zset_remove(space: Keyspace, db: int, key: bytes, members: list[bytes]) -> None:
    """Delete members that exist."""
    _found(space, db, key, ZSetValue).drop_all(members)


@transition("lpush")
def _list_push(space: Keyspace, db: int, key: bytes, items: list[bytes], left: bool) -> None:
    """Add elements at one end, one after another."""
    value = _made(space, db, key, ListValue)
    for item in items:
        value.push(item, left=left)


@transition("lpop")
def _list_pop(space: Keyspace, db: int, key: bytes, count: int, left: bool) -> list[bytes]:
    """Take elements from one end, no more than there are."""
    value = _found(space, db, key, ListValue)
    return [value.pop(left=left) for _ in range(count)]


@transition("sadd")
def _set_add(space: Keyspace, db: int, key: bytes, members: list[bytes]) -> None:
    """Add members that are not there."""
    value = _made(space, db, key, SetValue)
    for member in members:
        value.add(member)


@transition("srem")
def _set_remove(space: Keyspace, db: int, key: bytes, members: list[bytes]) -> None:
    """Delete members that exist."""
    value = _found(space, db, key, SetValue)
    for member in members:
        value.drop(member)
