"""CLIENT: list connections, name the client's own one, and act on others.

A line of CLIENT LIST has Redis's fields in Redis's order, if they exist here. Tools split it at blanks and ``=``, so
names may contain neither blanks nor control characters. Filters of CLIENT KILL are functions of a session, so any
number of them can be combined.

Source: https://redis.io/docs/latest/commands/client-list/ and its siblings.
"""

from collections.abc import Callable, Iterable

from millstream.commands.connection.connection import BAD_NAME, is_printable
from millstream.commands.context.context import Context
from millstream.commands.context.session import Session
from millstream.commands.table.args import SYNTAX, bad_subcommand, integer, keyword, milliseconds, read_integer
from millstream.commands.table.table import CONNECTION
from millstream.commands.users.accounts import DEFAULT
from millstream.errors import CommandError
from millstream.replies import OK, Reply, Verbatim

# Tests whether a filter of CLIENT KILL or LIST selects a session
Test = Callable[[Session], bool]

_KINDS = {b"normal", b"pubsub", b"master", b"replica", b"slave"}

CONNECTION.container("client")


def _shown(word: bytes) -> str:
    """A name as C prints it, up to its first NUL."""
    return _text(word.partition(b"\0")[0])


def _text(word: bytes) -> str:
    """Decode bytes to text that can be encoded to the same bytes."""
    return word.decode("utf-8", "surrogateescape")


def flags_of(session: Session) -> str:
    """The letters of CLIENT LIST's flags, joined without a blank; ``N`` if there are none."""
    letters = (
        ("S", session.is_replica),
        ("M", session.is_primary),
        ("P", session.is_subscribed),
        ("b", session.blocked and not session.parked),
        ("x", session.queue is not None),
        ("d", session.watch_broken or session.parked),
        ("c", session.closing),
        ("U", session.is_unix),
        ("e", session.no_evict),
        ("T", session.no_touch),
    )
    return "".join(letter for letter, holds in letters if holds) or "N"


