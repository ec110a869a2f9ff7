"""Commands on hashes: HSET HSETNX HGET HMGET HMSET HDEL HLEN HGETALL HKEYS HVALS HEXISTS HSTRLEN HINCRBY HSCAN.

A hash answers its fields in the order in which they came, as Redis does while it is small (listpack). Fields' own times
to live (Redis 7.4) are not there.

Source: https://redis.io/docs/latest/commands/?group=hash
"""

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family
from millstream.commands.table.args import LLONG_MAX, LLONG_MIN, SYNTAX, cursor, integer, keyword, read_integer
from millstream.engine.collections import HashValue
from millstream.errors import CommandError
from millstream.glob import matcher
from millstream.replies import OK, Map, Reply

HASH = Family("hash", "h")


def _fields(ctx: Context, key: bytes) -> dict[bytes, bytes]:
    """The fields at a key, none if there is no key. The hash's own dictionary: read it, never change it."""
    value = ctx.lookup_as(key, HashValue)
    return {} if value is None else value.fields


def _put(ctx: Context, argv: list[bytes], name: str) -> int:
    """Set the fields after the key; how many are new.

    Odd words are refused before the key's type. Every pair is a change, also one that sets what is there, and a field
    that is named twice counts as new once.
    """
    if len(argv) % 2:
        raise CommandError(f"ERR wrong number of arguments for '{name}' command")
    before = _fields(ctx, argv[1])
    pairs = argv[2:]
    created = len(set(pairs[::2]).difference(before))
    ctx.commit(("hset", ctx.db.index, argv[1], pairs))
    HASH.changed(ctx, argv[1], "hset", len(pairs) // 2)
    return created


@HASH.command("hset", -4, "write denyoom fast", "2.0.0", "key field value [field value ...]", "Sets fields of a hash.")
def hset(ctx: Context, argv: list[bytes]) -> Reply:
    """How many fields are new."""
    return _put(ctx, argv, "hset")


@HASH.command("hmset", -4, "write denyoom fast", "2.0.0", "key field value [field value ...]", "As HSET.")
def hmset(ctx: Context, argv: list[bytes]) -> Reply:
    """HSET under its old name, which answers OK; its error names it all the same."""
    _put(ctx, argv, "hmset")
    return OK


@HASH.command("hsetnx", 4, "write denyoom fast", "2.0.0", "key field value", "Sets a field if it does not exist.")
def hsetnx(ctx: Context, argv: list[bytes]) -> Reply:
    """1 if it was set; the key is made with it if it does not exist."""
    if argv[2] in _fields(ctx, argv[1]):
        return 0
    ctx.commit(("hset", ctx.db.index, argv[1], argv[2:]))
    HASH.changed(ctx, argv[1], "hset", 1)
    return 1


@HASH.command("hget", 3, "readonly fast", "2.0.0", "key field", "Answers the value of a field.")
def hget(ctx: Context, argv: list[bytes]) -> Reply:
    """The value, or null."""
    return _fields(ctx, argv[1]).get(argv[2])


@HASH.command("hmget", -3, "readonly fast", "2.0.0", "key field [field ...]", "Answers the values of fields.")
def hmget(ctx: Context, argv: list[bytes]) -> Reply:
    """Null for each field that is absent."""
    found = _fields(ctx, argv[1])
    return [found.get(field) for field in argv[2:]]


@HASH.command("hdel", -3, "write fast", "2.0.0", "key field [field ...]", "Deletes fields of a hash.")
def hdel(ctx: Context, argv: list[bytes]) -> Reply:
    """How many there were; the key goes with the last. A field that is named twice counts once."""
    found = _fields(ctx, argv[1])
    going = [field for field in dict.fromkeys(argv[2:]) if field in found]
    if going:
        HASH.removed(ctx, argv[1], ("hdel", ctx.db.index, argv[1], going), "hdel", len(going))
    return len(going)


@HASH.command("hlen", 2, "readonly fast", "2.0.0", "key", "Counts the fields of a hash.")
def hlen(ctx: Context, argv: list[bytes]) -> Reply:
    """0 if the key does not exist."""
    return len(_fields(ctx, argv[1]))


@HASH.command("hgetall", 2, "readonly", "2.0.0", "key", "Answers all fields and their values.")
def hgetall(ctx: Context, argv: list[bytes]) -> Reply:
    """A map, in the order in which the fields came."""
    return Map(list(_fields(ctx, argv[1]).items()))


@HASH.command("hkeys", 2, "readonly", "2.0.0", "key", "Answers the names of all fields.")
def hkeys(ctx: Context, argv: list[bytes]) -> Reply:
    """In the order in which they came."""
    return list(_fields(ctx, argv[1]))


@HASH.command("hvals", 2, "readonly", "2.0.0", "key", "Answers the values of all fields.")
def hvals(ctx: Context, argv: list[bytes]) -> Reply:
    """In the order of HKEYS."""
    return list(_fields(ctx, argv[1]).values())


@HASH.command("hexists", 3, "readonly fast", "2.0.0", "key field", "Tells whether a field exists.")
def hexists(ctx: Context, argv: list[bytes]) -> Reply:
    """1 or 0."""
    return int(argv[2] in _fields(ctx, argv[1]))


@HASH.command("hstrlen", 3, "readonly fast", "3.2.0", "key field", "Answers the length of a field's value.")
def hstrlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Bytes, 0 if there is none."""
    return len(_fields(ctx, argv[1]).get(argv[2], b""))


@HASH.command(
    "hincrby", 4, "write denyoom fast", "2.0.0", "key field increment:integer", "Adds to a number kept in a field."
)
def hincrby(ctx: Context, argv: list[bytes]) -> Reply:
    """The new value; what does not exist counts as 0.

    The increment is read before the key is looked at; the field's value has an error text of its own.
    """
    step = integer(argv[3])
    before = _fields(ctx, argv[1]).get(argv[2])
    value = 0 if before is None else read_integer(before)
    if value is None:
        raise CommandError("ERR hash value is not an integer")
    value += step
    if not LLONG_MIN <= value <= LLONG_MAX:
        raise CommandError("ERR increment or decrement would overflow")
    ctx.commit(("hset", ctx.db.index, argv[1], [argv[2], b"%d" % value]))
    HASH.changed(ctx, argv[1], "hincrby", 1)
    return value


@HASH.command(
    "hscan",
    -3,
    "readonly",
    "2.8.0",
    "key cursor:integer [MATCH pattern] [COUNT count:integer] [NOVALUES]@!7.4.0",
    "Walks the fields of a hash.",
)
def hscan(ctx: Context, argv: list[bytes]) -> Reply:
    """Everything in one step, whatever COUNT says: hashes here are small.

    So does Redis while a hash is a listpack. The cursor is read and its place does not matter: a client that goes on
    from an old one gets all fields again, which SCAN's promise allows.
    """
    cursor(argv[2])
    pattern, with_values, at = b"*", True, 3
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"NOVALUES":
            with_values = False
            at += 1
            continue
        if word not in {b"MATCH", b"COUNT"} or at + 1 == len(argv):
            raise SYNTAX
        if word == b"MATCH":
            pattern = argv[at + 1]  # the last one counts
        elif integer(argv[at + 1]) < 1:
            raise SYNTAX
        at += 2
    fits, answer = matcher(pattern), list[Reply]()
    for field, value in _fields(ctx, argv[1]).items():
        if fits(field):
            answer += [field, value] if with_values else [field]
    return [b"0", answer]
