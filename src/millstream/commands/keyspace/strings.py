"""Commands on plain strings: SET GET SETNX SETEX PSETEX GETSET GETDEL GETEX MSET MGET APPEND GETRANGE ....

Clients and tools need strings next to streams (counters, locks, receipts); they are not meant as a cache.

Source: https://redis.io/docs/latest/commands/?group=string
"""

from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import change_expiry, delete_key, is_over
from millstream.commands.table.args import LLONG_MAX, SYNTAX, integer, keyword, read_integer
from millstream.commands.table.table import STRING
from millstream.engine.keyspace import StringValue, Transition
from millstream.errors import CommandError
from millstream.replies import OK, Reply

# Largest string in bytes (Redis: proto-max-bulk-len).
MAX_BYTES = 512 * 1024 * 1024
TIME_WORDS = {b"EX": (1000, False), b"PX": (1, False), b"EXAT": (1000, True), b"PXAT": (1, True)}


Death = tuple[bytes, int, bool]
"""An expiry time from a client: the argument, its unit in milliseconds, and True if it counts from 1970."""


def expiry(ctx: Context, given: Death | None, name: str) -> int | None:
    """Return the expiry time in wall milliseconds, None if none was given. The error text names the command."""
    if given is None:
        return None
    word, unit, absolute = given
    value = integer(word)
    if value <= 0 or value > LLONG_MAX // unit:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    at = value * unit + (0 if absolute else ctx.now.wall)
    if at > LLONG_MAX:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    return at


def get_string(ctx: Context, key: bytes) -> bytes | None:
    """Return the string at a key, or None. Another type is an error."""
    value = ctx.lookup_as(key, StringValue)
    return None if value is None else value.data


def put_string(ctx: Context, key: bytes, data: bytes, expires_at: int | None) -> None:
    """Replace the value at a key by a string, and end waits on the old value.

    The key loses its time to live unless a new one is given, as with SET. The caller publishes the event, since events
    differ.
    """
    before = ctx.db.keys.get(key)
    ctx.commit(("set", ctx.db.index, key, data, expires_at))
    ctx.signal(key)
    ctx.overwritten(key, before)
    ctx.dirty += 1


def change_part(ctx: Context, key: bytes, step: Transition, event: str) -> None:
    """Change a string by a transition that keeps its expiry time and contains only the changed part.

    So a log of APPENDs is as long as the appended data. Clients cannot wait for a string, so no key is signalled.
    """
    ctx.commit(step)
    ctx.touch(key)
    ctx.notify("$", event, key)
    ctx.dirty += 1


def check_length(size: int) -> None:
    """Refuse a string of more than 512 MB, Redis's default limit."""
    if size > MAX_BYTES:
        raise CommandError("ERR string exceeds maximum allowed size (proto-max-bulk-len)")


@dataclass(slots=True)
class _SetOptions:
    """SET's options."""

    only_new: bool = False  # NX
    only_old: bool = False  # XX
    keep_ttl: bool = False  # KEEPTTL
    get: bool = False  # GET
    expires: Death | None = None


def _set_options(words: list[bytes], *, gets: bool = True) -> _SetOptions:
    """Read the options of SET, in any order. Those of MSETEX are the same without GET.

    At most one option may set the expiry time, and only once. NX and XX exclude each other. NX NX and KEEPTTL KEEPTTL
    are valid, as in Redis.
    """
    options = _SetOptions()
    at = 0
    while at < len(words):
        word = keyword(words[at])
        free = options.expires is None and not options.keep_ttl
        if word == b"NX" and not options.only_old:
            options.only_new = True
        elif word == b"XX" and not options.only_new:
            options.only_old = True
        elif word == b"GET" and gets:
            options.get = True
        elif word == b"KEEPTTL" and options.expires is None:
            options.keep_ttl = True
        elif word in TIME_WORDS and free and at + 1 < len(words):
            options.expires = (words[at + 1], *TIME_WORDS[word])
            at += 1
        else:
            raise SYNTAX
        at += 1
    return options


