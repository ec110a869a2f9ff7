"""Translation of a transition into commands by which a replica follows it, in the syntax of Redis 7.0. PURE.

Commands are made right after a transition. Facts that the transition lacks, such as the number of entries a group has
read, are taken from the state at that moment. After a run of plain commands that is the state at the end of the run,
which removes no entry. If a later command of the run replaced the key's value, earlier ones get no commands.

These commands cannot express three things: the remembered messages of idempotent producers, the order of released
entries, and, after trimming of acknowledged entries only, that no entry was ever deleted. The commands of newer
versions, and the annotations for Millstream replicas, are in :mod:`millstream.replication.dialect`.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from millstream.engine import cold_ops, ids
from millstream.engine.collection_ops import unpack_scores
from millstream.engine.collections import ListValue
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.serialization.rdb.writing import redis_payload
from millstream.engine.streams.group import Group
from millstream.engine.streams.stream import Stream

Words = list[bytes]
"""One command as a list of arguments."""

Maker = Callable[..., Iterable[Words]]
_MAKERS: dict[str, Maker] = {}

KNOWN = _MAKERS.keys()
"""Transitions that become commands."""

SILENT = (
    frozenset({"xnew", "xcfg", "xidmp", "xidmpdup", "xidmppid", "xidmpexp", "hist", "off", "role"}) | cold_ops.SILENT
)
"""Transitions without commands. A new stream is created by its first entry or group."""


def words(space: Keyspace, step: Transition) -> list[Words]:
    """Return the commands for a transition that was just applied; they run in its database, the second item."""
    if step[0] in SILENT:
        return []
    return list(_MAKERS[step[0]](space, *step[1:]))


def _says(op: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        _MAKERS[op] = maker
        return maker

    return register


def _number(value: int) -> bytes:
    return b"%d" % value


def _texts(packed: bytes) -> Words:
    return [ids.text(entry) for entry in ids.unpack_all(packed)]


def stream_at(space: Keyspace, db: int, key: bytes) -> Stream | None:
    """Return the stream at a key; None if there is none."""
    value = space.databases[db].keys.get(key)
    return value if isinstance(value, Stream) else None


def _group(space: Keyspace, db: int, key: bytes, group: bytes) -> Group | None:
    stream = stream_at(space, db, key)
    return None if stream is None else stream.groups.get(group)


# ---------------------------------------------------------------------- keys


@_says("set")
def _set(_space: Keyspace, _db: int, key: bytes, data: bytes, expires_at: int | None) -> Iterable[Words]:
    yield [b"SET", key, data] if expires_at is None else [b"SET", key, data, b"PXAT", _number(expires_at)]


@_says("append")
def _append(_space: Keyspace, _db: int, key: bytes, part: bytes) -> Iterable[Words]:
    yield [b"APPEND", key, part]


@_says("overwrite")
def _overwrite(_space: Keyspace, _db: int, key: bytes, offset: int, part: bytes) -> Iterable[Words]:
    yield [b"SETRANGE", key, _number(offset), part]


@_says("unset")
def _unset(_space: Keyspace, _db: int, key: bytes) -> Iterable[Words]:
    yield [b"DEL", key]


@_says("expire")
def _expire(_space: Keyspace, _db: int, key: bytes, expires_at: int | None) -> Iterable[Words]:
    yield [b"PERSIST", key] if expires_at is None else [b"PEXPIREAT", key, _number(expires_at)]


@_says("move")
def _move(_space: Keyspace, db: int, key: bytes, new_db: int, new_key: bytes) -> Iterable[Words]:
    yield [b"RENAME", key, new_key] if db == new_db else [b"MOVE", key, _number(new_db)]


@_says("copy")
def _copy(_space: Keyspace, _db: int, key: bytes, new_db: int, new_key: bytes) -> Iterable[Words]:
    yield [b"COPY", key, new_key, b"DB", _number(new_db), b"REPLACE"]


@_says("flush")
def _flush(_space: Keyspace, _db: int) -> Iterable[Words]:
    yield [b"FLUSHDB"]


@_says("swap")
def _swap(_space: Keyspace, db: int, other: int) -> Iterable[Words]:
    yield [b"SWAPDB", _number(db), _number(other)]


@_says("restore")
def _restore(space: Keyspace, db: int, key: bytes, _payload: bytes, expires_at: int | None) -> Iterable[Words]:
    return restored(space, db, key, expires_at, version=10)


def restored(space: Keyspace, db: int, key: bytes, expires_at: int | None, version: int) -> Iterable[Words]:
    """Yield commands that restore the value now at the key, since Redis cannot read Millstream's payload."""
    value = space.databases[db].keys.get(key)
    if value is None:
        return
    options = [b"REPLACE"] if expires_at is None else [b"REPLACE", b"ABSTTL"]
    payload = redis_payload(value, version if isinstance(value, Stream) else 10)
    yield [b"RESTORE", key, _number(expires_at or 0), payload, *options]
    if isinstance(value, Stream):
        for name, group in value.groups.items():
            if group.entries_read > value.entries_added:  # a payload cannot express this
                yield _at(key, name, group.last_id, group.entries_read)


