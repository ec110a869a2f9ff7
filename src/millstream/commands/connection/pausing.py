"""CLIENT PAUSE and UNPAUSE: keep other clients' commands back for a while. What is held is the node's business.

Source: https://redis.io/docs/latest/commands/client-pause/
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import bad_subcommand, keyword, milliseconds
from millstream.commands.table.table import command
from millstream.errors import CommandError
from millstream.replies import OK, Reply


@command(
    "client|pause",
    -3,
    flags="admin noscript loading stale",
    since="3.0.0",
    group="connection",
    syntax="timeout:integer mode=[WRITE | ALL]@6.2.0",
    summary="Keeps commands back for some milliseconds.",
)
def client_pause(ctx: Context, argv: list[bytes]) -> Reply:
    """Replies OK; a pause that runs is never made shorter, but what it holds back is chosen anew."""
    if len(argv) > 4:
        raise bad_subcommand("CLIENT", argv[1])
    mode = keyword(argv[3]) if len(argv) == 4 else b"ALL"
    if mode not in {b"WRITE", b"ALL"}:
        raise CommandError("ERR CLIENT PAUSE mode must be WRITE or ALL")
    ctx.host.pause(milliseconds(argv[2], ctx.now.wall), ctx.now, writes_only=mode == b"WRITE")
    return OK


@command(
    "client|unpause",
    2,
    flags="admin noscript loading stale",
    since="6.2.0",
    group="connection",
    summary="Ends a pause.",
)
def client_unpause(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Replies OK, whether or not there was one; under a pause of ALL it is itself held back, as in Redis."""
    ctx.host.unpause(ctx.now)
    return OK
