"""Commands on sorted sets: ZADD ZINCRBY ZREM ZSCORE ZMSCORE ZCARD ZCOUNT ZRANK ZRANGE and its kin, ZPOPMIN ZPOPMAX ....

Sorted sets are here for due times and leases beside streams. Scores are doubles, printed as Redis prints them (the
shortest digits that read back as the same number); members of one score are in the order of their bytes. Ranges by
member (BYLEX) and between sets are not there.

Source: https://redis.io/docs/latest/commands/?group=sorted-set
"""

import math
from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family
from millstream.commands.keyspace.lists import positive, rank_range
from millstream.commands.table.args import SYNTAX, integer, keyword, read_double
from millstream.engine.collection_ops import pack_scores
from millstream.engine.collections import ZSetValue
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Reply

ZSET = Family("sorted-set", "z")
NOT_A_FLOAT = "ERR value is not a valid float"
NOT_A_NUMBER = "ERR resulting score is not a number (NaN)"

Row = tuple[float, bytes]


def _zset(ctx: Context, key: bytes) -> ZSetValue | None:
    """The sorted set at a key, None if there is no key."""
    return ctx.lookup_as(key, ZSetValue)


def _score(word: bytes) -> float:
    """A score, which may be infinite and not NaN."""
    value = read_double(word)
    if value is None:
        raise CommandError(NOT_A_FLOAT)
    return value


# ---------------------------------------------------------------------- adding


