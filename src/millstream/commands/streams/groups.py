"""XGROUP: creating, moving and deleting groups and consumers.

A group has a position in a stream (``last_id``, the last delivered id) and its pending records. It has a count
(``entries_read``, -1 for unknown), from which the lag is computed. Names of groups and consumers are any bytes, even
none.

The order of errors differs between the subcommands as it does in Redis: options first, then the missing key, then the
id; the docstrings of the handlers name the exceptions.

Source: https://redis.io/docs/latest/commands/xgroup/ and, where it differs, the server's behaviour.
"""

from millstream.commands.context.context import Context
from millstream.commands.streams.write import create_stream
from millstream.commands.table.args import bad_subcommand, entry_id, integer, is_sign, keyword, shown
from millstream.commands.table.table import STREAM
from millstream.engine import ids
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.replies import OK, Reply

KEY_REQUIRED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option "
    "to create an empty stream automatically."
)

STREAM.container("xgroup")


def _existing(ctx: Context, key: bytes) -> Stream:
    """Return the stream, which must exist.

    Only XGROUP has an error text that suggests MKSTREAM, also for subcommands without that option.
    """
    stream = ctx.lookup_as(key, Stream)
    if stream is None:
        raise CommandError(KEY_REQUIRED)
    return stream


def group_of(stream: Stream, key: bytes, name: bytes) -> Group:
    """Return the group, which must exist."""
    group = stream.groups.get(name)
    if group is None:
        raise CommandError(f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'")
    return group


def _options(argv: list[bytes], *, may_create: bool) -> tuple[bool, int]:
    """Parse MKSTREAM and ENTRIESREAD, from the fifth argument on.

    An unknown option has the error of an unknown subcommand, not of syntax, as in Redis.
    """
    make, entries_read = False, UNKNOWN
    at = 5
    while at < len(argv):
        word = keyword(argv[at])
        if may_create and word == b"MKSTREAM":
            make = True
            at += 1
        elif word == b"ENTRIESREAD" and at + 1 < len(argv):
            entries_read = integer(argv[at + 1])
            if entries_read < UNKNOWN:
                raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
            at += 2
        else:
            raise bad_subcommand("XGROUP", argv[1])
    return make, entries_read


@STREAM.command("xgroup|create", -5, "write denyoom", keys=(2, 2, 1))
def xgroup_create(ctx: Context, argv: list[bytes]) -> Reply:
    """Create a group; replies OK.

    The id is parsed even if the group exists, and BUSYGROUP comes last. Most clients create their group at every start,
    and rely on BUSYGROUP to mean that everything else was right.

    ENTRIESREAD above the number of entries ever added is cut to that; older Redis kept it, which made the lag
    meaningless.
    """
    make, entries_read = _options(argv, may_create=True)
    key, name, word = argv[2], argv[3], argv[4]
    stream = ctx.lookup_as(key, Stream) if make else _existing(ctx, key)
    if len(argv) > 8:  # an option is repeated; Redis checks the number of arguments only now
        raise bad_subcommand("XGROUP", argv[1])
    last = (0 if stream is None else stream.last_id) if is_sign(word, b"$") else entry_id(word)
    if stream is None:
        stream = create_stream(ctx, key)
        ctx.signal(key)
    if name in stream.groups:
        raise CommandError("BUSYGROUP Consumer Group name already exists")
    if not ctx.obeys:  # a primary's count is valid, even if XSETID has lowered entries_added
        entries_read = min(entries_read, stream.entries_added)
    ctx.commit(("gnew", ctx.db.index, key, name, ids.pack(last), entries_read))
    ctx.notify("t", "xgroup-create", key)
    ctx.dirty += 1
    return OK


@STREAM.command("xgroup|setid", -5, "write", keys=(2, 2, 1))
def xgroup_setid(ctx: Context, argv: list[bytes]) -> Reply:
    """Move a group's position; replies OK.

    ``-`` and ``+`` are ids here, as in ranges and unlike with CREATE. Clients that wait in XREADGROUP are not woken,
    though there may be entries now, as in Redis. Without ENTRIESREAD the count and the lag become unknown, unless the
    stream's ends give the count.
    """
    _, entries_read = _options(argv, may_create=False)
    key, name, word = argv[2], argv[3], argv[4]
    stream = _existing(ctx, key)
    group_of(stream, key, name)
    if len(argv) > 7:
        raise bad_subcommand("XGROUP", argv[1])
    if is_sign(word, b"$"):
        last = stream.last_id
    else:
        found = ids.parse_special(word)
        if found is None:
            raise CommandError(ids.INVALID)
        last = found
    if not ctx.obeys:  # a primary's count is valid, even if XSETID has lowered entries_added
        entries_read = min(entries_read, stream.entries_added)
    ctx.commit(("gset", ctx.db.index, key, name, ids.pack(last), entries_read))
    ctx.notify("t", "xgroup-setid", key)
    ctx.dirty += 1
    return OK


@STREAM.command("xgroup|destroy", 4, "write", keys=(2, 2, 1))
def xgroup_destroy(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a group; replies 1, or 0 if there is none.

    Clients that wait in XREADGROUP are woken and get NOGROUP. A WATCH of the key does not break, as in Redis, hence
    ``wake`` and not ``signal``.
    """
    key, name = argv[2], argv[3]
    stream = _existing(ctx, key)
    if name not in stream.groups:
        return 0
    ctx.commit(("gdel", ctx.db.index, key, name))
    ctx.notify("t", "xgroup-destroy", key)
    ctx.wake(key)
    ctx.dirty += 1
    return 1


@STREAM.command("xgroup|createconsumer", 5, "write denyoom", keys=(2, 2, 1))
def xgroup_createconsumer(ctx: Context, argv: list[bytes]) -> Reply:
    """Create a consumer; replies 1, or 0 if it exists.

    Reading and claiming create one too, so few clients need this.
    """
    key, name, consumer = argv[2], argv[3], argv[4]
    group = group_of(_existing(ctx, key), key, name)
    if consumer in group.consumers:
        return 0
    ctx.commit(("cseen", ctx.db.index, key, name, consumer, ctx.now.wall))
    ctx.notify("t", "xgroup-createconsumer", key)
    ctx.dirty += 1
    return 1


@STREAM.command("xgroup|delconsumer", 5, "write", keys=(2, 2, 1))
def xgroup_delconsumer(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a consumer; replies the number of its deleted pending records.

    The group loses these records too: no consumer gets the entries again. A client that wants to keep them claims them
    first. Records released by XNACK have no owner, and stay.
    """
    key, name, consumer = argv[2], argv[3], argv[4]
    group = group_of(_existing(ctx, key), key, name)
    if consumer not in group.consumers:
        return 0
    dropped: int = ctx.commit(("cdel", ctx.db.index, key, name, consumer))
    ctx.notify("t", "xgroup-delconsumer", key)
    ctx.dirty += 1
    return dropped


STREAM.help("xgroup")
