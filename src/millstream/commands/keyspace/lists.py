"""Commands on lists: LPUSH RPUSH LPOP RPOP LRANGE LSET LREM LTRIM LINSERT LMOVE LMPOP ..., and the blocking ones.

Source: https://redis.io/docs/latest/commands/?group=list
"""

import math
from itertools import islice

from millstream.commands.context.context import Blocked, Context
from millstream.commands.keyspace.collections import Family, drop_if_empty, key_count
from millstream.commands.table import long_double
from millstream.commands.table.args import LLONG_MAX, LLONG_MIN, SYNTAX, integer, keyword
from millstream.engine.collections import ListValue
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, OK, Reply

LIST = Family("list", "l")
DOUBLE = (("6.0.0", "The time may have a fraction."),)
NOT_POSITIVE = "ERR value is out of range, must be positive"


def positive(word: bytes, error: str = NOT_POSITIVE) -> int:
    """Return a count from 0 on; every invalid count raises the same error text."""
    value = integer(word, error)
    if value < 0:
        raise CommandError(error)
    return value


def _negatable(word: bytes) -> int:
    """Return a count that may be negative. The smallest integer is refused, since it cannot be negated."""
    value = integer(word)
    if value == LLONG_MIN:
        raise CommandError(f"ERR value is out of range, value must between {-LLONG_MAX} and {LLONG_MAX}")
    return value


def _is_left(word: bytes) -> bool:
    """Return True for LEFT, False for RIGHT."""
    if (end := keyword(word)) not in {b"LEFT", b"RIGHT"}:
        raise SYNTAX
    return end == b"LEFT"


def rank_range(word_first: bytes, word_last: bytes, length: int) -> tuple[int, int]:
    """Return a range of positions as ``first`` up to and without ``last``. Negative positions count from the end.

    Returns:
        Two positions for a slice; equal ones if the range is empty.
    """
    first, last = integer(word_first), integer(word_last)
    if first < 0:
        first = max(first + length, 0)
    if last < 0:
        last += length
    return first, max(min(last + 1, length), first)


def _push(ctx: Context, argv: list[bytes], event: str, *, left: bool, makes: bool = True) -> Reply:
    """Add elements and return the new length. Waiting clients are served after the command or its transaction."""
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None and not makes:
        return 0
    items = argv[2:]
    length = len(items) + (0 if value is None else len(value))
    ctx.commit(("lpush", ctx.db.index, argv[1], items, left))
    ctx.signal(argv[1])
    ctx.notify("l", event, argv[1])
    ctx.dirty += len(items)
    return length


