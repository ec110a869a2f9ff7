"""SAVE BGSAVE BGREWRITEAOF, for a server whose log is always on.

SAVE and BGSAVE bring the log to the disk, now. There is no second file to write: what Redis needs them for has happened
when a write is acknowledged (``--fsync always``), or happens here. BGREWRITEAOF has the log made smaller. A server
without a data directory refuses them, rather than say that something was kept.

Source: https://redis.io/docs/latest/commands/save/, bgsave/ and bgrewriteaof/
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, keyword
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError, DiskFullError, StorageError
from millstream.node.host import NodeHost
from millstream.replies import OK, Reply, Simple

NOTHING_KEPT = "ERR nothing is kept: the server was started without a data directory"


def save_log(ctx: Context) -> None:
    """Bring the log to the disk."""
    try:
        is_kept = NodeHost.of(ctx).save(ctx.now.wall)
    except DiskFullError as error:
        raise CommandError(f"MISCONF Errors writing to the AOF file: {error}") from None
    except StorageError as error:
        raise CommandError(f"ERR {error}") from None
    if not is_kept:
        raise CommandError(NOTHING_KEPT)


@SERVER.command("save", 1, "admin noscript no_multi")
def save(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """OK once all that was written so far would survive a power cut, in every fsync mode."""
    save_log(ctx)
    return OK


@SERVER.command("bgsave", -1, "admin noscript")
def bgsave(ctx: Context, argv: list[bytes]) -> Reply:
    """The same as SAVE, with Redis's answer; it is done when the answer comes, never scheduled."""
    if len(argv) > 1 and (len(argv) > 2 or keyword(argv[1]) != b"SCHEDULE"):
        raise SYNTAX
    save_log(ctx)
    return Simple(b"Background saving started")


@SERVER.command("bgrewriteaof", 1, "admin noscript")
def bgrewriteaof(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """A line that says that it has begun; INFO's ``aof_rewrite_in_progress`` and its neighbours say how it ends.

    A second one while the first runs is an error, as in Redis; there is no save behind which it could be scheduled.
    """
    has_begun = NodeHost.of(ctx).rewrite()
    if has_begun is None:
        raise CommandError(NOTHING_KEPT)
    if not has_begun:
        raise CommandError("ERR Background append only file rewriting already in progress")
    return Simple(b"Background append only file rewriting started")
