"""Commands on the expiry of keys: EXPIRE PEXPIRE EXPIREAT PEXPIREAT TTL PTTL EXPIRETIME PEXPIRETIME PERSIST.

Times are stored as absolute wall milliseconds, whatever unit a client used. The log has the absolute time, so a key
that expired during a downtime is gone when the server is up again, as in Redis.

The eight commands that set or return a time share two handlers, each registered four times with a unit and an origin.

Source: https://redis.io/docs/latest/commands/expire/ and its siblings.
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import LLONG_MAX, LLONG_MIN, integer, keyword
from millstream.commands.table.table import GENERIC
from millstream.errors import CommandError
from millstream.replies import Reply


def delete_key(ctx: Context, key: bytes, event: str = "del") -> None:
    """Delete a key that exists, and wake the clients that wait on it."""
    ctx.commit(("unset", ctx.db.index, key))
    ctx.signal(key)
    ctx.notify("g", event, key)
    ctx.dirty += 1


def is_over(ctx: Context, at: int | None) -> bool:
    """Return True if the expiry time has passed, so the command must delete its key at once.

    It is always False for commands from a primary. A replica waits for its primary's DEL, since the two clocks differ.
    """
    return at is not None and at <= ctx.now.wall and not ctx.obeys


def change_expiry(ctx: Context, key: bytes, at: int | None) -> None:
    """Set or remove the expiry time of an existing key.

    No client waits for this change, but it invalidates WATCHes.
    """
    ctx.commit(("expire", ctx.db.index, key, at))
    ctx.touch(key)
    ctx.notify("g", "persist" if at is None else "expire", key)
    ctx.dirty += 1


def _conditions(words: list[bytes]) -> frozenset[bytes]:
    """Read NX, XX, GT and LT after the time. The order of the checks and their error texts are Redis's."""
    chosen = set()
    for word in words:
        option = keyword(word)
        if option not in {b"NX", b"XX", b"GT", b"LT"}:
            raise CommandError(f"ERR Unsupported option {word.decode('utf-8', 'surrogateescape')}")
        chosen.add(option)
    if b"NX" in chosen and len(chosen) > 1:
        raise CommandError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= chosen:
        raise CommandError("ERR GT and LT options at the same time are not compatible")
    return frozenset(chosen)


def _allowed(conditions: frozenset[bytes], present: int | None, wanted: int) -> bool:
    """Return True if the conditions allow the expiry time ``wanted`` in place of ``present`` (None: never).

    "Never" is later than any time: GT refuses to shorten it, LT always may.
    """
    if b"NX" in conditions:
        return present is None
    if b"XX" in conditions and present is None:
        return False
    if b"GT" in conditions:
        return present is not None and wanted > present
    return not (b"LT" in conditions and present is not None and wanted >= present)


def _expire(ctx: Context, argv: list[bytes], unit: int, name: str, *, absolute: bool) -> Reply:
    """Set the expiry time of a key; return 1 if it was set.

    Options are checked before the time, and the time before the key. A time in the past deletes the key at once: the
    event is ``del``, not ``expire``, and the reply is 1.
    """
    conditions = _conditions(argv[3:])
    value = integer(argv[2])
    at = value * unit
    base = 0 if absolute else ctx.now.wall
    if not LLONG_MIN <= at <= LLONG_MAX - base:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    at += base
    key = argv[1]
    if ctx.lookup(key) is None or not _allowed(conditions, ctx.db.expires.get(key), at):
        return 0
    if is_over(ctx, at):
        delete_key(ctx, key)
        return 1
    change_expiry(ctx, key, at)
    return 1


def _register_setter(name: str, unit: int, *, absolute: bool) -> None:
    """Register one of the four commands that set an expiry time."""

    @GENERIC.command(name, -3, "write fast")
    def handler(ctx: Context, argv: list[bytes]) -> Reply:
        """Return 1 if the time was set. A time in the past deletes the key."""
        return _expire(ctx, argv, unit, name, absolute=absolute)


_register_setter("expire", 1000, absolute=False)
_register_setter("pexpire", 1, absolute=False)
_register_setter("expireat", 1000, absolute=True)
_register_setter("pexpireat", 1, absolute=True)


def _register_getter(name: str, unit: int, *, absolute: bool) -> None:
    """Register one of the four commands that return an expiry time."""

    @GENERIC.command(name, 2, "readonly fast")
    def handler(ctx: Context, argv: list[bytes]) -> Reply:
        """Return the time; -1 for a key without an expiry time, -2 if the key does not exist."""
        if ctx.lookup(argv[1]) is None:
            return -2
        at = ctx.db.expires.get(argv[1])
        if at is None:
            return -1
        value = at if absolute else max(at - ctx.now.wall, 0)
        # Rounded, as in Redis: 1,500 ms become 2 s
        return value if unit == 1 else (value + 500) // 1000


_register_getter("ttl", 1000, absolute=False)
_register_getter("pttl", 1, absolute=False)
_register_getter("expiretime", 1000, absolute=True)
_register_getter("pexpiretime", 1, absolute=True)


@GENERIC.command("persist", 2, "write fast")
def persist(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the expiry time was removed; 0 if the key has none or does not exist."""
    if ctx.lookup(argv[1]) is None or argv[1] not in ctx.db.expires:
        return 0
    change_expiry(ctx, argv[1], None)
    return 1