@LIST.command("lpush", -3, "write denyoom fast")
def lpush(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length. Each element is put before the existing ones, so the last argument ends up first."""
    return _push(ctx, argv, "lpush", left=True)


@LIST.command("rpush", -3, "write denyoom fast")
def rpush(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length."""
    return _push(ctx, argv, "rpush", left=False)


@LIST.command("lpushx", -3, "write denyoom fast")
def lpushx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length; 0 if the key does not exist."""
    return _push(ctx, argv, "lpush", left=True, makes=False)


@LIST.command("rpushx", -3, "write denyoom fast")
def rpushx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length; 0 if the key does not exist."""
    return _push(ctx, argv, "rpush", left=False, makes=False)


def _take(ctx: Context, key: bytes, count: int, *, left: bool) -> list[bytes]:
    """Remove and return up to ``count`` elements, at least one. Removing the last element deletes the key."""
    found: list[bytes] = ctx.commit(("lpop", ctx.db.index, key, count, left))
    LIST.changed(ctx, key, "lpop" if left else "rpop", len(found))
    drop_if_empty(ctx, key)
    return found


def _pop(ctx: Context, argv: list[bytes], *, left: bool) -> Reply:
    """Carry out LPOP and RPOP. For a missing key they return null, or a null array if a count was given.

    A count of 0 on a list returns an empty array and changes nothing. The number of arguments is checked here, since
    the row's arity is a minimum.
    """
    if len(argv) > 3:
        raise CommandError(f"ERR wrong number of arguments for '{'lpop' if left else 'rpop'}' command")
    count = positive(argv[2]) if len(argv) == 3 else None
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return None if count is None else NIL_ARRAY
    if count is None:
        return _take(ctx, argv[1], 1, left=left)[0]
    return list(_take(ctx, argv[1], min(count, len(value)), left=left)) if count else []


@LIST.command("lpop", -2, "write fast")
def lpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return one element, or an array of them if a count is given; null if the key does not exist."""
    return _pop(ctx, argv, left=True)


@LIST.command("rpop", -2, "write fast")
def rpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the same reply as LPOP, from the tail."""
    return _pop(ctx, argv, left=False)


@LIST.command("lrange", 4, "readonly")
def lrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the elements of a range, both ends included; negative positions count from the tail."""
    rank_range(argv[2], argv[3], 0)  # the arguments are checked before the key
    value = ctx.lookup_as(argv[1], ListValue)
    return [] if value is None else list(value.between(*rank_range(argv[2], argv[3], len(value))))


@LIST.command("llen", 2, "readonly fast")
def llen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of elements; 0 if the key does not exist."""
    value = ctx.lookup_as(argv[1], ListValue)
    return 0 if value is None else len(value)


# ---------------------------------------------------------------------- in the middle


@LIST.command("lindex", 3, "readonly")
def lindex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the element at a position, or null; negative positions count from the tail.

    If the key does not exist, an invalid position is not an error.
    """
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return None
    at = integer(argv[2])
    at = at + len(value) if at < 0 else at
    return value[at] if 0 <= at < len(value) else None


def _ranked(argv: list[bytes]) -> tuple[int, int | None, int]:
    """Return the options of an LPOS: RANK, COUNT (None if not given), MAXLEN."""
    rank, count, most = 1, None, 0
    for at in range(3, len(argv), 2):
        word = keyword(argv[at])
        if at + 1 == len(argv) or word not in {b"RANK", b"COUNT", b"MAXLEN"}:
            raise SYNTAX
        if word == b"COUNT":
            count = positive(argv[at + 1], "ERR COUNT can't be negative")
        elif word == b"MAXLEN":
            most = positive(argv[at + 1], "ERR MAXLEN can't be negative")
        elif (rank := _negatable(argv[at + 1])) == 0:
            raise CommandError(
                "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to "
                "start from the end of the list"
            )
    return rank, count, most


@LIST.command("lpos", -3, "readonly")
def lpos(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the first position of the element, or null. With COUNT return an array; COUNT 0 means all positions."""
    rank, count, most = _ranked(argv)
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return None if count is None else []
    found = value.find(argv[2], backwards=rank < 0, most=most)
    first = abs(rank) - 1
    places = list(islice(found, first, None if count == 0 else first + (count or 1)))
    if count is None:
        return places[0] if places else None
    return list(places)


@LIST.command("lset", 4, "write denyoom")
def lset(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK. A missing key or position is an error."""
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        raise CommandError("ERR no such key")
    at = integer(argv[2])
    at = at + len(value) if at < 0 else at
    if not 0 <= at < len(value):
        raise CommandError("ERR index out of range")
    ctx.commit(("lset", ctx.db.index, argv[1], at, argv[3]))
    LIST.changed(ctx, argv[1], "lset", 1)
    return OK


@LIST.command("linsert", 5, "write denyoom")
def linsert(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length; -1 if the reference element is absent, 0 if the key does not exist."""
    where = keyword(argv[2])
    if where not in {b"BEFORE", b"AFTER"}:
        raise SYNTAX
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return 0
    at = next(value.find(argv[3]), None)
    if at is None:
        return -1
    length = len(value) + 1
    ctx.commit(("linsert", ctx.db.index, argv[1], at + (where == b"AFTER"), argv[4]))
    LIST.changed(ctx, argv[1], "linsert", 1)
    return length


@LIST.command("lrem", 4, "write")
def lrem(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of elements removed.

    A positive ``count`` removes that many from the head, a negative one from the tail, and 0 removes all.
    """
    count = _negatable(argv[2])
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return 0
    going = sum(1 for _ in islice(value.find(argv[3]), abs(count) or None))
    if going:
        LIST.removed(ctx, argv[1], ("lrem", ctx.db.index, argv[1], count, argv[3]), "lrem", going)
    return going


@LIST.command("ltrim", 4, "write")
def ltrim(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK. The command publishes an event and invalidates WATCHes even if it removed nothing."""
    rank_range(argv[2], argv[3], 0)  # the arguments are checked before the key
    value = ctx.lookup_as(argv[1], ListValue)
    if value is None:
        return OK
    first, behind = rank_range(argv[2], argv[3], len(value))
    if first == behind:
        first = behind = len(value)
    going = len(value) - (behind - first)
    if going:
        ctx.commit(("ltrim", ctx.db.index, argv[1], first, behind))
    LIST.changed(ctx, argv[1], "ltrim", going)
    drop_if_empty(ctx, argv[1])
    return OK


# ---------------------------------------------------------------------- from list to list


def _move(ctx: Context, argv: list[bytes], *, left: bool, to_left: bool) -> bytes | None:
    """Move an element from one list to another or within one list; return None if there is none.

    The event of the addition comes first, as in Redis.
    """
    source, target = argv[1], argv[2]
    value = ctx.lookup_as(source, ListValue)
    if value is None:
        return None
    ctx.lookup_as(target, ListValue)
    ctx.host.weigh(len(value[0 if left else -1]))  # the element is logged with the target list
    item = value[0 if left else -1]
    steps = [("lpop", ctx.db.index, source, 1, left), ("lpush", ctx.db.index, target, [item], to_left)]
    if source == target:  # in a replica, a temporarily empty list would lose its expiry
        steps.reverse()
    for step in steps:
        ctx.commit(step)
    ctx.signal(target)
    ctx.notify("l", "lpush" if to_left else "rpush", target)
    LIST.changed(ctx, source, "lpop" if left else "rpop", 1)
    drop_if_empty(ctx, source)
    return bytes(item)


@LIST.command("lmove", 5, "write denyoom", keys=(1, 2, 1))
def lmove(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the moved element, or null."""
    return _move(ctx, argv, left=_is_left(argv[3]), to_left=_is_left(argv[4]))


@LIST.command("rpoplpush", 3, "write denyoom", keys=(1, 2, 1))
def rpoplpush(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the moved element, or null."""
    return _move(ctx, argv, left=False, to_left=True)


# ---------------------------------------------------------------------- waiting


def timeout(word: bytes) -> int:
    """Convert a timeout from seconds to milliseconds; 0 means no limit.

    The result is rounded up. Otherwise a timeout of 0.0004 seconds would become 0 and never end.
    """
    seconds = long_double.read(word)
    if seconds is None:
        raise CommandError("ERR timeout is not a float or out of range")
    wanted = seconds * 1000
    if wanted > LLONG_MAX:
        raise CommandError("ERR timeout is out of range")
    if wanted <= -1:  # checked before rounding, which fails for minus infinity
        raise CommandError("ERR timeout is negative")
    return math.ceil(wanted)


def _blocking_pop(ctx: Context, argv: list[bytes], *, left: bool) -> Reply:
    """Take one element of the first list that exists, or wait.

    A key of another type is an error if it comes before that list; later keys are not checked. While a client waits,
    keys of other types are ignored (``kind``).
    """
    wait = timeout(argv[-1])
    keys = argv[1:-1]
    for key in keys:
        if ctx.lookup_as(key, ListValue) is not None:
            return [key, _take(ctx, key, 1, left=left)[0]]
    if not ctx.may_block:
        return NIL_ARRAY
    raise Blocked(keys, wait, argv, kind=ListValue)


@LIST.command("blpop", -3, "write blocking", keys=(1, -2, 1))
def blpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return key and element; a null array after the timeout."""
    return _blocking_pop(ctx, argv, left=True)


@LIST.command("brpop", -3, "write blocking", keys=(1, -2, 1))
def brpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the same reply as BLPOP, from the tail."""
    return _blocking_pop(ctx, argv, left=False)


def _blocking_move(ctx: Context, argv: list[bytes], *, left: bool, to_left: bool) -> Reply:
    """Move an element, or wait for one.

    If the client must not wait, return null; after the timeout, a null array. Both are as in Redis.
    """
    wait = timeout(argv[-1])
    item = _move(ctx, argv, left=left, to_left=to_left)
    if item is not None or not ctx.may_block:
        return item
    raise Blocked([argv[1]], wait, argv, kind=ListValue)


@LIST.command("blmove", 6, "write denyoom blocking", keys=(1, 2, 1))
def blmove(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the moved element."""
    return _blocking_move(ctx, argv, left=_is_left(argv[3]), to_left=_is_left(argv[4]))


@LIST.command("brpoplpush", 4, "write denyoom blocking", keys=(1, 2, 1))
def brpoplpush(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the moved element."""
    return _blocking_move(ctx, argv, left=False, to_left=True)


def counted_pop(argv: list[bytes], at: int, ends: tuple[bytes, bytes]) -> tuple[list[bytes], bool, int]:
    """Read the arguments of LMPOP, ZMPOP and their blocking variants.

    Returns:
        The keys, True if the first of ``ends`` was given, and the number of elements to take.
    """
    behind = at + 1 + key_count(argv, at)
    if behind >= len(argv) or (end := keyword(argv[behind])) not in ends:
        raise SYNTAX
    options = argv[behind + 1 :]
    if options and (len(options) == 1 or keyword(options[0]) != b"COUNT"):
        raise SYNTAX
    count = key_count(options, 1, "ERR count should be greater than 0") if options else 1
    if len(options) > 2:
        raise SYNTAX
    return argv[at + 1 : behind], end == ends[0], count


def _pop_of_many(ctx: Context, keys: list[bytes], *, left: bool, count: int) -> Reply:
    """Return the first key that has a list, and elements from it; a null array if no key has one."""
    for key in keys:
        value = ctx.lookup_as(key, ListValue)
        if value is not None:
            return [key, list(_take(ctx, key, min(count, len(value)), left=left))]
    return NIL_ARRAY


@LIST.command("lmpop", -4, "write movablekeys", keys=(0, 0, 0))
def lmpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the key and its elements."""
    keys, left, count = counted_pop(argv, 1, (b"LEFT", b"RIGHT"))
    return _pop_of_many(ctx, keys, left=left, count=count)


@LIST.command("blmpop", -5, "write blocking movablekeys", keys=(0, 0, 0))
def blmpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the key and its elements; a null array after the timeout. The timeout is checked last."""
    keys, left, count = counted_pop(argv, 2, (b"LEFT", b"RIGHT"))
    wait = timeout(argv[1])
    found = _pop_of_many(ctx, keys, left=left, count=count)
    if found is not NIL_ARRAY or not ctx.may_block:
        return found
    raise Blocked(keys, wait, argv, kind=ListValue)
