"""Commands on sets: SADD SREM SMOVE SMEMBERS SISMEMBER SCARD, and SINTER, SUNION, SDIFF with their STORE variants.

Only the commands that scripts and tools use next to streams are here. SMEMBERS has Redis's order for a small set:
numbers ascending, other members in the order of their insertion.

Source: https://redis.io/docs/latest/commands/?group=set
"""

from collections.abc import Callable, Iterable

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family, key_count
from millstream.commands.keyspace.lists import positive
from millstream.commands.table.args import SYNTAX, keyword
from millstream.engine.collections import SetValue
from millstream.errors import CommandError
from millstream.replies import Reply, Set

SET = Family("set", "s")


def _members(ctx: Context, key: bytes) -> SetValue:
    """Return the members at a key; an empty set if the key does not exist."""
    return ctx.lookup_as(key, SetValue) or SetValue()


@SET.command("sadd", -3, "write denyoom fast")
def sadd(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of new members. Only these are logged, so adding existing members costs no record."""
    present = _members(ctx, argv[1])
    new = [member for member in dict.fromkeys(argv[2:]) if member not in present]
    if new:
        ctx.commit(("sadd", ctx.db.index, argv[1], new))
        SET.changed(ctx, argv[1], "sadd", len(new))
    return len(new)


@SET.command("srem", -3, "write fast")
def srem(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members removed."""
    present = _members(ctx, argv[1])
    going = [member for member in dict.fromkeys(argv[2:]) if member in present]
    if going:
        SET.removed(ctx, argv[1], ("srem", ctx.db.index, argv[1], going), "srem", len(going))
    return len(going)


@SET.command("smembers", 2, "readonly")
def smembers(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members: numbers in order, others in the order of their insertion."""
    return Set(list(_members(ctx, argv[1])))


@SET.command("sismember", 3, "readonly fast")
def sismember(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the set has the member, else 0."""
    return int(argv[2] in _members(ctx, argv[1]))


@SET.command("scard", 2, "readonly fast")
def scard(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members; 0 if the key does not exist."""
    return len(_members(ctx, argv[1]))


@SET.command("smismember", -3, "readonly fast")
def smismember(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 or 0 for each member."""
    present = _members(ctx, argv[1])
    return [int(member in present) for member in argv[2:]]


@SET.command("smove", 4, "write fast", keys=(1, 2, 1))
def smove(ctx: Context, argv: list[bytes]) -> Reply:
    """Move a member between two sets; return 1, or 0 if the source lacks it."""
    source, target, member = argv[1:]
    present = ctx.lookup_as(source, SetValue)
    if present is None:
        return 0
    there = _members(ctx, target)
    if source == target or member not in present:
        return int(member in present)
    SET.removed(ctx, source, ("srem", ctx.db.index, source, [member]), "srem", 1)
    if member not in there:
        ctx.commit(("sadd", ctx.db.index, target, [member]))
        SET.changed(ctx, target, "sadd", 1)
    return 1


# ---------------------------------------------------------------------- several sets

Combining = Callable[[list[SetValue]], Iterable[bytes]]


def _common(values: list[SetValue]) -> Iterable[bytes]:
    """Return the members that all sets have, in the order of the smallest set, as in Redis."""
    smallest, *others = sorted(values, key=len)
    return (member for member in smallest if all(member in other for other in others))


def _all(values: list[SetValue]) -> Iterable[bytes]:
    return (member for value in values for member in value)


def _only_first(values: list[SetValue]) -> Iterable[bytes]:
    first, *others = values
    return (member for member in first if not any(member in other for other in others))


def _combined(ctx: Context, keys: list[bytes], combine: Combining) -> list[bytes]:
    """Return the combination of several sets, in the order of a new set of these members.

    The type of each key is checked first.
    """
    made = SetValue()
    for member in combine([_members(ctx, key) for key in keys]):
        if member not in made:
            made.add(member)
    return list(made)


def _store(ctx: Context, argv: list[bytes], combine: Combining) -> Reply:
    """Store the combination and reply its number of members. An empty result deletes the key."""
    found = _combined(ctx, argv[2:], combine)
    ctx.host.weigh(sum(map(len, found)))
    step = ("sadd", ctx.db.index, argv[1], found, True) if found else None
    SET.stored(ctx, argv[1], step, argv[0].decode().lower())
    return len(found)


@SET.command("sinter", -2, "readonly", keys=(1, -1, 1))
def sinter(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members that all sets have. A missing key counts as an empty set."""
    return Set(list(_combined(ctx, argv[1:], _common)))


@SET.command("sunion", -2, "readonly", keys=(1, -1, 1))
def sunion(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members of all sets, each once."""
    return Set(list(_combined(ctx, argv[1:], _all)))


@SET.command("sdiff", -2, "readonly", keys=(1, -1, 1))
def sdiff(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the members of the first set that no other set has."""
    return Set(list(_combined(ctx, argv[1:], _only_first)))


@SET.command("sinterstore", -3, "write denyoom", keys=(1, -1, 1))
def sinterstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _store(ctx, argv, _common)


@SET.command("sunionstore", -3, "write denyoom", keys=(1, -1, 1))
def sunionstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _store(ctx, argv, _all)


@SET.command("sdiffstore", -3, "write denyoom", keys=(1, -1, 1))
def sdiffstore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of members stored."""
    return _store(ctx, argv, _only_first)


@SET.command("sintercard", -3, "readonly movablekeys", keys=(0, 0, 0))
def sintercard(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the size of the intersection, at most the limit; a limit of 0 means none."""
    count = key_count(argv, 1)
    if count > len(argv) - 2:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    limit = limited(argv[2 + count :])
    found = len(_combined(ctx, argv[2 : 2 + count], _common))
    return min(found, limit) if limit else found


def limited(words: list[bytes]) -> int:
    """Return the LIMIT of SINTERCARD or ZINTERCARD; 0 means no limit. The last LIMIT counts."""
    limit = 0
    for at in range(0, len(words), 2):
        if keyword(words[at]) != b"LIMIT" or at + 1 == len(words):
            raise SYNTAX
        limit = positive(words[at + 1], "ERR LIMIT can't be negative")
    return limit
