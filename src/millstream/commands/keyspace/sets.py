"""Commands on sets: SADD SREM SMEMBERS SISMEMBER SCARD.

Only what scripts and tools beside streams use. The order of SMEMBERS is Redis's while a set is small: numbers
ascending, others in the order in which they came.

Source: https://redis.io/docs/latest/commands/?group=set
"""

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family
from millstream.engine.collections import SetValue
from millstream.replies import Reply, Set

SET = Family("set", "s")


def _members(ctx: Context, key: bytes) -> SetValue:
    """The members at a key, none if there is no key."""
    return ctx.lookup_as(key, SetValue) or SetValue()


@SET.command("sadd", -3, "write denyoom fast", "1.0.0", "key member [member ...]", "Adds members to a set.")
def sadd(ctx: Context, argv: list[bytes]) -> Reply:
    """How many are new. Only these go into the log, so adding what is there costs no record."""
    present = _members(ctx, argv[1])
    new = [member for member in dict.fromkeys(argv[2:]) if member not in present]
    if new:
        ctx.commit(("sadd", ctx.db.index, argv[1], new))
        SET.changed(ctx, argv[1], "sadd", len(new))
    return len(new)


@SET.command("srem", -3, "write fast", "1.0.0", "key member [member ...]", "Deletes members of a set.")
def srem(ctx: Context, argv: list[bytes]) -> Reply:
    """How many there were."""
    present = _members(ctx, argv[1])
    going = [member for member in dict.fromkeys(argv[2:]) if member in present]
    if going:
        SET.removed(ctx, argv[1], ("srem", ctx.db.index, argv[1], going), "srem", len(going))
    return len(going)


@SET.command("smembers", 2, "readonly", "1.0.0", "key", "Answers all members of a set.")
def smembers(ctx: Context, argv: list[bytes]) -> Reply:
    """Numbers in order; others in the order in which they came."""
    return Set(list(_members(ctx, argv[1])))


@SET.command("sismember", 3, "readonly fast", "1.0.0", "key member", "Tells whether a set has a member.")
def sismember(ctx: Context, argv: list[bytes]) -> Reply:
    """1 or 0."""
    return int(argv[2] in _members(ctx, argv[1]))


@SET.command("scard", 2, "readonly fast", "1.0.0", "key", "Counts the members of a set.")
def scard(ctx: Context, argv: list[bytes]) -> Reply:
    """0 if the key does not exist."""
    return len(_members(ctx, argv[1]))