@STRING.command("set", -3, "write denyoom")
def set_(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a string; NX and XX make it conditional, and GET returns the old value.

    The time is checked before the key. With GET the key must hold a string, even if NX then forbids the change; without
    GET, any type is replaced. GET together with NX returns the existing value, so null means "set"; without GET, null
    means "not set".

    KEEPTTL is read after the lookup, which may delete an expired key. A time in the past stores nothing and deletes the
    existing key with one ``del`` event. INFO counts an expired key in both cases, as Redis since 8.8.
    """
    options = _set_options(argv[3:])
    key, data = argv[1], argv[2]
    expires_at = expiry(ctx, options.expires, "set")
    found = get_string(ctx, key) if options.get else ctx.lookup(key)
    if found is None and options.get:
        ctx.missed(key)
    if (options.only_new and found is not None) or (options.only_old and found is None):
        return found if isinstance(found, bytes) else None
    if is_over(ctx, expires_at):
        ctx.host.lookups.expired += 1
        if found is not None:
            delete_key(ctx, key)
    else:
        if options.keep_ttl:
            expires_at = ctx.db.expires.get(key)
        put_string(ctx, key, data, expires_at)
        ctx.notify("$", "set", key)
        if options.expires is not None:
            ctx.notify("g", "expire", key)
    if options.get:
        return found if isinstance(found, bytes) else None
    return OK


@STRING.command("get", 2, "readonly fast")
def get(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string, or null."""
    return get_string(ctx, argv[1])


@STRING.command("setnx", 3, "write denyoom fast")
def setnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the string was set, 0 if the key holds a value of any type."""
    if ctx.lookup(argv[1]) is not None:
        return 0
    put_string(ctx, argv[1], argv[2], None)
    ctx.notify("$", "set", argv[1])
    return 1


def _set_for(ctx: Context, argv: list[bytes], unit: int, name: str) -> Reply:
    """Carry out SETEX and PSETEX, whose time comes before the value. They are older than SET's options."""
    expires_at = expiry(ctx, (argv[2], unit, False), name)
    ctx.lookup(argv[1])
    put_string(ctx, argv[1], argv[3], expires_at)
    ctx.notify("$", "set", argv[1])
    ctx.notify("g", "expire", argv[1])
    return OK


@STRING.command("setex", 4, "write denyoom")
def setex(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out SET with EX; the time comes before the value."""
    return _set_for(ctx, argv, 1000, "setex")


@STRING.command("psetex", 4, "write denyoom")
def psetex(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out SET with PX; the time comes before the value."""
    return _set_for(ctx, argv, 1, "psetex")


@STRING.command("getset", 3, "write denyoom fast")
def getset(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out SET with GET, under its old name. The type is checked, and the key loses its time to live."""
    before = get_string(ctx, argv[1])
    put_string(ctx, argv[1], argv[2], None)
    ctx.notify("$", "set", argv[1])
    return before


@STRING.command("getdel", 2, "write fast")
def getdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the deleted string, or null. For another type, return an error and keep the key."""
    found = get_string(ctx, argv[1])
    if found is not None:
        delete_key(ctx, argv[1])
    return found


def _getex_options(argv: list[bytes]) -> tuple[bool, Death | None]:
    """Return True if PERSIST was given, and the new expiry time or None. Both together are a syntax error."""
    persist = False
    expires: Death | None = None
    at = 2
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"PERSIST" and expires is None:
            persist = True
        elif word in TIME_WORDS and expires is None and not persist and at + 1 < len(argv):
            expires = (argv[at + 1], *TIME_WORDS[word])
            at += 1
        else:
            raise SYNTAX
        at += 1
    return persist, expires


@STRING.command("getex", -2, "write fast")
def getex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the string; a time in the past deletes the key after the reply.

    The key is checked before the time, so an invalid time for a missing key returns null. PERSIST for a key without an
    expiry time changes nothing and does not count as a change.
    """
    persist, expires = _getex_options(argv)
    key = argv[1]
    found = get_string(ctx, key)
    if found is None:
        return None
    if expires is not None:
        at = expiry(ctx, expires, "getex")
        if is_over(ctx, at):
            delete_key(ctx, key)
        else:
            change_expiry(ctx, key, at)
    elif persist and key in ctx.db.expires:
        change_expiry(ctx, key, None)
    return found


@STRING.command("mset", -3, "write denyoom", keys=(1, -1, 2))
def mset(ctx: Context, argv: list[bytes]) -> Reply:
    """Set all keys. Only a wrong number of arguments is an error.

    A key that is named twice is set twice: two events, two changes, the last value.
    """
    if len(argv) % 2 == 0:
        raise CommandError("ERR wrong number of arguments for 'mset' command")
    for at in range(1, len(argv), 2):
        ctx.lookup(argv[at])
        put_string(ctx, argv[at], argv[at + 1], None)
        ctx.notify("$", "set", argv[at])
    return OK


@STRING.command("msetnx", -3, "write denyoom", keys=(1, -1, 2))
def msetnx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if all keys were set, 0 if none was. Events and counts are those of MSET."""
    if len(argv) % 2 == 0:
        raise CommandError("ERR wrong number of arguments for 'msetnx' command")
    if any(ctx.lookup(key) is not None for key in argv[1::2]):
        return 0
    mset(ctx, argv)
    return 1


@STRING.command("mget", -2, "readonly fast", keys=(1, -1, 1))
def mget(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the strings; null for each key that does not exist or has another type."""
    found = (ctx.lookup(key) for key in argv[1:])
    return [value.data if isinstance(value, StringValue) else None for value in found]


@STRING.command("msetex", -4, "write denyoom movablekeys", keys=(0, 0, 0))
def msetex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if all keys were set; 0 if NX or XX forbade it for one of them, and then none was set."""
    count = read_integer(argv[1])
    if count is None or not 0 < count < 2**31:
        raise CommandError("ERR invalid numkeys value")
    if count * 2 > len(argv) - 2:
        raise CommandError("ERR wrong number of key-value pairs")
    pairs = argv[2 : 2 + count * 2]
    options = _set_options(argv[2 + count * 2 :], gets=False)
    expires_at = expiry(ctx, options.expires, "msetex")
    found = [ctx.lookup(key) is not None for key in pairs[::2]]
    if (options.only_new and any(found)) or (options.only_old and not all(found)):
        return 0
    for key, data in zip(pairs[::2], pairs[1::2], strict=True):
        put_string(ctx, key, data, ctx.db.expires.get(key) if options.keep_ttl else expires_at)
        ctx.notify("$", "set", key)
        if expires_at is not None:
            ctx.notify("g", "expire", key)
    return 1


@STRING.command("delex", -2, "write fast")
def delex(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1 if the key was deleted. Without a condition, the key may have any type."""
    if len(argv) not in {2, 4}:
        raise CommandError("ERR wrong number of arguments for 'delex' command")
    there = ctx.lookup(argv[1])
    if there is None:
        return 0
    if len(argv) == 4 and not _meets(there, argv):
        return 0
    delete_key(ctx, argv[1])
    return 1


def _meets(there: object, argv: list[bytes]) -> bool:
    """Return True if an existing key meets the condition of a DELEX."""
    condition = keyword(argv[2])
    if condition not in {b"IFEQ", b"IFNE"}:
        raise CommandError("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE")
    if not isinstance(there, StringValue):
        raise CommandError("ERR Key should be of string type if conditions are specified")
    return (there.data == argv[3]) == (condition == b"IFEQ")


@STRING.command("append", 3, "write denyoom fast")
def append(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length in bytes. A missing key is created, even for an empty value."""
    value = ctx.lookup_as(argv[1], StringValue)
    size = (0 if value is None else value.size) + len(argv[2])
    check_length(size)
    change_part(ctx, argv[1], ("append", ctx.db.index, argv[1], argv[2]), "append")
    return size


@STRING.command("strlen", 2, "readonly fast")
def strlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the length in bytes; 0 if the key does not exist."""
    value = ctx.lookup_as(argv[1], StringValue)
    return 0 if value is None else value.size


@STRING.command("substr", 4, "readonly")
@STRING.command("getrange", 4, "readonly")
def getrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the bytes between two positions, both included; negative positions count from the end."""
    start, end = integer(argv[2]), integer(argv[3])
    value = ctx.lookup_as(argv[1], StringValue)
    size = 0 if value is None else value.size
    if value is None or 0 > start > end:
        return b""
    # Redis treats an end before the first byte as the first byte; only previews of 8.0 differed
    start = max(start + size, 0) if start < 0 else start
    end = max(end + size, 0) if end < 0 else end
    return value.part(start, end + 1)


@STRING.command("setrange", 4, "write denyoom")
def setrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new length in bytes. An empty value changes nothing.

    The offset is checked before the key's type, and the length only if there is data to write. So an empty value
    creates no key and causes no error, however large the offset.
    """
    offset, part = integer(argv[2]), argv[3]
    if offset < 0:
        raise CommandError("ERR offset is out of range")
    value = ctx.lookup_as(argv[1], StringValue)
    size = 0 if value is None else value.size
    if not part:
        return size
    check_length(offset + len(part))
    change_part(ctx, argv[1], ("overwrite", ctx.db.index, argv[1], offset, part), "setrange")
    return max(size, offset + len(part))
