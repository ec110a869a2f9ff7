"""SAVE BGSAVE BGREWRITEAOF, for a server whose log is always on.

SAVE and BGSAVE sync the log to the disk at once. There is no second file to write: with ``--fsync always`` each
acknowledged write is on the disk already, and otherwise this sync brings it there. BGREWRITEAOF starts a rewrite of the
log. A server without a data directory refuses all three, since it could not store anything.

Source: https://redis.io/docs/latest/commands/save/, bgsave/ and bgrewriteaof/
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, keyword
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError, DiskFullError, StorageError
from millstream.node.host import NodeHost
from millstream.replies import OK, Reply, Simple

NOTHING_KEPT = "ERR nothing is kept: the server was started without a data directory"
_RUNS = "ERR Background append only file rewriting already in progress"
# As Redis says that it cannot fork
_NOT_BEGUN = "ERR Can't execute an AOF background rewriting. Please check the server logs for more information."


def save_log(ctx: Context) -> None:
    """Sync the log to the disk."""
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
    """OK once all earlier writes would survive a power cut, in every fsync mode."""
    save_log(ctx)
    return OK


@SERVER.command("bgsave", -1, "admin noscript")
def bgsave(ctx: Context, argv: list[bytes]) -> Reply:
    """Do the same as SAVE, with Redis's reply; it is done at the time of the reply, never scheduled."""
    if len(argv) > 1 and (len(argv) > 2 or keyword(argv[1]) != b"SCHEDULE"):
        raise SYNTAX
    save_log(ctx)
    return Simple(b"Background saving started")


@SERVER.command("bgrewriteaof", 1, "admin noscript")
def bgrewriteaof(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """A line that the rewrite has begun; INFO's ``aof_rewrite_in_progress`` and related fields show its end.

    A second one during the first is an error, as in Redis; it is never scheduled behind a save.
    """
    has_begun, rewriter = NodeHost.of(ctx).rewrite(), NodeHost.of(ctx).rewriter
    if rewriter is None:
        raise CommandError(NOTHING_KEPT)
    if not has_begun:
        raise CommandError(_RUNS if rewriter.facts.is_running else _NOT_BEGUN)
    return Simple(b"Background append only file rewriting started")
