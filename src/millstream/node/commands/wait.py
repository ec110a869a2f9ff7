"""WAIT and WAITAOF: wait until writes have reached replicas, or disks.

Both reply as soon as enough replicas have them, or at the timeout, with the number at that moment. A client sees in
that number, and not in an error, that fewer replicas have them. They wait for the writes of all clients so far, which
include this client's.

Sources: https://redis.io/docs/latest/commands/wait/, https://redis.io/docs/latest/commands/waitaof/
"""

from collections.abc import Callable

from millstream.commands.context.context import Blocked, Context
from millstream.commands.table.args import NOT_AN_INTEGER, integer, milliseconds, read_integer
from millstream.commands.table.table import GENERIC
from millstream.errors import CommandError
from millstream.node.commands.persistence import save_log
from millstream.node.host import NodeHost
from millstream.replies import Reply

_REPLICA = (
    "ERR {} cannot be used with replica instances. Please also note that {} are just local and are not propagated."
)
_SINCE_4 = "since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas"


def _wait(ctx: Context, argv: list[bytes], wanted: int, reply: Callable[[int], Reply], *, durable: bool) -> Reply:
    """Reply by the number of replicas that have the writes, or wait for more replicas."""
    replication = NodeHost.of(ctx).replication
    written = replication.written

    def there() -> int:
        return replication.count(written, durable=durable)

    if there() >= wanted or not ctx.may_block:
        return reply(there())
    timeout = milliseconds(argv[-1], ctx.now.wall)
    replication.ask(written)
    raise Blocked([], timeout, argv, late=lambda: reply(there()), fulfilled=lambda: there() >= wanted)


@GENERIC.command("wait", 3, "blocking", acl="connection", keys=(0, 0, 0))
def wait(ctx: Context, argv: list[bytes]) -> Reply:
    """The number of replicas that have the writes, once enough have them or the timeout (0: never) is over.

    Without replicas and with timeout 0 it waits for ever, as in Redis: a client that requires replicas must not believe
    that its write is safe.
    """
    if ctx.host.is_replica:
        raise CommandError(_REPLICA.format("WAIT", _SINCE_4))
    wanted = integer(argv[1])
    milliseconds(argv[2], ctx.now.wall)
    return _wait(ctx, argv, wanted, int, durable=False)


@GENERIC.command("waitaof", 4, "blocking", acl="connection", keys=(0, 0, 0))
def waitaof(ctx: Context, argv: list[bytes]) -> Reply:
    """1 if the writes are on this server's disk, else 0, and the number of replicas with the writes on disk.

    With ``--fsync always`` every reply waits for the disk anyway; otherwise the log is synced now, with the errors of
    SAVE. Redis counts its own disk from version 7.2 on, if its AOF is on.
    """
    local, wanted = read_integer(argv[1]), read_integer(argv[2])
    if local is None:
        raise CommandError(NOT_AN_INTEGER)
    if local not in {0, 1}:
        raise CommandError("ERR value is out of range, value must between 0 and 1")
    if wanted is None or wanted < 0:
        raise CommandError("ERR value is out of range, must be positive")
    milliseconds(argv[3], ctx.now.wall)
    values = ctx.host.config.values
    if ctx.host.is_replica:
        raise CommandError(_REPLICA.format("WAITAOF", "writes to replicas"))
    if local and values["appendonly"] != "yes":
        raise CommandError("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    is_durable = values["appendonly"] == "yes" and values["appendfsync"] == "always"
    if local and not is_durable:
        save_log(ctx)
        is_durable = True
    return _wait(ctx, argv, wanted, lambda there: [int(is_durable), there], durable=True)
