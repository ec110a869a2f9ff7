"""The command table: one row a command, from which dispatch, COMMAND and the compatibility page are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.commands.table.args import shown
from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.commands.context.context import Context
    from millstream.replies import Reply

Handler = Callable[["Context", list[bytes]], "Reply"]

# Commands that write, and look keys up as those do that read, in Redis's source
_READERS = frozenset({"getex", "getdel", "getset", "xreadgroup", "xack", "xackdel", "xclaim", "xautoclaim"})
# Those that read, and come by their keys in another way
_LOOKING_ELSEWHERE = frozenset({"keys", "scan", "randomkey", "memory|usage"})


@dataclass(slots=True)
class Command:
    """One command or subcommand.

    Attributes:
        name: lower case; a subcommand is ``container|sub``.
        arity: number of words, command name included; negative means "at least".
        flags: COMMAND INFO's flags (``write``, ``readonly``, ``denyoom``, ``fast``, ``blocking``, ``movablekeys``,
            ``noscript``, ``loading``, ``stale``, ``admin``, ``pubsub``, ``no_auth``, ``no_multi``).
        keys: first key, last key (negative counts from the end), step; (0, 0, 0) for none.
        since: the Redis version that introduced it.
        group: COMMAND DOCS group (``stream``, ``generic``, ``connection``, ``server``, ``string``, ``transactions``).
        syntax: the arguments, without the name, in the notation of :mod:`millstream.commands.table.syntax`.
        summary: one line, our own words.
        handler: called with the context and the whole argument list.
        subcommands: for a container, by lower-case name without the container's.
        history: versions that changed it otherwise than by a word of the syntax, oldest first, with what they changed.
        limited: what of Redis's command is not there; empty if nothing is missing.
        differs: the heading of docs/compatibility.md, as an anchor, that says how it differs; empty if it does not.
        acl: ACL categories beside those that follow from flags and group, see
            :mod:`millstream.commands.users.categories`.
        counts_lookups: INFO counts the keys that it looks up as hits and misses, as it does of what reads.
        tells_misses: a key that it looks up and does not find is an event (``keymiss``), if anybody wants it.
    """

    name: str
    arity: int
    flags: frozenset[str]
    keys: tuple[int, int, int]
    since: str
    group: str
    syntax: str
    summary: str
    handler: Handler | None
    subcommands: dict[bytes, "Command"] = field(default_factory=dict)
    acl: frozenset[str] = frozenset()
    history: tuple[tuple[str, str], ...] = ()
    limited: str = ""
    differs: str = ""
    counts_lookups: bool = field(init=False)
    tells_misses: bool = field(init=False)

    def __post_init__(self) -> None:
        self.counts_lookups = (
            "readonly" in self.flags or self.name in _READERS
        ) and self.name not in _LOOKING_ELSEWHERE
        self.tells_misses = self.counts_lookups and not self.name.startswith("object|")

    def check_arity(self, argc: int) -> None:
        """Raise Redis's arity error unless ``argc`` words suit this command."""
        if (self.arity > 0 and argc != self.arity) or argc < -self.arity:
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")


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