# ---------------------------------------------------------------------- collections


@_says("hset")
def _hset(_space: Keyspace, _db: int, key: bytes, pairs: Words) -> Iterable[Words]:
    yield [b"HSET", key, *pairs]


@_says("hdel")
def _hdel(_space: Keyspace, _db: int, key: bytes, fields: Words) -> Iterable[Words]:
    yield [b"HDEL", key, *fields]


@_says("zadd")
def _zadd(
    _space: Keyspace, _db: int, key: bytes, members: Words, scores: bytes, afresh: bool = False
) -> Iterable[Words]:
    yield from _first(key, afresh)
    pairs = zip(unpack_scores(scores), members, strict=True)
    yield [b"ZADD", key, *(word for score, member in pairs for word in (repr(score).encode(), member))]


@_says("zrem")
def _zrem(_space: Keyspace, _db: int, key: bytes, members: Words) -> Iterable[Words]:
    yield [b"ZREM", key, *members]


def _first(key: bytes, afresh: bool) -> Iterable[Words]:
    """Return the commands that delete the key's old value before a collection replaces it."""
    return [[b"DEL", key]] if afresh else []


@_says("lpush")
def _lpush(_space: Keyspace, _db: int, key: bytes, items: Words, left: bool, afresh: bool = False) -> Iterable[Words]:
    yield from _first(key, afresh)
    yield [b"LPUSH" if left else b"RPUSH", key, *items]


@_says("lpop")
def _lpop(_space: Keyspace, _db: int, key: bytes, count: int, left: bool) -> Iterable[Words]:
    yield [b"LPOP" if left else b"RPOP", key, _number(count)]


@_says("lset")
def _lset(_space: Keyspace, _db: int, key: bytes, at: int, item: bytes) -> Iterable[Words]:
    yield [b"LSET", key, _number(at), item]


@_says("linsert")
def _linsert(space: Keyspace, db: int, key: bytes, at: int, item: bytes) -> Iterable[Words]:
    """Insert next to a neighbour that occurs first in the list: LINSERT chose the position by such an item."""
    value = space.databases[db].keys.get(key)
    assert isinstance(value, ListValue)
    before = value.between(0, at)
    behind = value.between(at + 1, at + 2)
    if behind and behind[0] not in before:
        yield [b"LINSERT", key, b"BEFORE", behind[0], item]
    else:
        yield [b"LINSERT", key, b"AFTER", before[-1], item]


@_says("lrem")
def _lrem(_space: Keyspace, _db: int, key: bytes, count: int, item: bytes) -> Iterable[Words]:
    yield [b"LREM", key, _number(count), item]


