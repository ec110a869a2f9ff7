"""WAIT and WAITAOF: has what I wrote arrived? There are no replicas; the local disk is what WAITAOF can wait for.

Both are answered with what is true now, and wait only for replicas that never come, until the time is up: a client sees
that its wish was not fulfilled, in the reply's number and not in an error.

Sources: https://redis.io/docs/latest/commands/wait/, https://redis.io/docs/latest/commands/waitaof/
"""

from millstream.commands.admin.persistence import save_log
from millstream.commands.context.context import Blocked, Context
from millstream.commands.table.args import NOT_AN_INTEGER, integer, milliseconds, read_integer
from millstream.commands.table.table import command
from millstream.errors import CommandError
from millstream.replies import Reply


@command(
    "wait",
    3,
    flags="blocking",
    since="3.0.0",
    group="generic",
    acl="connection",
    syntax="numreplicas:integer timeout:integer",
    summary="Waits for replicas, of which there are none.",
)
def wait(ctx: Context, argv: list[bytes]) -> Reply:
    """0, at once where none is asked for or nobody may wait, else when the time (0: never) is up.

    With 0 it waits for ever, as Redis without replicas does: a client that asks for replicas where there are none shall
    not believe that its write is safe.
    """
    wanted, timeout = integer(argv[1]), milliseconds(argv[2], ctx.now.wall)
    if wanted > 0 and ctx.may_block:
        raise Blocked([], timeout, argv, late=0)
    return 0


@command(
    "waitaof",
    4,
    flags="blocking",
    since="7.2.0",
    group="generic",
    acl="connection",
    syntax="numlocal:integer numreplicas:integer timeout:integer",
    summary="Waits until what was written is on this machine's disk, or on replicas, of which there are none.",
)
def waitaof(ctx: Context, argv: list[bytes]) -> Reply:
    """Whether it is on the disk here, and on how many replicas.

    With ``--fsync always`` a reply is not sent before what was written is on the disk; else it is brought there now,
    with the errors of SAVE.
    """
    local, wanted = read_integer(argv[1]), read_integer(argv[2])
    if local is None:
        raise CommandError(NOT_AN_INTEGER)
    if local not in {0, 1}:
        raise CommandError("ERR value is out of range, value must between 0 and 1")
    if wanted is None or wanted < 0:
        raise CommandError("ERR value is out of range, must be positive")
    timeout = milliseconds(argv[3], ctx.now.wall)
    values = ctx.host.config.values
    if local and values["appendonly"] != "yes":
        raise CommandError("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    is_durable = values["appendonly"] == "yes" and values["appendfsync"] == "always"
    if local and not is_durable:
        save_log(ctx)
        is_durable = True
    answer: Reply = [int(is_durable), 0]
    if wanted and ctx.may_block:
        raise Blocked([], timeout, argv, late=answer)
    return answer
