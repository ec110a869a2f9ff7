"""Commands on hashes: HSET HSETNX HGET HMGET HMSET HDEL HLEN HGETALL HKEYS HEXISTS HINCRBY HSETEX HGETDEL ....

A hash returns its fields in the order of their insertion, as Redis does for a small hash (listpack). Expiry times of
single fields (Redis 7.4) are not supported.

Source: https://redis.io/docs/latest/commands/?group=hash
"""

from fractions import Fraction

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family, key_count
from millstream.commands.table import long_double
from millstream.commands.table.args import LLONG_MAX, LLONG_MIN, SYNTAX, cursor, integer, keyword, read_integer, shown
from millstream.engine.collections import HashValue
from millstream.errors import CommandError
from millstream.glob import matcher
from millstream.replies import OK, Map, Reply

HASH = Family("hash", "h")


def _fields(ctx: Context, key: bytes) -> dict[bytes, bytes]:
    """Return the fields at a key; none if the key does not exist.

    This is the hash's own dictionary: never change it.
    """
    value = ctx.lookup_as(key, HashValue)
    return {} if value is None else value.fields


def _put(ctx: Context, argv: list[bytes], name: str) -> int:
    """Set the fields after the key; return the number of new fields.

    An odd number of arguments is refused before the key's type is checked. Every pair counts as a change, also one that
    sets the present value. A field that is named twice counts as new once.
    """
    if len(argv) % 2:
        raise CommandError(f"ERR wrong number of arguments for '{name}' command")
    before = _fields(ctx, argv[1])
    pairs = argv[2:]
    created = len(set(pairs[::2]).difference(before))
    ctx.commit(("hset", ctx.db.index, argv[1], pairs))
    HASH.changed(ctx, argv[1], "hset", len(pairs) // 2)
    return created


@HASH.command("hset", -4, "write denyoom fast")
def hset(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of new fields."""
    return _put(ctx, argv, "hset")


@HASH.command("hmset", -4, "write denyoom fast")
def hmset(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out HSET under its old name; return OK. The error names HMSET."""
    _put(ctx, argv, "hmset")
    return OK


@HASH.command("hsetnx", 4, "write denyoom fast")
def hsetnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the field was set. A missing key is created."""
    if argv[2] in _fields(ctx, argv[1]):
        return 0
    ctx.commit(("hset", ctx.db.index, argv[1], argv[2:]))
    HASH.changed(ctx, argv[1], "hset", 1)
    return 1


@HASH.command("hget", 3, "readonly fast")
def hget(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the value, or null."""
    return _fields(ctx, argv[1]).get(argv[2])


@HASH.command("hmget", -3, "readonly fast")
def hmget(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the values; null for each absent field."""
    found = _fields(ctx, argv[1])
    return [found.get(field) for field in argv[2:]]


@HASH.command("hdel", -3, "write fast")
def hdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of fields removed.

    Removing the last field deletes the key. A field that is named twice counts once.
    """
    found = _fields(ctx, argv[1])
    going = [field for field in dict.fromkeys(argv[2:]) if field in found]
    if going:
        HASH.removed(ctx, argv[1], ("hdel", ctx.db.index, argv[1], going), "hdel", len(going))
    return len(going)


@HASH.command("hlen", 2, "readonly fast")
def hlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of fields; 0 if the key does not exist."""
    return len(_fields(ctx, argv[1]))


@HASH.command("hgetall", 2, "readonly")
def hgetall(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map of the fields, in the order of their insertion."""
    return Map(list(_fields(ctx, argv[1]).items()))


@HASH.command("hkeys", 2, "readonly")
def hkeys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the names of the fields, in the order of their insertion."""
    return list(_fields(ctx, argv[1]))


@HASH.command("hvals", 2, "readonly")
def hvals(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the values, in the order of HKEYS."""
    return list(_fields(ctx, argv[1]).values())


@HASH.command("hexists", 3, "readonly fast")
def hexists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the field exists, else 0."""
    return int(argv[2] in _fields(ctx, argv[1]))


@HASH.command("hstrlen", 3, "readonly fast")
def hstrlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the length of the value in bytes; 0 if the field does not exist."""
    return len(_fields(ctx, argv[1]).get(argv[2], b""))


@HASH.command("hincrby", 4, "write denyoom fast")
def hincrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value; a missing field counts as 0.

    The increment is checked before the key. A field that is not a number has an error text of its own.
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


@HASH.command("hincrbyfloat", 4, "write denyoom fast")
def hincrbyfloat(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value in decimal, as it is stored; see INCRBYFLOAT."""
    step = long_double.read(argv[3])
    if step is None:
        raise CommandError("ERR value is not a valid float")
    if isinstance(step, float):
        raise CommandError("ERR value is NaN or Infinity")
    before = _fields(ctx, argv[1]).get(argv[2])
    value = Fraction(0) if before is None else long_double.read(before)
    if value is None:
        raise CommandError("ERR hash value is not a float")
    total = None if isinstance(value, float) else long_double.add(value, step)
    if total is None:
        raise CommandError("ERR increment would produce NaN or Infinity")
    data = long_double.text(total)
    ctx.commit(("hset", ctx.db.index, argv[1], [argv[2], data]))
    HASH.changed(ctx, argv[1], "hincrbyfloat", 1)
    return data


def _pairs_for(argv: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the condition of an HSETEX (empty if none) and its pairs."""
    condition, keeps, at = b"", False, 2
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"FIELDS" and at + 1 < len(argv):
            count = key_count(argv, at + 1, "ERR invalid number of fields")
            if count > 2**31 - 1:
                raise CommandError("ERR invalid number of fields")
            if len(argv) - at - 2 != count * 2:
                break
            return condition, argv[at + 2 :]
        if word in {b"FNX", b"FXX"}:
            if condition:
                raise CommandError("ERR Only one of FXX or FNX arguments can be specified")
            condition = word
        elif word == b"KEEPTTL":
            if keeps:
                raise CommandError("ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified")
            keeps = True
        else:
            raise CommandError(f"ERR unknown argument: {shown(argv[at])}")
        at += 1
    raise CommandError("ERR wrong number of arguments for 'hsetex' command")


@HASH.command("hsetex", -6, "write denyoom fast")
def hsetex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the fields were set. KEEPTTL has no effect, since fields have no expiry times."""
    condition, pairs = _pairs_for(argv)
    before = _fields(ctx, argv[1])
    if condition and any((field in before) != (condition == b"FXX") for field in pairs[::2]):
        return 0
    ctx.commit(("hset", ctx.db.index, argv[1], pairs))
    HASH.changed(ctx, argv[1], "hset", len(pairs) // 2)
    return 1


@HASH.command("hgetdel", -5, "write fast")
def hgetdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the removed values; null for each absent field. Removing the last field deletes the key.

    The key's type is checked before the other arguments.
    """
    found = _fields(ctx, argv[1])
    if keyword(argv[2]) != b"FIELDS":
        raise CommandError("ERR Mandatory argument FIELDS is missing or not at the right position")
    if key_count(argv, 3, "ERR Number of fields must be a positive integer") != len(argv) - 4:
        raise CommandError("ERR The `numfields` parameter must match the number of arguments")
    going = {field: found[field] for field in argv[4:] if field in found}
    if going:
        HASH.removed(ctx, argv[1], ("hdel", ctx.db.index, argv[1], list(going)), "hdel", len(going))
    return [going.pop(field, None) for field in argv[4:]]


@HASH.command("hscan", -3, "readonly")
def hscan(ctx: Context, argv: list[bytes]) -> Reply:
    """Return all fields in one step, for any COUNT.

    Redis does the same while a hash is a listpack. The cursor is checked but ignored. A client that continues from an
    old cursor receives all fields again, which the guarantees of SCAN allow.
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
            pattern = argv[at + 1]  # the last MATCH counts
        elif integer(argv[at + 1]) < 1:
            raise SYNTAX
        at += 2
    fits, answer = matcher(pattern), list[Reply]()
    for field, value in _fields(ctx, argv[1]).items():
        if fits(field):
            answer += [field, value] if with_values else [field]
    return [b"0", answer]
