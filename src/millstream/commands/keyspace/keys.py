"""Commands on keys of any type: DEL EXISTS TYPE KEYS SCAN RENAME COPY MOVE SWAPDB TOUCH OBJECT FLUSHDB FLUSHALL ....

Commands that put a value at a key (RENAME, COPY, MOVE, SWAPDB, RESTORE) signal that key, since clients may wait for a
stream there. Commands that remove a value signal too: XREADGROUP ends with NOGROUP when its key is deleted. ``touch``
is for changes that only WATCH must notice.

Source: https://redis.io/docs/latest/commands/?group=generic
"""

import random
from itertools import islice

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import delete_key
from millstream.commands.table.args import (
    DB_OUT_OF_RANGE,
    SYNTAX,
    cursor,
    database_number,
    integer,
    keyword,
    read_integer,
    shown,
)
from millstream.commands.table.table import GENERIC, SERVER
from millstream.engine.collections import Collection
from millstream.engine.keyspace import DATABASES, Database, StringValue
from millstream.errors import CommandError
from millstream.glob import matcher
from millstream.replies import OK, Reply, Simple

NO_SUCH_KEY = "ERR no such key"
SAME_OBJECT = "ERR source and destination objects are the same"
# Redis allocates strings up to this size together with their header, and reports ``embstr``.
_EMBEDDED_MAX = 44
# Types that SCAN can filter by
_TYPES = frozenset({b"string", b"list", b"set", b"zset", b"hash", b"stream"})
# Attempts after which RANDOMKEY returns null: a database full of expired keys is about to be empty.
_DRAWS = 100


def database(ctx: Context, word: bytes) -> Database:
    """Return the database with this number."""
    return ctx.host.keyspace.databases[database_number(word)]


