"""Parts of strings: GETRANGE, SUBSTR, SETRANGE.

Source: https://redis.io/docs/latest/commands/getrange/ and its siblings.
"""

from millstream.commands.context.context import Context
from millstream.commands.keyspace.strings import change_part, check_length
from millstream.commands.table.args import integer
from millstream.commands.table.table import command
from millstream.engine.keyspace import StringValue
from millstream.errors import CommandError
from millstream.replies import Reply


def _part(ctx: Context, argv: list[bytes]) -> bytes:
    start, end = integer(argv[2]), integer(argv[3])
    value = ctx.lookup_as(argv[1], StringValue)
    size = 0 if value is None else value.size
    if value is None or 0 > start > end:
        return b""
    # Redis takes an end before the first byte for the first byte; 8.0 changed that, and took it back before its release
    start = max(start + size, 0) if start < 0 else start
    end = max(end + size, 0) if end < 0 else end
    return value.part(start, end + 1)


@command(
    "getrange",
    4,
    flags="readonly",
    keys=(1, 1, 1),
    since="2.4.0",
    group="string",
    syntax="key start:integer end:integer",
    summary="Answers a part of a string.",
)
def getrange(ctx: Context, argv: list[bytes]) -> Reply:
    """The bytes from one position to another, both included; negative ones count from the end."""
    return _part(ctx, argv)


@command(
    "substr",
    4,
    flags="readonly",
    keys=(1, 1, 1),
    since="1.0.0",
    group="string",
    syntax="key start:integer end:integer",
    summary="GETRANGE under its old name.",
)
def substr(ctx: Context, argv: list[bytes]) -> Reply:
    """As GETRANGE."""
    return _part(ctx, argv)


@command(
    "setrange",
    4,
    flags="write denyoom",
    keys=(1, 1, 1),
    since="2.2.0",
    group="string",
    syntax="key offset:integer value",
    summary="Overwrites a part of a string; what is missing before it becomes zero bytes.",
)
def setrange(ctx: Context, argv: list[bytes]) -> Reply:
    """The new length in bytes; an empty value changes nothing."""
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