def describe(session: Session, wall: int) -> str:
    """One line of CLIENT LIST: the fields that exist here, in Redis's order, without secrets.

    Ages are in whole seconds, and never negative, though the clock may have been set back.
    """
    traffic = session.traffic()
    fields: list[tuple[str, object]] = [
        ("id", session.id),
        ("addr", session.addr),
        ("laddr", session.laddr),
        ("fd", traffic.descriptor),
        ("name", _shown(session.name)),
        ("age", max(wall - session.created, 0) // 1000),
        ("idle", max(wall - session.last_used, 0) // 1000),
        ("flags", flags_of(session)),
        ("db", session.db),
        ("sub", len(session.channels)),
        ("psub", len(session.patterns)),
        ("ssub", 0),
        ("multi", -1 if session.queue is None else len(session.queue)),
        ("watch", len(session.watched)),
        ("qbuf", traffic.unread),
        ("omem", traffic.untaken),
        ("tot-mem", session.memory),
        ("events", "rw" if traffic.untaken else "r"),
        ("cmd", session.last_command or "NULL"),
        ("user", _text(session.user or b"default")),
        ("redir", -1),
        ("resp", session.resp),
        ("lib-name", _shown(session.lib_name)),
        ("lib-ver", _shown(session.lib_ver)),
        ("io-thread", 0),
        ("tot-net-in", traffic.received),
        ("tot-net-out", traffic.sent),
        ("tot-cmds", session.commands),
        ("read-events", traffic.reads),
    ]
    return " ".join(f"{name}={value}" for name, value in fields)


def _lines(sessions: Iterable[Session], wall: int) -> Verbatim:
    """Lines of CLIENT LIST, as verbatim text in RESP3."""
    text = "".join(describe(session, wall) + "\n" for session in sessions)
    return Verbatim(text.encode("utf-8", "surrogateescape"))


def _by_kind(word: bytes, wall: int = 0) -> Test:  # noqa: ARG001 - all filters share one signature
    """Filter sessions by kind."""
    kind = keyword(word).lower()
    if kind not in _KINDS:
        raise CommandError(f"ERR Unknown client type '{_text(word)}'")
    return lambda session: kind.replace(b"slave", b"replica") == _kind(session)


def _kind(session: Session) -> bytes:
    if session.is_replica:
        return b"replica"
    if session.is_primary:
        return b"master"
    return b"pubsub" if session.is_subscribed else b"normal"


@CONNECTION.command("client|id", 2, "noscript loading stale")
def client_id(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The session's id. Ids ascend and are never reused while the server runs: the larger of two is newer."""
    return ctx.session.id


@CONNECTION.command("client|info", 2, "noscript loading stale")
def client_info(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The session's line of CLIENT LIST."""
    return _lines([ctx.session], ctx.now.wall)


@CONNECTION.command("client|list", -2, "admin noscript loading stale")
def client_list(ctx: Context, argv: list[bytes]) -> Reply:
    """One line for each session, oldest first.

    An unknown id is left out, but an argument that is not a positive number is an error.
    """
    sessions = list(ctx.host.sessions)
    word = keyword(argv[2]) if len(argv) > 2 else b""
    if word == b"TYPE" and len(argv) == 4:
        sessions = list(filter(_by_kind(argv[3]), sessions))
    elif word == b"ID" and len(argv) > 3:
        wanted = {read_integer(each) for each in argv[3:]}
        if not all(each is not None and each > 0 for each in wanted):
            raise CommandError("ERR Invalid client ID")
        sessions = [session for session in sessions if session.id in wanted]
    elif len(argv) > 2:
        raise SYNTAX
    return _lines(sessions, ctx.now.wall)


@CONNECTION.command("client|setname", 3, "noscript loading stale")
def client_setname(ctx: Context, argv: list[bytes]) -> Reply:
    """OK; an empty name removes the name. Names need not be unique; they are for people who read CLIENT LIST."""
    if not is_printable(argv[2]):
        raise CommandError(BAD_NAME)
    ctx.session.name = argv[2]
    return OK


@CONNECTION.command("client|getname", 2, "noscript loading stale")
def client_getname(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The session's name; null if it has none."""
    return ctx.session.name or None


@CONNECTION.command("client|setinfo", 4, "noscript loading stale")
def client_setinfo(ctx: Context, argv: list[bytes]) -> Reply:
    """OK; CLIENT LIST shows it. Clients send it automatically when they connect, so any client library is accepted."""
    attribute = keyword(argv[2]).lower()
    if attribute not in {b"lib-name", b"lib-ver"}:
        raise CommandError(f"ERR Unrecognized option '{_text(argv[2])}'")
    if not is_printable(argv[3]):
        raise CommandError(f"ERR {attribute.decode()} cannot contain spaces, newlines or special characters.")
    if attribute == b"lib-name":
        ctx.session.lib_name = argv[3]
    else:
        ctx.session.lib_ver = argv[3]
    return OK


def _on_off(word: bytes) -> bool:
    """True for ON, False for OFF; any other argument is a syntax error."""
    if keyword(word) not in {b"ON", b"OFF"}:
        raise SYNTAX
    return keyword(word) == b"ON"


@CONNECTION.command("client|no-evict", 3, "admin noscript loading stale")
def client_no_evict(ctx: Context, argv: list[bytes]) -> Reply:
    """Keep this connection when the clients pass ``maxmemory-clients``."""
    ctx.session.no_evict = _on_off(argv[2])
    return OK


@CONNECTION.command("client|no-touch", 3, "noscript loading stale")
def client_no_touch(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a mark that CLIENT LIST shows; it has no other effect, since keys have no access times here."""
    ctx.session.no_touch = _on_off(argv[2])
    return OK


@CONNECTION.command("client|reply", 3, "noscript loading stale")
def client_reply(ctx: Context, argv: list[bytes]) -> Reply:
    """OFF and SKIP have no reply; SKIP also suppresses the next command's.

    SKIP while replies are off changes nothing; otherwise replies would be on after it.
    """
    word = keyword(argv[2])
    if word not in {b"ON", b"OFF", b"SKIP"}:
        raise SYNTAX
    if word != b"SKIP" or ctx.session.reply_mode != "off":
        ctx.session.reply_mode = word.decode().lower()
    return OK


@CONNECTION.command("client|unblock", -3, "admin noscript loading stale")
def client_unblock(ctx: Context, argv: list[bytes]) -> Reply:
    """1 if the session waited, else 0.

    TIMEOUT ends the wait like a timeout, ERROR with an UNBLOCKED error, which the client can recognize. A client that
    CLIENT PAUSE holds back does not count as waiting.
    """
    if len(argv) > 4:
        raise bad_subcommand("CLIENT", argv[1])
    reason = keyword(argv[3]) if len(argv) == 4 else b"TIMEOUT"
    if reason not in {b"TIMEOUT", b"ERROR"}:
        raise CommandError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    return int(ctx.host.unblock(integer(argv[2]), reason == b"ERROR", ctx.now.wall))


def _by_id(word: bytes, wall: int) -> Test:  # noqa: ARG001 - all filters share one signature
    """Filter by a session's id."""
    wanted = read_integer(word)
    if wanted is None or wanted < 1:
        raise CommandError("ERR client-id should be greater than 0")
    return lambda session: session.id == wanted


def _by_addr(word: bytes, wall: int) -> Test:  # noqa: ARG001 - all filters share one signature
    """Filter sessions by their remote address, in CLIENT LIST's form."""
    return lambda session: session.addr == _text(word)


def _by_laddr(word: bytes, wall: int) -> Test:  # noqa: ARG001 - all filters share one signature
    """Filter sessions by the server's address to which they connected."""
    return lambda session: session.laddr == _text(word)


def _by_user(word: bytes, wall: int) -> Test:  # noqa: ARG001 - all filters share one signature
    """Filter sessions by user; one without a login counts as the default user's."""
    return lambda session: (session.user or DEFAULT) == word


def _by_age(word: bytes, wall: int) -> Test:
    """Filter sessions that have been connected for at least this many seconds."""
    seconds = integer(word, "ERR maxage is not an integer or out of range")
    if seconds < 1:
        raise CommandError("ERR maxage should be greater than 0")
    return lambda session: wall - session.created >= seconds * 1000


_FILTERS: dict[bytes, Callable[[bytes, int], Test]] = {
    b"ID": _by_id,
    b"TYPE": _by_kind,
    b"ADDR": _by_addr,
    b"LADDR": _by_laddr,
    b"USER": _by_user,
    b"MAXAGE": _by_age,
}


def _close(ctx: Context, session: Session) -> None:
    """Close a connection; the client's own one only after the reply, so that the client gets the result."""
    if session is ctx.session:
        session.closing = True
    else:
        ctx.host.kill(session)


@CONNECTION.command("client|kill", -3, "admin noscript loading stale")
def client_kill(ctx: Context, argv: list[bytes]) -> Reply:
    """The old form replies OK; the form with filters replies the number of closed connections.

    A session must pass all filters, also repeated ones. The client's own connection is skipped, unless SKIPME is
    ``no``. The old form closes it too, and fails if no client has the address; the new form replies 0 then.
    """
    # The number of arguments selects the form: a filter has at least two
    if len(argv) == 3:
        return _kill_one(ctx, argv[2])
    tests: list[Test] = []
    skip_me = True
    for at in range(2, len(argv), 2):
        if at + 1 == len(argv):
            raise SYNTAX
        name, word = keyword(argv[at]), argv[at + 1]
        if name == b"SKIPME" and keyword(word).lower() in {b"yes", b"no"}:
            skip_me = keyword(word).lower() == b"yes"
        elif name == b"USER" and ctx.host.accounts.get(word) is None:
            raise CommandError(f"ERR No such user '{_text(word)}'")
        elif name in _FILTERS:
            tests.append(_FILTERS[name](word, ctx.now.wall))
        else:
            raise SYNTAX
    # All filters have been parsed by now, so an invalid one closes no client
    chosen = [session for session in ctx.host.sessions if all(test(session) for test in tests)]
    if skip_me:
        chosen = [session for session in chosen if session is not ctx.session]
    for session in chosen:
        _close(ctx, session)
    return len(chosen)


def _kill_one(ctx: Context, addr: bytes) -> Reply:
    """Run the old form: one address, with a separate error text if no client has it."""
    for session in list(ctx.host.sessions):
        if session.addr == _text(addr):
            _close(ctx, session)
            return OK
    raise CommandError("ERR No such client")


@CONNECTION.command("client|pause", -3, "admin noscript loading stale")
def client_pause(ctx: Context, argv: list[bytes]) -> Reply:
    """Replies OK; a running pause is never shortened, but the new one chooses which commands it holds back.

    The node stores held commands with their sessions, and runs them in order when the pause is over.
    """
    if len(argv) > 4:
        raise bad_subcommand("CLIENT", argv[1])
    mode = keyword(argv[3]) if len(argv) == 4 else b"ALL"
    if mode not in {b"WRITE", b"ALL"}:
        raise CommandError("ERR CLIENT PAUSE mode must be WRITE or ALL")
    ctx.host.hold(milliseconds(argv[2], ctx.now.wall), ctx.now, mode == b"WRITE")
    return OK


@CONNECTION.command("client|unpause", 2, "admin noscript loading stale")
def client_unpause(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Replies OK, with or without a pause.

    During a pause of ALL it is itself held back, as in Redis: then only the timeout ends the pause.
    """
    ctx.host.unpause(ctx.now)
    return OK


CONNECTION.help("client")
