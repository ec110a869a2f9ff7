"""DUMP and RESTORE: convert a key's value to bytes that can be stored elsewhere, and back.

DUMP writes Millstream's own format; RESTORE accepts it and the output of DUMP from Redis and Valkey. Redis cannot read
Millstream's format, and refuses it by its checksum.

A payload is logged in Millstream's format, so recovery never needs the reader of Redis's format, nor its limits.
RESTORE is the only command whose client sends a structure instead of values. So every rule is checked on loading, see
``engine/serialization/dump.py``. The transition of RESTORE loads the payload and refuses it before it changes anything,
so a payload in Millstream's format is loaded only once.

Source: https://redis.io/docs/latest/commands/dump/ and restore/
"""

from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import delete_key, is_over
from millstream.commands.table.args import LLONG_MAX, SYNTAX, integer, keyword
from millstream.commands.table.table import GENERIC
from millstream.engine.serialization import dump as dumping
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb import payload as redis_payload
from millstream.errors import CommandError
from millstream.replies import OK, Reply

BUSY_KEY = "BUSYKEY Target key name already exists."
BAD_PAYLOAD = "ERR DUMP payload version or checksum are wrong"
BAD_FORMAT = "ERR Bad data format"
BAD_TTL = "ERR Invalid TTL value, must be >= 0"


@GENERIC.command("dump", 2, "readonly")
def dump(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the value as bytes, without its time to live; null if the key does not exist."""
    value = ctx.lookup(argv[1])
    return None if value is None else dumping.dump(value)


@dataclass(slots=True)
class _Options:
    """RESTORE's options."""

    replace: bool = False  # REPLACE
    absolute: bool = False  # ABSTTL: the expiry is an absolute Unix time
    has_idle: bool = False  # IDLETIME was given, which excludes FREQ
    has_frequency: bool = False  # FREQ was given, which excludes IDLETIME


def _options(words: list[bytes]) -> _Options:
    """Read the options after the payload. IDLETIME and FREQ are checked but have no effect: keys are never evicted."""
    found = _Options()
    at = 0
    while at < len(words):
        word, has_more = keyword(words[at]), at + 1 < len(words)
        if word == b"REPLACE":
            found.replace = True
        elif word == b"ABSTTL":
            found.absolute = True
        elif word == b"IDLETIME" and has_more and not found.has_frequency:
            at += 1
            if integer(words[at]) < 0:
                raise CommandError("ERR Invalid IDLETIME value, must be >= 0")
            found.has_idle = True
        elif word == b"FREQ" and has_more and not found.has_idle:
            at += 1
            if not 0 <= integer(words[at]) <= 255:
                raise CommandError("ERR Invalid FREQ value, must be >= 0 and <= 255")
            found.has_frequency = True
        else:
            raise SYNTAX
        at += 1
    return found


def _in_our_form(ctx: Context, payload: bytes) -> bytes:
    """Return a payload in Millstream's format, as it is logged."""
    is_ours = dumping.is_ours(payload)
    if not (dumping if is_ours else redis_payload).is_whole(payload):
        raise CommandError(BAD_PAYLOAD)
    if is_ours:
        return payload
    config = ctx.host.config
    return dumping.dump(redis_payload.load(payload, config.idmp_duration, config.idmp_maxsize))


@GENERIC.command("restore", -4, "write denyoom", acl="dangerous")
def restore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return OK. If the time to live has already passed, no key remains.

    The checks run in this order: options, an existing key without REPLACE, the time, the payload. So BUSYKEY does not
    depend on the payload. A time in the past deletes the existing key and creates none, but the payload must still be
    valid.
    """
    key = argv[1]
    options = _options(argv[4:])
    old = ctx.lookup(key)
    if old is not None and not options.replace:
        raise CommandError(BUSY_KEY)
    ttl = integer(argv[2])
    base = 0 if options.absolute else ctx.now.wall
    if not 0 <= ttl <= LLONG_MAX - base:
        raise CommandError(BAD_TTL)
    expires_at = base + ttl if ttl else None
    try:
        payload = _in_our_form(ctx, argv[3])
        if is_over(ctx, expires_at):
            dumping.load(payload)
            ctx.host.lookups.expired += 1
            if old is not None:
                delete_key(ctx, key)
            return OK
        ctx.host.weigh(len(payload))  # the payload must fit into one log record
        ctx.commit(("restore", ctx.db.index, key, payload, expires_at))
    except MalformedError:
        raise CommandError(BAD_FORMAT) from None
    ctx.signal(key)
    ctx.notify("g", "restore", key)
    ctx.overwritten(key, old)
    ctx.dirty += 1
    return OK
