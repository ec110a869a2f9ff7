"""CLIENT TRACKING and similar commands: tracking does not exist here, so they reply as Redis does while it is off.

Clients with a local cache request tracking and must get an error. Other clients switch it off automatically when a
connection returns to its pool, and must not get one.

Source: https://redis.io/docs/latest/commands/client-tracking/
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, integer, keyword
from millstream.commands.table.table import CONNECTION
from millstream.errors import CommandError
from millstream.replies import OK, Map, Reply, Set

NOT_HERE = "ERR client tracking is not supported by Millstream"
_WORDS = frozenset({b"BCAST", b"OPTIN", b"OPTOUT", b"NOLOOP"})


def _check_options(ctx: Context, words: list[bytes]) -> None:
    """Refuse the options that Redis refuses, so a client's own mistake is reported before the missing feature."""
    redirect = at = 0
    while at < len(words):
        word = keyword(words[at])
        if word == b"REDIRECT" and at + 1 < len(words):
            at += 1
            if redirect:
                raise CommandError("ERR A client can only redirect to a single other client")
            redirect = integer(words[at])
            if all(session.id != redirect for session in ctx.host.sessions):
                raise CommandError("ERR The client ID you want redirect to does not exist")
        elif word == b"PREFIX" and at + 1 < len(words):
            at += 1
        elif word not in _WORDS:
            raise SYNTAX
        at += 1


@CONNECTION.command("client|tracking", -3, "noscript loading stale")
def client_tracking(ctx: Context, argv: list[bytes]) -> Reply:
    """OK to OFF, an error to ON; options are checked before that, as in Redis."""
    _check_options(ctx, argv[3:])
    word = keyword(argv[2])
    if word == b"ON":
        raise CommandError(NOT_HERE)
    if word != b"OFF":
        raise SYNTAX
    return OK


@CONNECTION.command("client|trackinginfo", 2, "noscript loading stale")
def client_trackinginfo(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Flags, the redirection's target, and the prefixes."""
    return Map([(b"flags", Set([b"off"])), (b"redirect", -1), (b"prefixes", [])])


@CONNECTION.command("client|caching", 3, "noscript loading stale")
def client_caching(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Redis's reply while tracking is off."""
    raise CommandError(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled"
    )


@CONNECTION.command("client|getredir", 2, "noscript loading stale")
def client_getredir(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Redis's reply while tracking is off."""
    return -1