@GENERIC.command("unlink", -2, "write fast", keys=(1, -1, 1))
@GENERIC.command("del", -2, "write", keys=(1, -1, 1))
def delete(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of keys deleted. A key that is named twice counts once.

    UNLINK is the same here: Redis frees the memory later in a thread, Python at a time of its own.
    """
    count = 0
    for key in argv[1:]:
        if ctx.lookup(key) is not None:
            delete_key(ctx, key)
            count += 1
    return count


@GENERIC.command("touch", -2, "readonly fast", keys=(1, -1, 1))
@GENERIC.command("exists", -2, "readonly fast", keys=(1, -1, 1))
def exists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of keys that exist. A key that is named twice counts twice.

    TOUCH is the same: access times are not recorded.
    """
    return sum(ctx.lookup(key) is not None for key in argv[1:])


@GENERIC.command("type", 2, "readonly fast")
def type_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return ``string``, ``stream``, ``hash``, ``zset``, ``list``, ``set`` or ``none``. An expired key is ``none``."""
    value = ctx.lookup(argv[1])
    return Simple(b"none" if value is None else value.kind)


@GENERIC.command("keys", 2, "readonly", acl="dangerous", keys=(0, 0, 0))
def keys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the keys that match; SCAN does it in steps.

    Expired keys are deleted during the walk, so the handler iterates over a copy of the names. A pattern that would
    keep all other clients waiting for too long is refused, see :mod:`millstream.glob`.
    """
    fits = matcher(argv[1])
    return [key for key in list(ctx.db.keys) if fits(key) and ctx.lookup(key) is not None]


@GENERIC.command("scan", -2, "readonly", keys=(0, 0, 0))
def scan(ctx: Context, argv: list[bytes]) -> Reply:
    """Return one step of a walk over the keys. A key that exists during the whole walk is returned at least once.

    :mod:`millstream.engine.scanning` defines the cursors; this handler reads the options, and the last of each kind
    counts. An unknown type is an error, as in Redis 8; earlier versions matched no key. COUNT is only a hint: a step
    may return more keys, or none. So clients must go by the cursor.
    """
    start = cursor(argv[1])
    pattern, count, kind = b"*", 10, b""
    for at in range(2, len(argv), 2):
        word = keyword(argv[at])
        if at + 1 == len(argv) or word not in {b"MATCH", b"COUNT", b"TYPE"}:
            raise SYNTAX
        if word == b"MATCH":
            pattern = argv[at + 1]  # the last MATCH counts
        elif word == b"COUNT":
            count = integer(argv[at + 1])
            if count < 1:
                raise SYNTAX
        else:
            kind = keyword(argv[at + 1]).lower()
            if kind not in _TYPES:
                raise CommandError(f"ERR unknown type name '{shown(argv[at + 1])}'")
    fits = matcher(pattern)
    following, found = ctx.db.scan_order.step(ctx.db.keys, start, count)
    answer: list[Reply] = []
    for key in found:
        value = ctx.lookup(key) if fits(key) else None
        if value is not None and kind in {b"", value.kind}:
            answer.append(key)
    return [b"%d" % following, answer]


@GENERIC.command("randomkey", 1, "readonly", keys=(0, 0, 0))
def randomkey(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Return any key; null if there is none.

    The random choice is made here and not in the engine. It reaches the log only if a drawn key has expired and is
    deleted.
    """
    for _ in range(_DRAWS):
        names = ctx.db.keys
        if not names:
            break
        key = next(islice(names, random.randrange(len(names)), None))
        if ctx.lookup(key) is not None:
            return key
    return None


@SERVER.command("dbsize", 1, "readonly fast", acl="keyspace")
def dbsize(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Return the number of keys. Expired keys that were not yet deleted count, as in Redis."""
    return len(ctx.db.keys)


def _rename(ctx: Context, old: bytes, new: bytes) -> None:
    """Move a value to another key and replace the value there: two events, one change."""
    before = ctx.db.keys.get(new)
    ctx.commit(("move", ctx.db.index, old, ctx.db.index, new))
    # Both keys: XREADGROUP ends a wait for the old key, and may serve a wait for the new one
    ctx.signal(old)
    ctx.signal(new)
    ctx.notify("g", "rename_from", old)
    ctx.notify("g", "rename_to", new)
    ctx.overwritten(new, before)
    ctx.dirty += 1


@GENERIC.command("rename", 3, "write", keys=(1, 2, 1))
def rename(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK, or an error if the key does not exist. A new name equal to the old one changes nothing."""
    if ctx.lookup(argv[1]) is None:
        raise CommandError(NO_SUCH_KEY)
    if argv[1] != argv[2]:
        _rename(ctx, argv[1], argv[2])
    return OK


@GENERIC.command("renamenx", 3, "write fast", keys=(1, 2, 1))
def renamenx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the key was renamed. Renaming it to its own name returns 0, since that name exists."""
    if ctx.lookup(argv[1]) is None:
        raise CommandError(NO_SUCH_KEY)
    if argv[1] == argv[2] or ctx.lookup(argv[2]) is not None:
        return 0
    _rename(ctx, argv[1], argv[2])
    return 1


@GENERIC.command("copy", -3, "write denyoom", keys=(1, 2, 1))
def copy(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the value was copied, with its expiry time.

    Groups, pending entries and producers of a stream are copied too. The copy shares sealed blocks with the source
    until one of them is deleted, so copying a stream of gigabytes costs only its indexes.
    """
    target, replace = ctx.db, False
    at = 3
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"REPLACE":
            replace = True
        elif word == b"DB" and at + 1 < len(argv):
            at += 1
            target = database(ctx, argv[at])
        else:
            raise SYNTAX
        at += 1
    source, wanted = argv[1], argv[2]
    if target is ctx.db and source == wanted:
        raise CommandError(SAME_OBJECT)
    if ctx.lookup(source) is None:
        ctx.missed(source)
        return 0
    before = ctx.lookup(wanted, target)
    if before is not None and not replace:
        return 0
    ctx.commit(("copy", ctx.db.index, source, target.index, wanted))
    ctx.signal(wanted, database=target)
    ctx.notify("g", "copy_to", wanted, target)
    ctx.overwritten(wanted, before, target)
    ctx.dirty += 1
    return 1


@GENERIC.command("move", 3, "write fast")
def move(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the key was moved with its expiry time; 0 if it does not exist or the name exists in the target."""
    target, key = database(ctx, argv[2]), argv[1]
    if target is ctx.db:
        raise CommandError(SAME_OBJECT)
    if ctx.lookup(key) is None or ctx.lookup(key, target) is not None:
        return 0
    ctx.commit(("move", ctx.db.index, key, target.index, key))
    ctx.signal(key)
    ctx.signal(key, database=target)
    ctx.notify("g", "move_from", key)
    ctx.notify("g", "move_to", key, target)
    ctx.dirty += 1
    return 1


def _number(word: bytes, which: str) -> int:
    """Return one of SWAPDB's two numbers; each has its own error text. The range of databases is checked later."""
    index = read_integer(word)
    if index is None or not -(2**31) <= index < 2**31:
        raise CommandError(f"ERR invalid {which} DB index")
    return index


@SERVER.command("swapdb", 3, "write fast", acl="keyspace dangerous")
def swapdb(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK. Clients that wait in either database see the other's keys at once.

    Only keys that clients wait for or watch are signalled. Connections keep the number of their database, and thereby
    see the other content.
    """
    indexes = _number(argv[1], "first"), _number(argv[2], "second")
    if not all(0 <= index < DATABASES for index in indexes):
        raise CommandError(DB_OUT_OF_RANGE)
    one, two = (ctx.host.keyspace.databases[index] for index in indexes)
    ctx.dirty += 1
    if one is two:
        return OK
    keys = dict.fromkeys([*ctx.host.concerned(one.index), *ctx.host.concerned(two.index)])
    for key in keys:  # for WATCH, an expired key does not exist in either database
        ctx.lookup(key, one)
        ctx.lookup(key, two)
    ctx.commit(("swap", one.index, two.index))
    for key in keys:
        if key in one.keys or key in two.keys:
            ctx.signal(key, database=one)
            ctx.signal(key, database=two)
    return OK


def _flush(ctx: Context, databases: list[Database], argv: list[bytes]) -> Reply:
    """Empty databases. ASYNC and SYNC are the same here. Every deleted key counts as a change, as in Redis."""
    if len(argv) > 2 or (len(argv) == 2 and keyword(argv[1]) not in {b"ASYNC", b"SYNC"}):
        raise SYNTAX
    for base in databases:
        gone = base.keys
        if gone:
            ctx.commit(("flush", base.index))
            ctx.dirty += len(gone)
            for key in ctx.host.concerned(base.index):
                if key in gone:
                    ctx.signal(key, database=base)
    return OK


@SERVER.command("flushdb", -1, "write", acl="keyspace dangerous")
def flushdb(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK."""
    return _flush(ctx, [ctx.db], argv)


@SERVER.command("flushall", -1, "write", acl="keyspace dangerous")
def flushall(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK."""
    return _flush(ctx, ctx.host.keyspace.databases, argv)


GENERIC.container("object")


@GENERIC.command("object|encoding", 3, "readonly", keys=(2, 2, 1))
def object_encoding(ctx: Context, argv: list[bytes]) -> Reply:
    """Return ``int``, ``embstr`` or ``raw`` for a string, ``stream``, or a collection's encoding; null for no key.

    For a string that was set in one piece, the reply equals Redis's. After APPEND, Redis replies ``raw`` even for a
    short string; Millstream does not record that.
    """
    value = ctx.lookup(argv[2])
    if value is None:
        return None
    if isinstance(value, Collection):
        return value.encoding
    if not isinstance(value, StringValue):
        return value.kind
    if value.size <= _EMBEDDED_MAX and read_integer(value.data) is not None:
        return b"int"
    return b"embstr" if value.size <= _EMBEDDED_MAX else b"raw"


@GENERIC.command("object|refcount", 3, "readonly", keys=(2, 2, 1))
def object_refcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1, since values are not shared; null for no key.

    Redis replies 2147483647 for small numbers, on which no client should rely.
    """
    return None if ctx.lookup(argv[2]) is None else 1


@GENERIC.command("object|freq", 3, "readonly", keys=(2, 2, 1))
def object_freq(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error, as Redis does without an LFU eviction policy; null for no key."""
    if ctx.lookup(argv[2]) is None:
        return None
    raise CommandError(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
        "between policies at runtime LRU and LFU data will take some time to adjust."
    )


GENERIC.help("object")
