"""Commands on sorted sets: ZADD ZINCRBY ZREM ZSCORE ZCARD ZRANK ZPOPMIN ZMPOP ZUNION ..., and the blocking ones.

Sorted sets hold due times and leases next to streams. Scores are doubles, printed as in Redis (the shortest digits that
read back as the same number). Members with equal scores are in the order of their bytes. Ranges are in ``zset_ranges``.

Source: https://redis.io/docs/latest/commands/?group=sorted-set
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millstream.commands.context.context import WRONGTYPE, Blocked, Context
from millstream.commands.keyspace.collections import Family
from millstream.commands.keyspace.lists import counted_pop, positive, timeout
from millstream.commands.table.args import SYNTAX, integer, keyword, read_double
from millstream.engine.collection_ops import pack_scores
from millstream.engine.collections import SetValue, ZSetValue
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Reply

ZSET = Family("sorted-set", "z")
NOT_A_FLOAT = "ERR value is not a valid float"
NOT_A_NUMBER = "ERR resulting score is not a number (NaN)"

Row = tuple[float, bytes]


def zset_at(ctx: Context, key: bytes) -> ZSetValue | None:
    """Return the sorted set at a key, None if the key does not exist."""
    return ctx.lookup_as(key, ZSetValue)


def _score(word: bytes, error: str = NOT_A_FLOAT) -> float:
    """Return a score, which may be infinite but not NaN."""
    value = read_double(word)
    if value is None:
        raise CommandError(error)
    return value


# ---------------------------------------------------------------------- adding


def _conditions(argv: list[bytes]) -> tuple[frozenset[bytes], int]:
    """Return ZADD's options, and the position of the first pair.

    Options end at the first argument that is not one, so a member may be called ``nx``. The number of pairs is checked
    before the combination of options, as in Redis.
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
    """Return the new score of a member, or None if the conditions forbid a change."""
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


def add_scores(ctx: Context, key: bytes, conditions: frozenset[bytes], pairs: list[tuple[bytes, float]]) -> Reply:
    """Set scores, or add to one; return the reply of ZADD or ZINCRBY.

    All new scores are computed first and then set by one transition. If a member is named twice, the second change
    starts from the first. An unchanged score is not a change: no event, nothing in the log.
    """
    value = zset_at(ctx, key)
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
        ctx.wake(key)
    if b"INCR" in conditions:
        return result
    return created + updated if b"CH" in conditions else created


