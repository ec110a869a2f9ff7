"""Commands about the running server: INFO LASTSAVE SHUTDOWN CONFIG RESETSTAT.

Source: https://redis.io/docs/latest/commands/?group=server
"""

from millstream.commands.context.context import Blocked, Context
from millstream.commands.table.args import SYNTAX, keyword
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError
from millstream.node.host import NodeHost
from millstream.replies import OK, Error, Reply, Verbatim

_NOT_ENDED = Error("ERR Errors trying to SHUTDOWN. Check logs.")


@SERVER.command("info", -1, "loading stale", acl="dangerous")
def info(ctx: Context, argv: list[bytes]) -> Reply:
    """Text of ``name:value`` lines in sections; unknown sections are left out, as in Redis."""
    words = [word.decode("utf-8", "surrogateescape") for word in argv[1:]]
    text = NodeHost.of(ctx).info(words, ctx.now)
    return Verbatim(text.encode("utf-8", "surrogateescape"))


@SERVER.command("lastsave", 1, "loading stale fast", acl="admin dangerous")
def lastsave(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Seconds since 1970 of the last sync of the log, or of the start without a log."""
    return NodeHost.of(ctx).last_save()


@SERVER.command("shutdown", -1, "admin noscript loading stale no_multi")
def shutdown(ctx: Context, argv: list[bytes]) -> Reply:
    """No reply but the end of the connection; everything is on disk first, whatever the options.

    The server waits for lagging replicas, at most ``shutdown-timeout`` seconds (NOW: not at all), and holds writers
    back meanwhile. ABORT ends that wait, with an error to the clients that sent SHUTDOWN. NOSAVE and SAVE exclude each
    other, and like FORCE change nothing: the log is the data, and is synced.
    """
    words, ending = {keyword(word) for word in argv[1:]}, NodeHost.of(ctx).ending
    if words == {b"ABORT"}:
        if not ending.abort(ctx.now):
            raise CommandError("ERR No shutdown in progress.")
        return OK
    if not words <= {b"NOSAVE", b"SAVE", b"NOW", b"FORCE"} or words >= {b"NOSAVE", b"SAVE"}:
        raise SYNTAX
    if not ending.begin(ctx.now, at_once=b"NOW" in words):
        raise Blocked([], 0, argv, late=lambda: _NOT_ENDED, fulfilled=lambda: not ending.is_waiting, may_unblock=False)
    ctx.session.reply_mode = "off"
    ctx.session.closing = True
    return OK


@SERVER.command("config|resetstat", 2, "admin noscript loading stale")
def config_resetstat(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Reset INFO's counters of commands, errors, lookups, the network and refusals. Gauges keep their values."""
    NodeHost.of(ctx).reset_stats()
    return OK
