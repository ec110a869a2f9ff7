"""Commands on lists: LPUSH RPUSH LPOP RPOP LRANGE LLEN, and BLPOP and BRPOP, which wait.

Source: https://redis.io/docs/latest/commands/?group=list
"""

import math

from millstream.commands.context.context import Blocked, Context
from millstream.commands.keyspace.collections import Family, drop_if_empty
from millstream.commands.table.args import LLONG_MAX, integer, read_double
from millstream.commands.table.table import command
from millstream.engine.collections import ListValue
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Reply

LIST = Family("list", "l")
NOT_POSITIVE = "ERR value is out of range, must be positive"


def positive(word: bytes) -> int:
    """A count: a whole number, not below zero; one text for every bad one."""
    value = integer(word, NOT_POSITIVE)
    if value < 0:
        raise CommandError(NOT_POSITIVE)
    return value


def rank_range(word_first: bytes, word_last: bytes, length: int) -> tuple[int, int]:
    """A range of positions, negative ones counting from the end, as ``first`` up to and without ``last``.

    Args:
        word_first: as the client wrote it.
        word_last: the last position, itself included.
        length: how many there are.

    Returns:
        Two positions for a slice; equal ones where nothing is in the range.

    Raises:
        CommandError: a word is no integer.
    """
    first, last = integer(word_first), integer(word_last)
    if first < 0:
        first = max(first + length, 0)
    if last < 0:
        last += length
    return first, max(min(last + 1, length), first)


def _push(ctx: Context, argv: list[bytes], event: str, *, left: bool) -> Reply:
    """Add elements; the new length. Who waits is served when the command, or its transaction, is through."""
    value = ctx.lookup_as(argv[1], ListValue)
    items = argv[2:]
    length = len(items) + (0 if value is None else len(value))
    ctx.commit(("lpush", ctx.db.index, argv[1], items, left))
    ctx.signal(argv[1])
    ctx.notify("l", event, argv[1])
    ctx.dirty += len(items)
    return length


@LIST.command("lpush", -3, "write denyoom fast", "1.0.0", "key element [element ...]", "Adds at the head of a list.")
def lpush(ctx: Context, argv: list[bytes]) -> Reply:
    """The new length; the last element stands first, since each is put before those already there."""
    return _push(ctx, argv, "lpush", left=True)


@LIST.command("rpush", -3, "write denyoom fast", "1.0.0", "key element [element ...]", "Adds at the tail of a list.")
def rpush(ctx: Context, argv: list[bytes]) -> Reply:
    """The new length."""
    return _push(ctx, argv, "rpush", left=False)


def _take(ctx: Context, key: bytes, count: int, *, left: bool) -> list[bytes]:
    """Take elements, at least one, no more than there are; the key goes with the last."""
    found: list[bytes] = ctx.commit(("lpop", ctx.db.index, key, count, left))
    LIST.changed(ctx, key, "lpop" if left else "rpop", len(found))
    drop_if_empty(ctx, key)
    return found


def _pop(ctx: Context, argv: list[bytes], *, left: bool) -> Reply:
    """LPOP and RPOP, which tell "no key" apart by whether a count was given: null, or a null array.

    A count of 0 on a list is an empty array and no change. The number of words is checked here, since the arity of the
    row says "at least".
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


@LIST.command("lpop", -2, "write fast", "1.0.0", "key [count:integer]@6.2.0", "Takes elements from the head of a list.")
def lpop(ctx: Context, argv: list[bytes]) -> Reply:
    """One element, or an array of them where a count is given; null for no key."""
    return _pop(ctx, argv, left=True)


@LIST.command("rpop", -2, "write fast", "1.0.0", "key [count:integer]@6.2.0", "Takes elements from the tail of a list.")
def rpop(ctx: Context, argv: list[bytes]) -> Reply:
    """As LPOP."""
    return _pop(ctx, argv, left=False)


@LIST.command(
    "lrange", 4, "readonly", "1.0.0", "key start:integer stop:integer", "Answers the elements between two positions."
)
def lrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Both ends included; negative positions count from the tail."""
    rank_range(argv[2], argv[3], 0)  # the words are looked at before the key
    value = ctx.lookup_as(argv[1], ListValue)
    return [] if value is None else list(value.between(*rank_range(argv[2], argv[3], len(value))))


@LIST.command("llen", 2, "readonly fast", "1.0.0", "key", "Answers the length of a list.")
def llen(ctx: Context, argv: list[bytes]) -> Reply:
    """0 if the key does not exist."""
    value = ctx.lookup_as(argv[1], ListValue)
    return 0 if value is None else len(value)


def timeout(word: bytes) -> int:
    """A time to wait from seconds, in milliseconds, 0 for ever; any part of a millisecond is a whole one.

    Rounded up, or a client that waits for 0.0004 seconds would wait for ever.

    Raises:
        CommandError: no number, negative, or beyond 64 bits of milliseconds; in Redis's order.
    """
    seconds = read_double(word)
    if seconds is None:
        raise CommandError("ERR timeout is not a float or out of range")
    if seconds * 1000 > LLONG_MAX:
        raise CommandError("ERR timeout is out of range")
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    return math.ceil(seconds * 1000)


def _blocking_pop(ctx: Context, argv: list[bytes], *, left: bool) -> Reply:
    """Take one element of the first list that has any, or wait.

    A key of another type is an error where it stands before the list that would be served; behind it nobody looks.
    While a client waits, other types are passed over until a list is there (``kind``).
    """
    wait = timeout(argv[-1])
    keys = argv[1:-1]
    for key in keys:
        if ctx.lookup_as(key, ListValue) is not None:
            return [key, _take(ctx, key, 1, left=left)[0]]
    if not ctx.may_block:
        return NIL_ARRAY
    raise Blocked(keys, wait, argv, kind=ListValue)


@command(
    "blpop",
    -3,
    flags="write blocking",
    keys=(1, -2, 1),
    since="2.0.0",
    group="list",
    syntax="key [key ...] timeout:double",
    summary="Takes an element from the head of the first list that has one, waiting for one if none has.",
)
def blpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Key and element; a null array when the time is up."""
    return _blocking_pop(ctx, argv, left=True)


@command(
    "brpop",
    -3,
    flags="write blocking",
    keys=(1, -2, 1),
    since="2.0.0",
    group="list",
    syntax="key [key ...] timeout:double",
    summary="Takes an element from the tail of the first list that has one, waiting for one if none has.",
)
def brpop(ctx: Context, argv: list[bytes]) -> Reply:
    """As BLPOP."""
    return _blocking_pop(ctx, argv, left=False)
