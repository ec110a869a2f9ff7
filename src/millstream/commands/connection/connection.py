"""Commands about the client's own connection: PING ECHO HELLO AUTH SELECT QUIT RESET.

AUTH, HELLO, QUIT and RESET run without a user (``no_auth``), so anyone who can connect may see their replies and cause
their effects.

Source: https://redis.io/docs/latest/commands/?group=connection
"""

from millstream.commands.admin.info import REDIS_VERSION
from millstream.commands.connection.transactions import end_transaction
from millstream.commands.context.context import Context, Origin
from millstream.commands.table.args import SYNTAX, database_number, keyword, read_integer
from millstream.commands.table.table import CONNECTION
from millstream.commands.users.accounts import DEFAULT
from millstream.errors import CommandError
from millstream.replies import OK, PONG, Map, Reply, Simple

BAD_NAME = "ERR Client names cannot contain spaces, newlines or special characters."
_AUTH_WITHOUT_NEED = (
    "ERR AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?"
)
_HELLO_NEEDS_AUTH = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> "
    "option can be used to authenticate the client and select the RESP protocol version at the same time"
)


def is_printable(word: bytes) -> bool:
    """True if a name can appear in CLIENT LIST: visible ASCII without blanks, up to the first NUL."""
    return all(0x21 <= byte <= 0x7E for byte in word.partition(b"\0")[0])


def _authenticate(ctx: Context, asked: bytes, user: bytes, password: bytes) -> None:
    """Make the session a user's.

    The error does not reveal if the name or the password was wrong, and takes the same time. ACL LOG has the name,
    never the password.
    """
    if not ctx.host.accounts.accepts(user, password):
        context = "toplevel" if ctx.may_block else "multi"
        ctx.host.note_refusal(ctx.session, "auth", asked, user, ctx.now, context)
        raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
    ctx.session.user = user


@CONNECTION.command("ping", -1, "fast")
def ping(ctx: Context, argv: list[bytes]) -> Reply:
    """PONG, or the argument; with subscriptions in RESP2 an array of two.

    A RESP2 client that listens to channels reads everything as a message, so the reply has the form of one.
    """
    # The arity in the command table means "at least one"; Redis checks the upper limit in the command
    if len(argv) > 2:
        raise CommandError("ERR wrong number of arguments for 'ping' command")
    if ctx.session.resp == 2 and ctx.session.is_subscribed and ctx.origin is not Origin.SCRIPT:
        return [b"pong", argv[1] if len(argv) == 2 else b""]
    return argv[1] if len(argv) == 2 else PONG


@CONNECTION.command("echo", 2, "loading stale fast")
def echo(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The argument."""
    return argv[1]


@CONNECTION.command("auth", -2, "noscript loading stale fast no_auth")
def auth(ctx: Context, argv: list[bytes]) -> Reply:
    """OK; without a name, the default user is meant, with the password of the parameter ``requirepass``.

    A single argument is an error if the default user needs no password: otherwise, a client configured with a password
    would believe that it protects the server.
    """
    if len(argv) > 3:
        raise SYNTAX
    if len(argv) == 2 and ctx.host.accounts.default.nopass:
        raise CommandError(_AUTH_WITHOUT_NEED)
    _authenticate(ctx, argv[0], argv[1] if len(argv) == 3 else DEFAULT, argv[-1])
    return OK


@CONNECTION.command("hello", -1, "noscript loading stale fast no_auth")
def hello(ctx: Context, argv: list[bytes]) -> Reply:
    """Apply all or nothing: an error leaves the connection as it was.

    So options are read before anything changes, the version before the options, as in Redis. Without a user HELLO is
    refused unless it has AUTH. It reports ``redis`` and a version of Redis, since clients choose commands by these.
    """
    session = ctx.session
    version = session.resp
    if len(argv) > 1:
        wanted = read_integer(argv[1])
        if wanted is None:
            raise CommandError("ERR Protocol version is not an integer or out of range")
        if wanted not in {2, 3}:
            raise CommandError("NOPROTO unsupported protocol version")
        version = wanted
    name, credentials = _hello_options(argv)
    if credentials is not None:
        _authenticate(ctx, argv[0], *credentials)
    # AUTH above may just have set the user
    if session.user is None:
        raise CommandError(_HELLO_NEEDS_AUTH)
    if name is not None:
        session.name = name
    session.resp = version
    return Map(
        [
            (b"server", b"redis"),
            (b"version", REDIS_VERSION.encode()),
            (b"proto", version),
            (b"id", session.id),
            (b"mode", b"standalone"),
            (b"role", b"replica" if ctx.host.is_replica else b"master"),
            (b"modules", []),
        ]
    )


def _hello_options(argv: list[bytes]) -> tuple[bytes | None, tuple[bytes, bytes] | None]:
    """The name and the credentials given to HELLO; the last one of a repeated option counts."""
    name: bytes | None = None
    credentials: tuple[bytes, bytes] | None = None
    at = 2
    while at < len(argv):
        word, more = keyword(argv[at]), len(argv) - at - 1
        if word == b"AUTH" and more >= 2:
            credentials = (argv[at + 1], argv[at + 2])
            at += 3
        elif word == b"SETNAME" and more >= 1:
            name = argv[at + 1]
            if not is_printable(name):
                raise CommandError(BAD_NAME)
            at += 2
        else:
            shown = argv[at].decode("utf-8", "surrogateescape")
            raise CommandError(f"ERR Syntax error in HELLO option '{shown}'")
    return name, credentials


@CONNECTION.command("select", 2, "loading stale fast")
def select(ctx: Context, argv: list[bytes]) -> Reply:
    """OK for a database from 0 to 15. Inside MULTI it takes effect when EXEC runs it."""
    ctx.session.db = database_number(argv[1])
    return OK


@CONNECTION.command("quit", -1, "noscript loading stale fast no_auth")
def quit_(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """OK, after all replies so far; later commands on the connection are not run."""
    ctx.session.closing = True
    return OK


@CONNECTION.command("reset", 1, "noscript loading stale fast no_auth")
def reset(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """End the transaction, watches and subscriptions; return to RESP2 and database 0; clear name and login.

    Pools use it before they pass a connection on. CLIENT SETINFO's values stay, since they describe the library. Inside
    MULTI it runs and is not queued.
    """
    session = ctx.session
    end_transaction(ctx)
    for names, channels in ((session.channels, ctx.host.channels), (session.patterns, ctx.host.patterns)):
        for name in names:
            channels.leave(session, name)
        names.clear()
    # Later replies are RESP2 again, so the next user of a connection pool begins with HELLO
    session.db, session.resp, session.name = 0, 2, b""
    if session.reply_mode != "skipping":  # as in Redis, only RESET's own reply is suppressed
        session.reply_mode = "on"
    session.no_evict = session.no_touch = False
    session.user = ctx.host.accounts.first_user
    return Simple(b"RESET")