@_says("ltrim")
def _ltrim(_space: Keyspace, _db: int, key: bytes, first: int, behind: int) -> Iterable[Words]:
    ends = (first, behind - 1) if behind > first else (1, 0)  # -1 would mean the last element
    yield [b"LTRIM", key, *map(_number, ends)]


@_says("sadd")
def _sadd(_space: Keyspace, _db: int, key: bytes, members: Words, afresh: bool = False) -> Iterable[Words]:
    yield from _first(key, afresh)
    yield [b"SADD", key, *members]


@_says("srem")
def _srem(_space: Keyspace, _db: int, key: bytes, members: Words) -> Iterable[Words]:
    yield [b"SREM", key, *members]


# ---------------------------------------------------------------------- streams


@_says("xadd")
def _xadd(
    _space: Keyspace, _db: int, key: bytes, entry_id: bytes, fields: Words, _fresh: bool, _idmp: Words | None
) -> Iterable[Words]:
    yield [b"XADD", key, ids.text(ids.unpack(entry_id)), *fields]


@_says("xtrim")
def _xtrim(
    _space: Keyspace,
    _db: int,
    key: bytes,
    bound: bytes | None,
    _unref: bool,
    _keep: bool = False,
    _places: list[Any] | None = None,
) -> Iterable[Words]:
    yield _trimming(key, None if bound is None else ids.unpack(bound))


def _trimming(key: bytes, bound: int | None) -> Words:
    if bound is None:
        return [b"XTRIM", key, b"MAXLEN", b"=", b"0"]
    return [b"XTRIM", key, b"MINID", b"=", ids.text(bound)]


@_says("xdrop")
def _xdrop(
    space: Keyspace, db: int, key: bytes, packed: bytes, _floor: bytes | None = None, _places: list[Any] | None = None
) -> Iterable[Words]:
    """Trim if all entries go from the front; otherwise delete each one and set the largest deleted id."""
    gone, stream = ids.unpack_all(packed), stream_at(space, db, key)
    if not gone or stream is None:
        return
    if not stream.length or stream.first_id > max(gone):
        yield _trimming(key, stream.first_id if stream.length else None)
        return
    yield [b"XDEL", key, *_texts(packed)]
    yield _set_id(key, stream.last_id, stream.entries_added, stream.max_deleted)


@_says("xdel")
def _xdel(_space: Keyspace, _db: int, key: bytes, packed: bytes, _places: list[Any] | None = None) -> Iterable[Words]:
    yield [b"XDEL", key, *_texts(packed)]


@_says("xunref")
def _xunref(space: Keyspace, db: int, key: bytes, packed: bytes) -> Iterable[Words]:
    stream = stream_at(space, db, key)
    for group in () if stream is None else stream.groups:
        yield [b"XACK", key, group, *_texts(packed)]


@_says("xsetid")
def _xsetid(
    _space: Keyspace, _db: int, key: bytes, last: bytes, entries_added: int | None, max_deleted: bytes | None
) -> Iterable[Words]:
    yield _set_id(key, ids.unpack(last), entries_added, None if max_deleted is None else ids.unpack(max_deleted))


def _set_id(key: bytes, last: int, entries_added: int | None, max_deleted: int | None) -> Words:
    command = [b"XSETID", key, ids.text(last)]
    if entries_added is not None:
        command += [b"ENTRIESADDED", _number(entries_added)]
    if max_deleted is not None:
        command += [b"MAXDELETEDID", ids.text(max_deleted)]
    return command


# ---------------------------------------------------------------------- groups


@_says("gnew")
def _gnew(_space: Keyspace, _db: int, key: bytes, group: bytes, last: bytes, entries_read: int) -> Iterable[Words]:
    position = ids.text(ids.unpack(last))
    yield [b"XGROUP", b"CREATE", key, group, position, b"MKSTREAM", b"ENTRIESREAD", _number(entries_read)]


