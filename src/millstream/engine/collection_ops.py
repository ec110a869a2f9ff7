"""The transitions of hashes, sorted sets, lists and sets.

PURE. The first three arguments of each are keyspace, database and key. Adding to a key that does not exist makes the
collection. Emptying one leaves it, and the command deletes the key with ``unset`` in the same record.

Scores are eight bytes each (:func:`pack_scores`), so that they fit any log and are restored exactly. As text, -0 and
the last digits would depend on the program that printed them. The names are the log's own format: never change the
meaning of one; add another.
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
    """The scores that :func:`pack_scores` packed."""
    return struct.unpack(f">{len(packed) // 8}d", packed)


def _made(space: Keyspace, db: int, key: bytes, kind: type[C], *, afresh: bool = False) -> C:
    """Return the collection at a key, or a new one if there is none or it replaces the value (``afresh``)."""
    base = space.databases[db]
    # One step, not a removal and an addition: keyspace events would report a missing key in between
    value = None if afresh else base.keys.get(key)
    if value is None:
        value = base.keys[key] = kind()
        base.expires.pop(key, None)
    assert isinstance(value, kind)
    return value


def _found(space: Keyspace, db: int, key: bytes, kind: type[C]) -> C:
    """Return the collection at a key; the command has checked that it exists."""
    value = space.databases[db].keys[key]
    assert isinstance(value, kind)
    return value


@transition("hset", counts=True)
def _hash_set(space: Keyspace, db: int, key: bytes, pairs: list[bytes]) -> None:
    """Set fields, given as field and value in turn."""
    value = _made(space, db, key, HashValue)
    for at in range(0, len(pairs), 2):
        value.put(pairs[at], pairs[at + 1])


@transition("hdel", counts=True)
def _hash_delete(space: Keyspace, db: int, key: bytes, fields: list[bytes]) -> None:
    """Delete fields that exist."""
    value = _found(space, db, key, HashValue)
    for field in fields:
        value.drop(field)


@transition("zadd", counts=True)
def _zset_add(space: Keyspace, db: int, key: bytes, members: list[bytes], scores: bytes, afresh: bool = False) -> None:
    """Set the scores of new or existing members; ``afresh`` replaces the present value."""
    value = _made(space, db, key, ZSetValue, afresh=afresh)
    value.put_all(dict(zip(members, unpack_scores(scores), strict=True)), built=afresh)


@transition("zrem", counts=True)
def _zset_remove(space: Keyspace, db: int, key: bytes, members: list[bytes]) -> None:
    """Delete members that exist."""
    _found(space, db, key, ZSetValue).drop_all(members)


@transition("lpush", counts=True)
def _list_push(space: Keyspace, db: int, key: bytes, items: list[bytes], left: bool, afresh: bool = False) -> None:
    """Add elements at one end, one after another; ``afresh`` replaces the present value."""
    value = _made(space, db, key, ListValue, afresh=afresh)
    for item in items:
        value.push(item, left=left)


@transition("lpop", counts=True)
def _list_pop(space: Keyspace, db: int, key: bytes, count: int, left: bool) -> list[bytes]:
    """Remove elements from one end, at most as many as there are."""
    value = _found(space, db, key, ListValue)
    return [value.pop(left=left) for _ in range(count)]


@transition("lset", counts=True)
def _list_set(space: Keyspace, db: int, key: bytes, at: int, item: bytes) -> None:
    """Replace the element at an existing position, counted from the head."""
    _found(space, db, key, ListValue).put(at, item)


@transition("linsert", counts=True)
def _list_insert(space: Keyspace, db: int, key: bytes, at: int, item: bytes) -> None:
    """Add an element at a position, counted from the head."""
    _found(space, db, key, ListValue).insert(at, item)


@transition("lrem", counts=True)
def _list_remove(space: Keyspace, db: int, key: bytes, count: int, item: bytes) -> None:
    """Delete the first elements equal to the given one; with a negative count the last ones, with 0 all."""
    _found(space, db, key, ListValue).remove(count, item)


@transition("ltrim", counts=True)
def _list_trim(space: Keyspace, db: int, key: bytes, first: int, behind: int) -> None:
    """Keep only the elements from position ``first`` to before ``behind``."""
    _found(space, db, key, ListValue).trim(first, behind)


@transition("sadd", counts=True)
def _set_add(space: Keyspace, db: int, key: bytes, members: list[bytes], afresh: bool = False) -> None:
    """Add new members; with ``afresh``, replace the value."""
    value = _made(space, db, key, SetValue, afresh=afresh)
    for member in members:
        value.add(member)


@transition("srem", counts=True)
def _set_remove(space: Keyspace, db: int, key: bytes, members: list[bytes]) -> None:
    """Delete members that exist."""
    value = _found(space, db, key, SetValue)
    for member in members:
        value.drop(member)