@ZSET.command("zadd", -4, "write denyoom fast")
def zadd(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of new members (CH: new or changed).

    With INCR, return the new score; null if a condition forbids it. All scores are checked before the key: an invalid
    one refuses the whole command.
    """
    conditions, at = _conditions(argv)
    pairs = [(argv[here + 1], _score(argv[here])) for here in range(at, len(argv), 2)]
    return add_scores(ctx, argv[1], conditions, pairs)


@ZSET.command("zincrby", 4, "write denyoom fast")
def zincrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new score; a missing member counts as 0."""
    return add_scores(ctx, argv[1], frozenset({b"INCR"}), [(argv[3], _score(argv[2]))])


# ---------------------------------------------------------------------- looking


@ZSET.command("zscore", 3, "readonly fast")
def zscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the score, or null."""
    value = zset_at(ctx, argv[1])
    return None if value is None else value.scores.get(argv[2])


@ZSET.command("zmscore", -3, "readonly fast")
def zmscore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the scores; null for each absent member."""
    value = zset_at(ctx, argv[1])
    return [None if value is None else value.scores.get(member) for member in argv[2:]]


@ZSET.command("zcard", 2, "readonly fast")
def zcard(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members; 0 if the key does not exist."""
    value = zset_at(ctx, argv[1])
    return 0 if value is None else len(value)


def _rank(ctx: Context, argv: list[bytes], *, reverse: bool) -> Reply:
    """Carry out ZRANK and ZREVRANK. For an absent member they return null; with WITHSCORE a null array."""
    if len(argv) > 4:
        raise CommandError(f"ERR wrong number of arguments for '{'zrevrank' if reverse else 'zrank'}' command")
    if len(argv) == 4 and keyword(argv[3]) != b"WITHSCORE":
        raise SYNTAX
    value = zset_at(ctx, argv[1])
    if value is None or argv[2] not in value.scores:
        return NIL_ARRAY if len(argv) == 4 else None
    rank = value.rank(argv[2])
    if reverse:
        rank = len(value) - 1 - rank
    return [rank, value.scores[argv[2]]] if len(argv) == 4 else rank


@ZSET.command("zrank", -3, "readonly fast")
def zrank(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the position from the lowest score, or null."""
    return _rank(ctx, argv, reverse=False)


@ZSET.command("zrevrank", -3, "readonly fast")
def zrevrank(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the position from the highest score, or null."""
    return _rank(ctx, argv, reverse=True)


def shown_rows(ctx: Context, rows: list[Row]) -> Reply:
    """Return the reply for members with scores: pairs in RESP3, one flat array in RESP2."""
    if ctx.session.resp == 3:
        return [[member, score] for score, member in rows]
    return [word for score, member in rows for word in (member, score)]


def store_rows(ctx: Context, key: bytes, rows: list[Row], event: str) -> int:
    """Replace the value at a key by a sorted set, or delete the key if there are no rows.

    Returns:
        The number of members stored.
    """
    members = [member for _, member in rows]
    ctx.host.weigh(sum(map(len, members)) + 8 * len(members))
    scores = pack_scores([score for score, _ in rows])
    ZSET.stored(ctx, key, ("zadd", ctx.db.index, key, members, scores, True) if rows else None, event)
    return len(rows)


# ---------------------------------------------------------------------- removing


def remove_members(ctx: Context, key: bytes, members: list[bytes], event: str) -> int:
    """Remove existing members, if any. Removing the last member deletes the key.

    A short command may remove many members, and the log records each by name. So their total size is checked against
    the limit of one record before anything is removed.

    Returns:
        The number of members removed.
    """
    if members:
        ctx.host.weigh(sum(map(len, members)))
        ZSET.removed(ctx, key, ("zrem", ctx.db.index, key, members), event, len(members))
    return len(members)


@ZSET.command("zrem", -3, "write fast")
def zrem(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members removed."""
    value = zset_at(ctx, argv[1])
    going = [] if value is None else [member for member in dict.fromkeys(argv[2:]) if member in value.scores]
    return remove_members(ctx, argv[1], going, "zrem")


def _take(ctx: Context, key: bytes, value: ZSetValue, count: int, *, highest: bool) -> list[Row]:
    """Remove and return up to ``count`` members with the lowest or highest scores."""
    count = min(count, len(value))
    rows = value.between(len(value) - count, len(value)) if highest else value.between(0, count)
    if highest:
        rows.reverse()
    remove_members(ctx, key, [member for _, member in rows], "zpopmax" if highest else "zpopmin")
    return rows


def _pop(ctx: Context, argv: list[bytes], *, highest: bool) -> Reply:
    """Carry out ZPOPMIN and ZPOPMAX.

    Without a count, the reply is a flat pair even in RESP3; with one, it is an array of pairs in RESP3.
    """
    if len(argv) > 3:
        raise SYNTAX
    count = positive(argv[2]) if len(argv) == 3 else 1
    value = zset_at(ctx, argv[1])
    if value is None or not count:
        return []
    rows = _take(ctx, argv[1], value, count, highest=highest)
    if len(argv) == 2:
        return [rows[0][1], rows[0][0]]
    return shown_rows(ctx, rows)


@ZSET.command("zpopmin", -2, "write fast")
def zpopmin(ctx: Context, argv: list[bytes]) -> Reply:
    """Return members and scores, lowest first."""
    return _pop(ctx, argv, highest=False)


@ZSET.command("zpopmax", -2, "write fast")
def zpopmax(ctx: Context, argv: list[bytes]) -> Reply:
    """Return members and scores, highest first."""
    return _pop(ctx, argv, highest=True)


def _first_of(ctx: Context, keys: list[bytes], count: int, *, highest: bool) -> tuple[bytes, list[Row]] | None:
    """Take members from the first key that has a sorted set; return the key and the rows, None if no key has one."""
    for key in keys:
        value = zset_at(ctx, key)
        if value is not None:
            return key, _take(ctx, key, value, count, highest=highest)
    return None


def _blocking_pop(ctx: Context, argv: list[bytes], *, highest: bool) -> Reply:
    """Carry out BZPOPMIN and BZPOPMAX: take one member of the first sorted set that exists, or wait."""
    wait = timeout(argv[-1])
    found = _first_of(ctx, argv[1:-1], 1, highest=highest)
    if found is not None:
        key, ((score, member),) = found
        return [key, member, score]
    if not ctx.may_block:
        return NIL_ARRAY
    raise Blocked(argv[1:-1], wait, argv, kind=ZSetValue)


@ZSET.command("bzpopmin", -3, "write blocking fast", keys=(1, -2, 1))
def bzpopmin(ctx: Context, argv: list[bytes]) -> Reply:
    """Return key, member and score; a null array after the timeout."""
    return _blocking_pop(ctx, argv, highest=False)


@ZSET.command("bzpopmax", -3, "write blocking fast", keys=(1, -2, 1))
def bzpopmax(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the same reply as BZPOPMIN, for the highest score."""
    return _blocking_pop(ctx, argv, highest=True)


def _pop_of_many(ctx: Context, keys: list[bytes], *, highest: bool, count: int) -> Reply:
    """Return the key with pairs of member and score, in both protocols; a null array if no key has a sorted set."""
    found = _first_of(ctx, keys, count, highest=highest)
    return NIL_ARRAY if found is None else [found[0], [[member, score] for score, member in found[1]]]


@ZSET.command("zmpop", -4, "write movablekeys", keys=(0, 0, 0))
def zmpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the key, and its members with scores."""
    keys, lowest, count = counted_pop(argv, 1, (b"MIN", b"MAX"))
    return _pop_of_many(ctx, keys, highest=not lowest, count=count)


@ZSET.command("bzmpop", -5, "write blocking movablekeys", keys=(0, 0, 0))
def bzmpop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the key, and its members with scores; a null array after the timeout. The timeout is checked last."""
    keys, lowest, count = counted_pop(argv, 2, (b"MIN", b"MAX"))
    wait = timeout(argv[1])
    found = _pop_of_many(ctx, keys, highest=not lowest, count=count)
    if found is not NIL_ARRAY or not ctx.may_block:
        return found
    raise Blocked(keys, wait, argv, kind=ZSetValue)


# ---------------------------------------------------------------------- several sorted sets


def _total(one: float, two: float) -> float:
    """Return a sum. Infinities of opposite signs give 0, as in Redis."""
    total = one + two
    return 0.0 if math.isnan(total) else total


def _weighted(weight: float, score: float) -> float:
    product = weight * score
    return 0.0 if math.isnan(product) else product


Scores = Mapping[bytes, float]
_AGGREGATES: dict[bytes, Callable[[float, float], float]] = {b"SUM": _total, b"MIN": min, b"MAX": max}


@dataclass(slots=True)
class _Sources:
    """The arguments of ZUNION, ZINTER, ZDIFF and their variants."""

    scores: list[Scores]  # Scores by member for each key; members of a set have score 1
    weights: list[float]  # Weight of each key
    aggregate: Callable[[float, float], float] = _total  # Combines two scores into one
    with_scores: bool = False  # WITHSCORES
    limit: int = 0  # Limit of ZINTERCARD, 0 for none

    def by_size(self) -> list[tuple[float, Scores]]:
        """Return weights and scores, the smallest set first. This order decides the rounding of sums."""
        return sorted(zip(self.weights, self.scores, strict=True), key=lambda source: len(source[1]))


def _scores_at(ctx: Context, key: bytes) -> Scores:
    value = ctx.lookup(key)
    if isinstance(value, SetValue):
        return dict.fromkeys(value, 1.0)
    if value is not None and not isinstance(value, ZSetValue):
        raise CommandError(WRONGTYPE)
    return {} if value is None else value.scores


def _read_sources(ctx: Context, argv: list[bytes], at: int, words: set[bytes]) -> _Sources:
    """Read the number of keys, the keys and the options. The types of the keys are checked before the options."""
    count = integer(argv[at])
    if count < 1:
        raise CommandError(f"ERR at least 1 input key is needed for '{argv[0].decode().lower()}' command")
    if count > len(argv) - at - 1:
        raise SYNTAX
    sources = _Sources([_scores_at(ctx, key) for key in argv[at + 1 : at + 1 + count]], [1.0] * count)
    at += 1 + count
    while at < len(argv):
        word, left = keyword(argv[at]), len(argv) - at - 1
        if word not in words:
            raise SYNTAX
        if word == b"WEIGHTS" and left >= count:
            sources.weights = [
                _score(each, "ERR weight value is not a float") for each in argv[at + 1 : at + 1 + count]
            ]
            at += count
        elif word == b"AGGREGATE" and left and keyword(argv[at + 1]) in _AGGREGATES:
            sources.aggregate = _AGGREGATES[keyword(argv[at + 1])]
            at += 1
        elif word == b"LIMIT" and left:
            sources.limit = positive(argv[at + 1], "ERR LIMIT can't be negative")
            at += 1
        elif word == b"WITHSCORES":
            sources.with_scores = True
        else:
            raise SYNTAX
        at += 1
    return sources


def _union(sources: _Sources) -> list[Row]:
    found: dict[bytes, float] = {}
    for weight, scores in sources.by_size():
        for member, score in scores.items():
            one = _weighted(weight, score)
            found[member] = sources.aggregate(found[member], one) if member in found else one
    return sorted((score, member) for member, score in found.items())


def _intersection(sources: _Sources) -> list[Row]:
    (weight, smallest), *others = sources.by_size()
    found: list[Row] = []
    for member, score in smallest.items():
        if all(member in scores for _, scores in others):
            total = _weighted(weight, score)
            for other, scores in others:
                total = sources.aggregate(total, _weighted(other, scores[member]))
            found.append((total, member))
    return sorted(found)


def _difference(sources: _Sources) -> list[Row]:
    first, *others = sources.scores
    return sorted((score, member) for member, score in first.items() if not any(member in each for each in others))


_SCORING = {b"WEIGHTS", b"AGGREGATE"}


def _shown(ctx: Context, argv: list[bytes], combine: Callable[[_Sources], list[Row]], words: set[bytes]) -> Reply:
    """Return the members of the combination of several sets, by score."""
    sources = _read_sources(ctx, argv, 1, words | {b"WITHSCORES"})
    rows = combine(sources)
    return shown_rows(ctx, rows) if sources.with_scores else [member for _, member in rows]


def _stored(ctx: Context, argv: list[bytes], combine: Callable[[_Sources], list[Row]], words: set[bytes]) -> Reply:
    """Store the combination and reply its number of members. An empty result deletes the key."""
    return store_rows(ctx, argv[1], combine(_read_sources(ctx, argv, 2, words)), argv[0].decode().lower())


@ZSET.command("zunion", -3, "readonly movablekeys", keys=(0, 0, 0))
def zunion(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the union. The scores of a member in several sets are added, unless AGGREGATE sets another function."""
    return _shown(ctx, argv, _union, _SCORING)


@ZSET.command("zinter", -3, "readonly movablekeys", keys=(0, 0, 0))
def zinter(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the intersection, with scores as in ZUNION."""
    return _shown(ctx, argv, _intersection, _SCORING)


@ZSET.command("zdiff", -3, "readonly movablekeys", keys=(0, 0, 0))
def zdiff(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members of the first set that no other set has, with their scores."""
    return _shown(ctx, argv, _difference, set())


@ZSET.command("zunionstore", -4, "write denyoom movablekeys")
def zunionstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _stored(ctx, argv, _union, _SCORING)


@ZSET.command("zinterstore", -4, "write denyoom movablekeys")
def zinterstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _stored(ctx, argv, _intersection, _SCORING)


@ZSET.command("zdiffstore", -4, "write denyoom movablekeys")
def zdiffstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _stored(ctx, argv, _difference, set())


@ZSET.command("zintercard", -3, "readonly movablekeys", keys=(0, 0, 0))
def zintercard(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the size of the intersection, at most the limit; a limit of 0 means none."""
    sources = _read_sources(ctx, argv, 1, {b"LIMIT"})
    found = len(_intersection(sources))
    return min(found, sources.limit) if sources.limit else found