@_says("gset")
def _gset(_space: Keyspace, _db: int, key: bytes, group: bytes, last: bytes, entries_read: int) -> Iterable[Words]:
    yield _at(key, group, ids.unpack(last), entries_read)


def _at(key: bytes, group: bytes, last: int, entries_read: int) -> Words:
    return [b"XGROUP", b"SETID", key, group, ids.text(last), b"ENTRIESREAD", _number(entries_read)]


@_says("gdel")
def _gdel(_space: Keyspace, _db: int, key: bytes, group: bytes) -> Iterable[Words]:
    yield [b"XGROUP", b"DESTROY", key, group]


@_says("cseen")
def _cseen(_space: Keyspace, _db: int, key: bytes, group: bytes, consumer: bytes, _now: int) -> Iterable[Words]:
    """Create the consumer; this changes nothing if it exists."""
    yield [b"XGROUP", b"CREATECONSUMER", key, group, consumer]


@_says("cdel")
def _cdel(_space: Keyspace, _db: int, key: bytes, group: bytes, consumer: bytes) -> Iterable[Words]:
    yield [b"XGROUP", b"DELCONSUMER", key, group, consumer]


@_says("gread")
def _gread(
    space: Keyspace,
    db: int,
    key: bytes,
    group: bytes,
    consumer: bytes,
    now: int,
    upto: bytes,
    noack: bool,
    after: bytes,
    packed: bytes | None = None,
) -> Iterable[Words]:
    """Claim new entries, and move the group's position over them; without a group, nothing."""
    stream, last = stream_at(space, db, key), ids.unpack(upto)
    found = None if stream is None else stream.groups.get(group)
    if stream is None or found is None:
        return
    entries: list[int] = []
    if not noack:
        entries = ids.unpack_all(packed) if packed is not None else stream.entries.ids(ids.unpack(after) + 1, last)
    yield from _claims(key, group, consumer, now, entries, [1] * len(entries))
    yield _at(key, group, last, found.entries_read)


@_says("gagain")
def _gagain(
    space: Keyspace, db: int, key: bytes, group: bytes, consumer: bytes, now: int, packed: bytes
) -> Iterable[Words]:
    found = _group(space, db, key, group)
    if found is not None:
        records = [record for entry in ids.unpack_all(packed) if (record := found.pending.get(entry)) is not None]
        again = [record.id for record in records]
        yield from _claims(key, group, consumer, now, again, [record.count for record in records])


@_says("gclaim")
def _gclaim(
    _space: Keyspace,
    _db: int,
    key: bytes,
    group: bytes,
    consumer: bytes,
    _now: int,
    time: int,
    packed: bytes,
    counts: list[int],
) -> Iterable[Words]:
    return _claims(key, group, consumer, time, ids.unpack_all(packed), counts)


@_says("gack")
def _gack(_space: Keyspace, _db: int, key: bytes, group: bytes, packed: bytes) -> Iterable[Words]:
    yield [b"XACK", key, group, *_texts(packed)]


@_says("gnack")
def _gnack(_space: Keyspace, _db: int, key: bytes, group: bytes, packed: bytes, counts: list[int]) -> Iterable[Words]:
    """Claim for a consumer with an empty name, as Redis before 8.8 has no entries without a holder."""
    return _claims(key, group, b"", 0, ids.unpack_all(packed), counts)


def _claims(
    key: bytes, group: bytes, consumer: bytes, time: int, entries: list[int], counts: Iterable[int]
) -> Iterable[Words]:
    """Yield XCLAIM for consecutive entries with the same count, so that groups keep the order of claims."""
    for count, some in groupby(zip(entries, counts, strict=True), key=lambda each: each[1]):
        names = [ids.text(entry) for entry, _ in some]
        options = [b"TIME", b"%d" % time, b"RETRYCOUNT", b"%d" % count, b"FORCE", b"JUSTID"]
        yield [b"XCLAIM", key, group, consumer, b"0", *names, *options]
