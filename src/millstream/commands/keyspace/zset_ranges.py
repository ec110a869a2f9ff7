"""Ranges of sorted sets, by rank, score or member: ZRANGE and variants, ZRANGESTORE, ZCOUNT ZLEXCOUNT, ZREMRANGEBY....

Bounds are checked before the key, so an invalid bound is an error for a missing key too. Ranges by member are
meaningful only if all scores are equal.

Source: https://redis.io/docs/latest/commands/zrange/ and its siblings.
"""

from collections.abc import Callable
from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.lists import rank_range
from millstream.commands.keyspace.zsets import ZSET, Row, remove_members, shown_rows, store_rows, zset_at
from millstream.commands.table.args import SYNTAX, integer, is_sign, keyword, read_bound
from millstream.engine.collections import ZSetValue
from millstream.errors import CommandError
from millstream.replies import Reply

Ranks = Callable[[ZSetValue], tuple[int, int]]
"""Function that returns the ranks of a range in a set: the first rank, and the one after the last."""

# Bounds below and above all members
_EVERY = {b"-": -1, b"+": 1}


def _by_rank(low: bytes, high: bytes) -> Ranks:
    rank_range(low, high, 0)  # the arguments are checked before the key
    return lambda value: rank_range(low, high, len(value))


def _bound(word: bytes) -> tuple[float, bool]:
    """Return a bound of scores, and True if the bound itself is outside the range.

    An empty bound, also after a parenthesis, is 0: Redis reads bounds by ``strtod``, which returns 0 for an empty text.
    """
    exclusive = word[:1] == b"("
    digits = word.partition(b"\0")[0][exclusive:]
    value = read_bound(digits) if digits else 0.0
    if value is None:
        raise CommandError("ERR min or max is not a float")
    return value, exclusive


def _by_score(low: bytes, high: bytes) -> Ranks:
    (least, above), (most, below) = _bound(low), _bound(high)

    def ranks(value: ZSetValue) -> tuple[int, int]:
        first = value.first_at(least, exclusive=above)
        return first, max(value.first_at(most, exclusive=not below), first)

    return ranks


def _member_bound(word: bytes) -> tuple[int, bytes, bool]:
    """Return a bound of members.

    The three parts are: -1 or 1 for a bound below or above all members, else 0; the member; True if the member itself
    is outside the range.
    """
    for sign, side in _EVERY.items():
        if is_sign(word, sign):
            return side, b"", False
    if word[:1] not in {b"(", b"["}:
        raise CommandError("ERR min or max not valid string range item")
    return 0, word[1:], word[:1] == b"("


def _by_member(low: bytes, high: bytes) -> Ranks:
    (low_side, least, above), (high_side, most, below) = _member_bound(low), _member_bound(high)

    def ranks(value: ZSetValue) -> tuple[int, int]:
        places = len(value)
        first = value.first_from(least, exclusive=above) if not low_side else 0 if low_side < 0 else places
        behind = value.first_from(most, exclusive=not below) if not high_side else 0 if high_side < 0 else places
        return first, max(behind, first)

    return ranks


_READERS = {b"": _by_rank, b"BYSCORE": _by_score, b"BYLEX": _by_member}


def _count(ctx: Context, key: bytes, ranks: Ranks) -> Reply:
    """Return the number of members in a range."""
    value = zset_at(ctx, key)
    if value is None:
        return 0
    first, behind = ranks(value)
    return behind - first


@ZSET.command("zcount", 4, "readonly fast")
def zcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members in a range of scores. The bounds are those of ZRANGEBYSCORE."""
    return _count(ctx, argv[1], _by_score(argv[2], argv[3]))


@ZSET.command("zlexcount", 4, "readonly fast")
def zlexcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members in a range of members. The bounds are those of ZRANGEBYLEX."""
    return _count(ctx, argv[1], _by_member(argv[2], argv[3]))


# ---------------------------------------------------------------------- ranges


@dataclass(slots=True)
class _RangeOptions:
    """The options of a range command."""

    by: bytes = b""  # Kind of bounds: ``BYSCORE``, ``BYLEX``, or empty for ranks
    reverse: bool = False  # Highest first; the upper bound then precedes the lower one
    with_scores: bool = False  # WITHSCORES
    limit: tuple[int, int] | None = None  # Offset and count; None for all


