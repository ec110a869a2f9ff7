"""The command table: one row for each command, from which dispatch, COMMAND and the compatibility page are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from millstream.commands.table.args import shown
from millstream.commands.table.documents import documents
from millstream.commands.table.spec import Command, Handler
from millstream.errors import CommandError
from millstream.replies import Reply, Simple

TABLE: dict[bytes, Command] = {}


@dataclass(frozen=True)
class CommandGroup:
    """A group of COMMAND DOCS, with which its commands are registered."""

    group: str  # Name of the group
    letter: str = ""  # Class of its keyspace events, if it has one
    # First key, last key and step for commands that do not specify them
    keys: tuple[int, int, int] = (0, 0, 0)

    def command(
        self, name: str, arity: int, flags: str, *, keys: tuple[int, int, int] | None = None, acl: str = ""
    ) -> Callable[[Handler], Handler]:
        """Register the decorated handler as a command; ``documents.json`` describes it.

        Several rows may be stacked on one handler (DEL and UNLINK); the lowest is registered first. A name with ``|``
        belongs to its container, which :meth:`container` must have registered before.

        Returns:
            A decorator that returns the handler unchanged.
        """
        keys = self.keys if keys is None else keys

        def register(handler: Handler) -> Handler:
            row = Command(name, arity, frozenset(flags.split()), keys, self.group, handler, acl=frozenset(acl.split()))
            head, _, sub = name.partition("|")
            home = TABLE[head.encode()].subcommands if sub else TABLE
            home[(sub or head).encode()] = row
            return handler

        return register

    def container(self, name: str) -> None:
        """Register a command that exists only as its subcommands (XGROUP, XINFO, CLIENT, ...)."""
        TABLE[name.encode()] = Command(name, -2, frozenset(), (0, 0, 0), self.group, None)

    def help(self, name: str, *, acl: str = "") -> None:
        """Register a container's HELP in Redis's form; every container has one."""

        def answer(_ctx: Any, _argv: list[bytes]) -> Reply:
            head = f"{name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
            lines = (head, *documents()[name].help, "HELP", "    Print this help.")
            return [Simple(line.encode()) for line in lines]

        self.command(f"{name}|help", 2, "loading stale", keys=(0, 0, 0), acl=acl)(answer)


STREAM = CommandGroup("stream", keys=(1, 1, 1))
STRING = CommandGroup("string", keys=(1, 1, 1))
GENERIC = CommandGroup("generic", keys=(1, 1, 1))
CONNECTION, TRANSACTIONS = CommandGroup("connection"), CommandGroup("transactions")
PUBSUB, SCRIPTING, SERVER = CommandGroup("pubsub"), CommandGroup("scripting"), CommandGroup("server")


def every() -> Iterator[Command]:
    """All rows, each container before its subcommands."""
    for row in TABLE.values():
        yield row
        yield from row.subcommands.values()


def find(argv: list[bytes]) -> Command | None:
    """The row for a command line of any length; None if there is no such command or subcommand."""
    row = TABLE.get(argv[0]) or TABLE.get(argv[0].lower())
    if row is None or not row.subcommands or len(argv) < 2:
        return row
    return row.subcommands.get(argv[1].lower())


def named(name: bytes) -> Command | None:
    """The row of ``get`` or ``xgroup|create``, in any case; None for any other name."""
    head, bar, sub = name.lower().partition(b"|")
    row = TABLE.get(head)
    return row.subcommands.get(sub) if row is not None and bar else row


def resolve(argv: list[bytes]) -> Command:
    """The row for a command line."""
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