def _conditions(argv: list[bytes]) -> tuple[frozenset[bytes], int]:
    """ZADD's option words, and where the pairs begin.

    Options end at the first word that is no option, so a member called ``nx`` is fine behind its score. Pairs are
    counted before the options are compared with each other, as in Redis.
    """
    at = 2
    chosen = set()
    while at < len(argv) and keyword(argv[at]) in {b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"}:
        chosen.add(keyword(argv[at]))
        at += 1
    pairs = len(argv) - at
    if not pairs or pairs % 2:
        raise SYNTAX
    if {b"NX", b"XX"} <= chosen:
        raise CommandError("ERR XX and NX options at the same time are not compatible")
    if len(chosen & {b"GT", b"LT", b"NX"}) > 1:
        raise CommandError("ERR GT, LT, and/or NX options at the same time are not compatible")
    if b"INCR" in chosen and pairs > 2:
        raise CommandError("ERR INCR option supports a single increment-element pair")
    return frozenset(chosen), at


def _wanted(conditions: frozenset[bytes], before: float | None, score: float) -> float | None:
    """The score a member gets, or None: the conditions leave it as it is.

    Raises:
        CommandError: infinities of both signs were added.
    """
    if before is None:
        return None if b"XX" in conditions else score
    if b"NX" in conditions:
        return None
    if b"INCR" in conditions:
        score += before
        if math.isnan(score):
            raise CommandError(NOT_A_NUMBER)
    if (b"GT" in conditions and score <= before) or (b"LT" in conditions and score >= before):
        return None
    return score


def _add(ctx: Context, key: bytes, conditions: frozenset[bytes], pairs: list[tuple[bytes, float]]) -> Reply:
    """Set scores, or add to one; what ZADD or ZINCRBY replies.

    All scores are decided first, a member that is named twice going by its first change, and then set by one
    transition. A score that stays the same is no change: no event, nothing in the log.

    Args:
        ctx: the command's context.
        key: the key.
        conditions: ZADD's option words.
        pairs: member and score, in the order given.
    """
    value = _zset(ctx, key)
    before = {} if value is None else value.scores
    changes: dict[bytes, float] = {}
    created = updated = 0
    result: float | None = None
    for member, score in pairs:
        present = changes.get(member, before.get(member))
        result = _wanted(conditions, present, score)
        if result is None or result == present:
            continue
        if present is None:
            created += 1
        else:
            updated += 1
        changes.pop(member, None)
        changes[member] = result
    if changes:
        step = ("zadd", ctx.db.index, key, list(changes), pack_scores(list(changes.values())))
        ctx.commit(step)
        ZSET.changed(ctx, key, "zincr" if b"INCR" in conditions else "zadd", created + updated)
    if b"INCR" in conditions:
        return result
    return created + updated if b"CH" in conditions else created


@ZSET.command(
    "zadd",
    -4,
    "write denyoom fast",
    "1.2.0",
    "key condition=[NX | XX]@3.0.2 comparison=[GT | LT]@6.2.0 [change=CH]@3.0.2 [increment=INCR]@3.0.2 "
    "score:double member [score member ...]",
    "Adds members with scores to a sorted set, or changes scores.",
)
def zadd(ctx: Context, argv: list[bytes]) -> Reply:
    """How many are new (CH: or changed); with INCR the new score, null if a condition forbade it.

    All scores are read before the key is looked at: a bad one refuses the command as a whole.
    """
    conditions, at = _conditions(argv)
    pairs = [(argv[here + 1], _score(argv[here])) for here in range(at, len(argv), 2)]
    return _add(ctx, argv[1], conditions, pairs)


@ZSET.command(
    "zincrby", 4, "write denyoom fast", "1.2.0", "key increment:integer member", "Adds to the score of a member."
)
def zincrby(ctx: Context, argv: list[bytes]) -> Reply:
    """The new score; a member that does not exist counts as 0."""
    return _add(ctx, argv[1], frozenset({b"INCR"}), [(argv[3], _score(argv[2]))])


# ---------------------------------------------------------------------- looking


@ZSET.command("zscore", 3, "readonly fast", "1.2.0", "key member", "Answers the score of a member.")
def zscore(ctx: Context, argv: list[bytes]) -> Reply:
    """The score, or null."""
    value = _zset(ctx, argv[1])
    return None if value is None else value.scores.get(argv[2])


@ZSET.command("zmscore", -3, "readonly fast", "6.2.0", "key member [member ...]", "Answers the scores of members.")
def zmscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Null for each that is absent."""
    value = _zset(ctx, argv[1])
    return [None if value is None else value.scores.get(member) for member in argv[2:]]


@ZSET.command("zcard", 2, "readonly fast", "1.2.0", "key", "Counts the members of a sorted set.")
def zcard(ctx: Context, argv: list[bytes]) -> Reply:
    """0 if the key does not exist."""
    value = _zset(ctx, argv[1])
    return 0 if value is None else len(value)


def _rank(ctx: Context, argv: list[bytes], *, reverse: bool) -> Reply:
    """ZRANK and ZREVRANK; what "not there" answers depends on WITHSCORE, as its reply would be an array."""
    if len(argv) > 4:
        raise CommandError(f"ERR wrong number of arguments for '{'zrevrank' if reverse else 'zrank'}' command")
    if len(argv) == 4 and keyword(argv[3]) != b"WITHSCORE":
        raise SYNTAX
    value = _zset(ctx, argv[1])
    if value is None or argv[2] not in value.scores:
        return NIL_ARRAY if len(argv) == 4 else None
    rank = value.rank(argv[2])
    if reverse:
        rank = len(value) - 1 - rank
    return [rank, value.scores[argv[2]]] if len(argv) == 4 else rank


@ZSET.command(
    "zrank", -3, "readonly fast", "2.0.0", "key member [WITHSCORE]@!7.2.0", "Tells how many members score less."
)
def zrank(ctx: Context, argv: list[bytes]) -> Reply:
    """The position from the lowest score, or null."""
    return _rank(ctx, argv, reverse=False)


@ZSET.command(
    "zrevrank", -3, "readonly fast", "2.0.0", "key member [WITHSCORE]@!7.2.0", "Tells how many members score more."
)
def zrevrank(ctx: Context, argv: list[bytes]) -> Reply:
    """The position from the highest score, or null."""
    return _rank(ctx, argv, reverse=True)


# ---------------------------------------------------------------------- ranges


def _bound(word: bytes) -> tuple[float, bool]:
    """A bound of scores, and whether it stands outside the range.

    An empty word, also behind the parenthesis, is 0: Redis reads these by ``strtod``, which finds nothing and says 0.
    """
    exclusive = word[:1] == b"("
    digits = word.partition(b"\0")[0][exclusive:]
    value = read_double(digits) if digits else 0.0
    if value is None:
        raise CommandError("ERR min or max is not a float")
    return value, exclusive


@dataclass(frozen=True, slots=True)
class _Scores:
    """A range of scores."""

    low: float
    above_low: bool
    high: float
    below_high: bool

    @classmethod
    def read(cls, low: bytes, high: bytes) -> "_Scores":
        """From two bounds, the lower first."""
        return cls(*_bound(low), *_bound(high))

    def ranks(self, value: ZSetValue) -> tuple[int, int]:
        """The ranks in it: first, and the one behind the last."""
        first = value.first_at(self.low, exclusive=self.above_low)
        return first, max(value.first_at(self.high, exclusive=not self.below_high), first)


@ZSET.command(
    "zcount", 4, "readonly fast", "2.0.0", "key min:double max:double", "Counts the members in a range of scores."
)
def zcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Bounds are as in ZRANGEBYSCORE."""
    scores = _Scores.read(argv[2], argv[3])
    value = _zset(ctx, argv[1])
    if value is None:
        return 0
    first, behind = scores.ranks(value)
    return behind - first


@dataclass(slots=True)
class _RangeOptions:
    """What a range command was asked.

    Attributes:
        by_score: bounds are scores, not ranks.
        reverse: highest first; bounds of scores then stand the other way round.
        with_scores: WITHSCORES.
        limit: offset and count; None for all.
    """

    by_score: bool = False
    reverse: bool = False
    with_scores: bool = False
    limit: tuple[int, int] | None = None


def _range_options(
    argv: list[bytes], *, by_score: bool = False, reverse: bool = False, free: bool = False
) -> _RangeOptions:
    """The words after the bounds; only ZRANGE (``free``) chooses its order and measure there."""
    options = _RangeOptions(by_score, reverse)
    at = 4
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"WITHSCORES":
            options.with_scores = True
        elif word == b"LIMIT" and at + 2 < len(argv):
            options.limit = integer(argv[at + 1]), integer(argv[at + 2])
            at += 2
        elif free and word == b"BYSCORE":
            options.by_score = True
        elif free and word == b"REV":
            options.reverse = True
        else:
            raise SYNTAX
        at += 1
    if not options.by_score and options.limit is not None and options.limit[1] != -1:
        raise CommandError("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX")
    return options


def _limited(rows: list[Row], limit: tuple[int, int] | None) -> list[Row]:
    """What LIMIT leaves; a negative count is no limit, a negative offset leaves nothing.

    Redis walks to the offset; here it is a slice, so a large offset costs nothing but the rows before it.
    """
    if limit is None:
        return rows
    offset, count = limit
    if offset < 0:
        return []
    return rows[offset:] if count < 0 else rows[offset : offset + count]


def _rows(ctx: Context, rows: list[Row]) -> Reply:
    """Members with scores: pairs in RESP3, one flat array in RESP2."""
    if ctx.session.resp == 3:
        return [[member, score] for score, member in rows]
    return [word for score, member in rows for word in (member, score)]


def _range(ctx: Context, argv: list[bytes], options: _RangeOptions) -> Reply:
    """A range by rank or score, as all five commands answer it.

    Bounds are read before the key is looked at, so a bad bound is an error for a missing key too.
    """
    scores = None
    if options.by_score:
        scores = _Scores.read(argv[3], argv[2]) if options.reverse else _Scores.read(argv[2], argv[3])
    else:
        rank_range(argv[2], argv[3], 0)  # the words are looked at before the key
    value = _zset(ctx, argv[1])
    if value is None:
        return []
    if scores is not None:
        rows = value.between(*scores.ranks(value))
    else:
        first, behind = rank_range(argv[2], argv[3], len(value))
        if options.reverse:
            first, behind = len(value) - behind, len(value) - first
        rows = value.between(max(first, 0), max(behind, 0))
    if options.reverse:
        rows.reverse()
    if options.by_score:
        rows = _limited(rows, options.limit)
    return _rows(ctx, rows) if options.with_scores else [member for _, member in rows]


@ZSET.command(
    "zrange",
    -4,
    "readonly",
    "1.2.0",
    "key start stop [BYSCORE]@6.2.0 [REV]@6.2.0 [LIMIT limit=(offset:integer count:integer)]@6.2.0 [WITHSCORES]",
    "Answers the members in a range of ranks or scores.",
    limited="BYLEX is not there",
)
def zrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Lowest first, unless REV."""
    return _range(ctx, argv, _range_options(argv, free=True))


@ZSET.command("zrevrange", -4, "readonly", "1.2.0", "key start:integer stop:integer [WITHSCORES]", "ZRANGE with REV.")
def zrevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Ranks count from the highest score."""
    return _range(ctx, argv, _range_options(argv, reverse=True))


@ZSET.command(
    "zrangebyscore",
    -4,
    "readonly",
    "1.0.5",
    "key min:double max:double [WITHSCORES]@2.0.0 [LIMIT limit=(offset:integer count:integer)]",
    "Answers the members in a range of scores.",
)
def zrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """``(`` before a bound leaves it out; ``-inf`` and ``+inf`` are bounds too."""
    return _range(ctx, argv, _range_options(argv, by_score=True))


@ZSET.command(
    "zrevrangebyscore",
    -4,
    "readonly",
    "2.2.0",
    "key max:double min:double [WITHSCORES] [LIMIT limit=(offset:integer count:integer)]",
    "Answers the members in a range of scores, highest first.",
)
def zrevrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """As ZRANGEBYSCORE, the upper bound first."""
    return _range(ctx, argv, _range_options(argv, by_score=True, reverse=True))


# ---------------------------------------------------------------------- removing


def _remove(ctx: Context, key: bytes, members: list[bytes], event: str) -> int:
    """Remove members that exist, if any; the key goes with the last.

    They go into the log by name, however they were chosen. That may be much for few words on the line, so the log is
    asked whether it takes so many bytes in one record, before anything is removed.
    """
    if members:
        ctx.host.weigh(sum(map(len, members)))
        ZSET.removed(ctx, key, ("zrem", ctx.db.index, key, members), event, len(members))
    return len(members)


@ZSET.command("zrem", -3, "write fast", "1.2.0", "key member [member ...]", "Deletes members of a sorted set.")
def zrem(ctx: Context, argv: list[bytes]) -> Reply:
    """How many there were."""
    value = _zset(ctx, argv[1])
    going = [] if value is None else [member for member in dict.fromkeys(argv[2:]) if member in value.scores]
    return _remove(ctx, argv[1], going, "zrem")


@ZSET.command(
    "zremrangebyscore", 4, "write", "1.2.0", "key min:double max:double", "Deletes the members in a range of scores."
)
def zremrangebyscore(ctx: Context, argv: list[bytes]) -> Reply:
    """How many there were."""
    scores = _Scores.read(argv[2], argv[3])
    value = _zset(ctx, argv[1])
    rows = [] if value is None else value.between(*scores.ranks(value))
    return _remove(ctx, argv[1], [member for _, member in rows], "zremrangebyscore")


@ZSET.command(
    "zremrangebyrank", 4, "write", "2.0.0", "key start:integer stop:integer", "Deletes the members in a range of ranks."
)
def zremrangebyrank(ctx: Context, argv: list[bytes]) -> Reply:
    """How many there were; ranks count from the lowest score, negative ones from the highest."""
    rank_range(argv[2], argv[3], 0)
    value = _zset(ctx, argv[1])
    rows = [] if value is None else value.between(*rank_range(argv[2], argv[3], len(value)))
    return _remove(ctx, argv[1], [member for _, member in rows], "zremrangebyrank")


def _pop(ctx: Context, argv: list[bytes], *, highest: bool) -> Reply:
    """ZPOPMIN and ZPOPMAX; without a count a flat pair even in RESP3, with one an array of pairs there."""
    name = "zpopmax" if highest else "zpopmin"
    if len(argv) > 3:
        raise SYNTAX
    count = positive(argv[2]) if len(argv) == 3 else 1
    value = _zset(ctx, argv[1])
    if value is None or not count:
        return []
    count = min(count, len(value))
    rows = value.between(len(value) - count, len(value)) if highest else value.between(0, count)
    if highest:
        rows.reverse()
    _remove(ctx, argv[1], [member for _, member in rows], name)
    if len(argv) == 2:
        return [rows[0][1], rows[0][0]]
    return _rows(ctx, rows)


@ZSET.command("zpopmin", -2, "write fast", "5.0.0", "key [count:integer]", "Takes the members with the lowest scores.")
def zpopmin(ctx: Context, argv: list[bytes]) -> Reply:
    """Members and scores, lowest first."""
    return _pop(ctx, argv, highest=False)


@ZSET.command("zpopmax", -2, "write fast", "5.0.0", "key [count:integer]", "Takes the members with the highest scores.")
def zpopmax(ctx: Context, argv: list[bytes]) -> Reply:
    """Members and scores, highest first."""
    return _pop(ctx, argv, highest=True)
