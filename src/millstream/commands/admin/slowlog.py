"""SLOWLOG: the slow commands. :mod:`millstream.commands.context.slowlog` decides which arguments are recorded.

Source: https://redis.io/docs/latest/commands/slowlog-get/ and its siblings.
"""

from itertools import islice

from millstream.commands.context.context import Context
from millstream.commands.context.slowlog import SlowEntry
from millstream.commands.table.args import bad_subcommand, integer
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError
from millstream.replies import OK, Reply

_BAD_COUNT = "ERR count should be greater than or equal to -1"
_SHOWN_AT_ONCE = 10

SERVER.container("slowlog")


@SERVER.command("slowlog|get", -2, "admin loading stale")
def slowlog_get(ctx: Context, argv: list[bytes]) -> Reply:
    """The slow commands, latest first, ten by default; all for -1.

    Each has its number, its end in seconds since 1970, its microseconds, its arguments, the client's address and name.
    """
    if len(argv) > 3:
        raise bad_subcommand("SLOWLOG", argv[1])
    count = integer(argv[2], _BAD_COUNT) if len(argv) == 3 else _SHOWN_AT_ONCE
    if count < -1:
        raise CommandError(_BAD_COUNT)
    entries = ctx.host.slowlog.entries
    return [_shown(entry) for entry in islice(entries, len(entries) if count == -1 else count)]


def _shown(entry: SlowEntry) -> Reply:
    return [entry.number, entry.ended, entry.microseconds, list[Reply](entry.words), entry.addr, entry.name]


@SERVER.command("slowlog|len", 2, "admin loading stale")
def slowlog_len(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The number of recorded commands, at most ``slowlog-max-len``."""
    return len(ctx.host.slowlog.entries)


@SERVER.command("slowlog|reset", 2, "admin loading stale")
def slowlog_reset(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Always OK; numbers of deleted entries are not used again."""
    ctx.host.slowlog.entries.clear()
    return OK


SERVER.help("slowlog")