def _range_options(words: list[bytes], options: _RangeOptions, *, free: bool = False, stores: bool = False) -> None:
    """Read the options after the bounds. Only ZRANGE and ZRANGESTORE (``free``) have REV, BYSCORE and BYLEX."""
    may_reverse, at = free, 0
    while at < len(words):
        word = keyword(words[at])
        if word == b"WITHSCORES" and not stores:
            options.with_scores = True
        elif word == b"LIMIT" and at + 2 < len(words):
            options.limit = integer(words[at + 1]), integer(words[at + 2])
            at += 2
        elif free and not options.by and word in {b"BYSCORE", b"BYLEX"}:
            options.by = word
        elif may_reverse and word == b"REV":
            options.reverse, may_reverse = True, False
        else:
            raise SYNTAX
        at += 1
    if not options.by and options.limit is not None and options.limit[1] != -1:
        raise CommandError("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX")
    if options.by == b"BYLEX" and options.with_scores:
        raise CommandError("ERR syntax error, WITHSCORES not supported in combination with BYLEX")


def _limited(rows: list[Row], limit: tuple[int, int] | None) -> list[Row]:
    """Return the rows within LIMIT. A negative count means all; a negative offset leaves nothing.

    Redis walks to the offset. Here it is a slice, so a large offset costs only the rows before it.
    """
    if limit is None:
        return rows
    offset, count = limit
    if offset < 0:
        return []
    return rows[offset:] if count < 0 else rows[offset : offset + count]


def _rows_of(ctx: Context, key: bytes, bounds: list[bytes], options: _RangeOptions) -> list[Row]:
    """Return the rows in a range; none if the key does not exist."""
    low, high = reversed(bounds) if options.reverse and options.by else bounds
    ranks = _READERS[options.by](low, high)
    value = zset_at(ctx, key)
    if value is None:
        return []
    first, behind = ranks(value)
    if options.reverse and not options.by:
        first, behind = len(value) - behind, len(value) - first
    rows = value.between(max(first, 0), max(behind, 0))
    if options.reverse:
        rows.reverse()
    return _limited(rows, options.limit) if options.by else rows


def _range(ctx: Context, argv: list[bytes], by: bytes = b"", *, reverse: bool = False, free: bool = False) -> Reply:
    """Return the reply of the ZRANGE commands."""
    options = _RangeOptions(by, reverse)
    _range_options(argv[4:], options, free=free)
    rows = _rows_of(ctx, argv[1], argv[2:4], options)
    return shown_rows(ctx, rows) if options.with_scores else [member for _, member in rows]


@ZSET.command("zrange", -4, "readonly")
def zrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members in a range, lowest score first unless REV is given."""
    return _range(ctx, argv, free=True)


@ZSET.command("zrevrange", -4, "readonly")
def zrevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members in a range of ranks, which count from the highest score."""
    return _range(ctx, argv, reverse=True)


@ZSET.command("zrangebyscore", -4, "readonly")
def zrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members in a range of scores. ``(`` excludes a bound; ``-inf`` and ``+inf`` are valid bounds."""
    return _range(ctx, argv, b"BYSCORE")


@ZSET.command("zrevrangebyscore", -4, "readonly")
def zrevrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the same reply as ZRANGEBYSCORE in reverse order. The upper bound comes first."""
    return _range(ctx, argv, b"BYSCORE", reverse=True)


@ZSET.command("zrangebylex", -4, "readonly")
def zrangebylex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members in a range of members.

    ``[`` includes a bound and ``(`` excludes it; ``-`` is below and ``+`` above all members.
    """
    return _range(ctx, argv, b"BYLEX")


@ZSET.command("zrevrangebylex", -4, "readonly")
def zrevrangebylex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the same reply as ZRANGEBYLEX in reverse order. The upper bound comes first."""
    return _range(ctx, argv, b"BYLEX", reverse=True)


@ZSET.command("zrangestore", -5, "write denyoom", keys=(1, 2, 1))
def zrangestore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored. An empty range deletes the key."""
    options = _RangeOptions()
    _range_options(argv[5:], options, free=True, stores=True)
    return store_rows(ctx, argv[1], _rows_of(ctx, argv[2], argv[3:5], options), "zrangestore")


# ---------------------------------------------------------------------- removing


def _remove_range(ctx: Context, argv: list[bytes], ranks: Ranks) -> Reply:
    """Remove the members in a range; return their number."""
    value = zset_at(ctx, argv[1])
    rows = [] if value is None else value.between(*ranks(value))
    return remove_members(ctx, argv[1], [member for _, member in rows], argv[0].decode().lower())


@ZSET.command("zremrangebyscore", 4, "write")
def zremrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members removed."""
    return _remove_range(ctx, argv, _by_score(argv[2], argv[3]))


@ZSET.command("zremrangebyrank", 4, "write")
def zremrangebyrank(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members removed. Ranks count from the lowest score, negative ones from the highest."""
    return _remove_range(ctx, argv, _by_rank(argv[2], argv[3]))


@ZSET.command("zremrangebylex", 4, "write")
def zremrangebylex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members removed."""
    return _remove_range(ctx, argv, _by_member(argv[2], argv[3]))
