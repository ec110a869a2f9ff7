"""The command table: one row a command, from which dispatch, COMMAND and the compatibility page are made."""

from collections.abc import Callable, Iterator

from millstream.commands.table.args import shown
from millstream.commands.table.spec import Command, Handler
from millstream.errors import CommandError

TABLE: dict[bytes, Command] = {}


def command(
    name: str,
    arity: int,
    *,
    flags: str = "",
    keys: tuple[int, int, int] = (0, 0, 0),
    since: str,
    group: str,
    syntax: str = "",
    summary: str = "",
    acl: str = "",
    history: tuple[tuple[str, str], ...] = (),
    limited: str = "",
    differs: str = "",
) -> Callable[[Handler], Handler]:
    """Register the decorated handler under ``name``; ``flags`` and ``acl`` are space-separated lists.

    A name with ``|`` goes under its container, which must have been registered by :func:`container` before.
    """

    def register(handler: Handler) -> Handler:
        row = Command(name, arity, frozenset(flags.split()), keys, since, group, syntax, summary, handler)
        row.acl, row.history, row.limited, row.differs = frozenset(acl.split()), history, limited, differs
        head, _, sub = name.partition("|")
        home = TABLE[head.encode()].subcommands if sub else TABLE
        home[(sub or head).encode()] = row
        return handler

    return register


def container(name: str, *, since: str, group: str, summary: str = "", flags: str = "") -> None:
    """Register a command that exists only as its subcommands (XGROUP, XINFO, CLIENT, ...)."""
    TABLE[name.encode()] = Command(name, -2, frozenset(flags.split()), (0, 0, 0), since, group, "", summary, None)


def every() -> Iterator[Command]:
    """All rows, each container before its subcommands."""
    for row in TABLE.values():
        yield row
        yield from row.subcommands.values()


def find(argv: list[bytes]) -> Command | None:
    """The row for a command line, whatever the number of words; None if there is no such command or subcommand."""
    row = TABLE.get(argv[0]) or TABLE.get(argv[0].lower())
    if row is None or not row.subcommands or len(argv) < 2:
        return row
    return row.subcommands.get(argv[1].lower())


def resolve(argv: list[bytes]) -> Command:
    """The row for a command line.

    Raises:
        CommandError: unknown command, unknown subcommand or wrong number of words, in Redis's order and wording.
    """
    row = find(argv)
    if row is None:
        head = TABLE.get(argv[0].lower())
        if head is None:
            raise CommandError(_unknown_command(argv))
        name = shown(argv[1], 128)
        raise CommandError(f"ERR unknown subcommand '{name}'. Try {head.name.upper()} HELP.")
    row.check_arity(len(argv))
    return row


def _unknown_command(argv: list[bytes]) -> str:
    words = b""
    for word in argv[1:]:
        if len(words) >= 128:
            break
        words += b"'%b' " % word.partition(b"\0")[0][: 128 - len(words)]
    rest = words.decode("utf-8", "surrogateescape")
    return f"ERR unknown command '{shown(argv[0], 128)}', with args beginning with: {rest}"
