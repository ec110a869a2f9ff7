"""MULTI, DISCARD, WATCH and UNWATCH. The node runs EXEC and makes its one log record.

The node also queues commands. A command that cannot be queued (unknown, wrong number of arguments, refused by ACL)
makes EXEC fail as a whole; one that fails when it runs does not. WATCH compares no values: each change of a key breaks
its watches, so a key that was changed and changed back counts as changed.

Source: https://redis.io/docs/latest/develop/using-commands/transactions/
"""

from millstream.commands.context.context import Context
from millstream.commands.context.session import Queue
from millstream.commands.table.table import TRANSACTIONS
from millstream.errors import CommandError
from millstream.replies import OK, Reply

EXEC_WITHOUT_MULTI = "ERR EXEC without MULTI"


@TRANSACTIONS.command("multi", 1, "noscript loading stale fast")
def multi(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Queue commands from now on; replies OK. A second MULTI is an error that leaves the queue as it is."""
    if ctx.session.queue is not None:
        raise CommandError("ERR MULTI calls can not be nested")
    ctx.session.queue = Queue()
    return OK


@TRANSACTIONS.command("exec", 1, "noscript loading stale")
def exec_outside(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """EXEC without MULTI, an error; inside a transaction the node runs EXEC itself.

    One transaction is one record of the log: after a crash all of it is there or nothing.
    """
    raise CommandError(EXEC_WITHOUT_MULTI)


@TRANSACTIONS.command("discard", 1, "noscript loading stale fast")
def discard(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """End the transaction without running it; replies OK. Watches end with it, as with EXEC."""
    if ctx.session.queue is None:
        raise CommandError("ERR DISCARD without MULTI")
    end_transaction(ctx)
    return OK


def end_transaction(ctx: Context) -> None:
    """End the transaction and all watches; EXEC does so too, successful or not."""
    session = ctx.session
    session.queue = None
    session.queue_failed = False
    ctx.host.watches.drop(session)


@TRANSACTIONS.command("watch", -2, "noscript loading stale fast", keys=(1, -1, 1))
def watch(ctx: Context, argv: list[bytes]) -> Reply:
    """Watch keys; replies OK. The creation of a missing key breaks its watch."""
    if ctx.session.queue is not None:
        raise CommandError("ERR WATCH inside MULTI is not allowed")
    for key in argv[1:]:
        ctx.lookup(key)  # an expired key is deleted now, so that its deletion does not count as a change later
        ctx.host.watches.add(ctx.session, ctx.db.index, key)
    return OK


@TRANSACTIONS.command("unwatch", 1, "noscript loading stale fast")
def unwatch(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """End all watches and discard their breaks; replies OK, even without watches."""
    ctx.host.watches.drop(ctx.session)
    return OK
