"""COMMAND: the command table, as clients ask for it. Everything here is made from :mod:`millstream.commands.table`.

Source: https://redis.io/docs/latest/commands/command/
"""

from collections.abc import Iterator

from millstream.commands.args import SYNTAX
from millstream.commands.context import Context
from millstream.commands.glob import matcher
from millstream.commands.table import TABLE, Command, command
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Map, Reply, Set, Simple

# COMMAND DOCS group -> ACL category
_CATEGORY_OF_GROUP = {
    "stream": "@stream",
    "string": "@string",
    "hash": "@hash",
    "sorted-set": "@sortedset",
    "list": "@list",
    "set": "@set",
    "scripting": "@scripting",
    "generic": "@keyspace",
    "connection": "@connection",
    "transactions": "@transaction",
}
# Commands whose keys stand where a word says, not at a fixed place
_STREAMS_WORD = {"xread", "xreadgroup"}


def categories(row: Command) -> list[str]:
    """ACL categories, by Redis's rules for deriving them."""
    found = []
    if "write" in row.flags:
        found.append("@write")
    if "readonly" in row.flags and row.group != "connection":
        found.append("@read")
    if row.group in _CATEGORY_OF_GROUP:
        found.append(_CATEGORY_OF_GROUP[row.group])
    if "admin" in row.flags:
        found += ["@admin", "@dangerous"]
    if "blocking" in row.flags:
        found.append("@blocking")
    found.append("@fast" if "fast" in row.flags else "@slow")
    return found


def _specs(row: Command) -> list[Reply]:
    """The key specification, for commands with keys at a fixed place."""
    first, last, step = row.keys
    if not first:
        return []
    access = b"RO" if "readonly" in row.flags else b"RW"
    return [
        Map(
            [
                (b"flags", Set([Simple(access)])),
                (b"begin_search", Map([(b"type", b"index"), (b"spec", Map([(b"index", first)]))])),
                (
                    b"find_keys",
                    Map(
                        [
                            (b"type", b"range"),
                            (
                                b"spec",
                                Map(
                                    [
                                        (b"lastkey", last if last < 0 else last - first),
                                        (b"keystep", step),
                                        (b"limit", 0),
                                    ]
                                ),
                            ),
                        ]
                    ),
                ),
            ]
        )
    ]


def describe(row: Command) -> Reply:
    """One command as COMMAND INFO answers it."""
    return [
        row.name.encode(),
        row.arity,
        Set([Simple(flag.encode()) for flag in sorted(row.flags)]),
        *row.keys,
        Set([Simple(category.encode()) for category in categories(row)]),
        [],
        _specs(row),
        [describe(sub) for sub in row.subcommands.values()],
    ]


def document(row: Command) -> Reply:
    """One command as COMMAND DOCS answers it."""
    pairs: list[tuple[Reply, Reply]] = [
        (b"summary", row.summary.encode()),
        (b"since", row.since.encode()),
        (b"group", row.group.encode()),
    ]
    if row.subcommands:
        pairs.append((b"subcommands", Map([(sub.name.encode(), document(sub)) for sub in row.subcommands.values()])))
    return Map(pairs)


def named(word: bytes) -> Command | None:
    """The row of ``get`` or ``xgroup|create``."""
    head, bar, sub = word.lower().partition(b"|")
    row = TABLE.get(head)
    return row.subcommands.get(sub) if row is not None and bar else row


@command("command", -1, flags="loading stale", since="2.8.13", group="server", summary="Describes all commands.")
def command_(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """One array each, as COMMAND INFO."""
    if len(argv) > 1:
        raise CommandError(f"ERR unknown subcommand '{argv[1].decode('utf-8', 'surrogateescape')}'. Try COMMAND HELP.")
    return [describe(row) for row in TABLE.values()]


@command("command|count", 2, flags="loading stale", since="2.8.13", group="server", summary="Counts the commands.")
def command_count(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Subcommands do not count."""
    return len(TABLE)


@command(
    "command|info",
    -2,
    flags="loading stale",
    since="2.8.13",
    group="server",
    syntax="[command-name [command-name ...]]",
    summary="Describes some commands.",
)
def command_info(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Null for a name there is no command of."""
    if len(argv) == 2:
        return [describe(row) for row in TABLE.values()]
    rows = [named(word) for word in argv[2:]]
    return [NIL_ARRAY if row is None else describe(row) for row in rows]


@command(
    "command|docs",
    -2,
    flags="loading stale",
    since="7.0.0",
    group="server",
    syntax="[command-name [command-name ...]]",
    summary="Documents commands.",
)
def command_docs(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Names with what they do; names there is no command of are left out."""
    rows = [named(word) for word in argv[2:]] if len(argv) > 2 else list(TABLE.values())
    return Map([(row.name.encode(), document(row)) for row in rows if row is not None])


def _all_names() -> Iterator[tuple[str, Command]]:
    for row in TABLE.values():
        yield row.name, row
        for sub in row.subcommands.values():
            yield sub.name, sub


@command(
    "command|list",
    -2,
    flags="loading stale",
    since="7.0.0",
    group="server",
    syntax="[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
    summary="Names the commands.",
)
def command_list(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """With a filter, subcommands too."""
    if len(argv) == 2:
        return list(TABLE)
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise SYNTAX
    kind, wanted = argv[3].upper(), argv[4]
    if kind == b"PATTERN":
        fits = matcher(wanted, nocase=True)
        return [name.encode() for name, _ in _all_names() if fits(name.encode())]
    if kind == b"ACLCAT":
        category = "@" + wanted.decode("utf-8", "surrogateescape").lower()
        return [name.encode() for name, row in _all_names() if category in categories(row)]
    if kind == b"MODULE":
        return []
    raise SYNTAX


def keys_of(row: Command, argv: list[bytes]) -> list[bytes]:
    """The words of a command line that are keys.

    Raises:
        CommandError: the command has none, or the words do not suit it.
    """
    if row.name in _STREAMS_WORD:
        places = [at for at, word in enumerate(argv) if word.upper() == b"STREAMS"]
        if not places or (len(argv) - places[0] - 1) % 2 or len(argv) == places[0] + 1:
            raise CommandError("ERR Invalid arguments specified for command")
        names = argv[places[0] + 1 :]
        return names[: len(names) // 2]
    first, last, step = row.keys
    if not first:
        raise CommandError("ERR The command has no key arguments")
    return argv[first : len(argv) + last + 1 if last < 0 else last + 1 : step]


@command(
    "command|getkeys",
    -3,
    flags="loading stale",
    since="2.8.13",
    group="server",
    syntax="command [arg [arg ...]]",
    summary="Answers which words of a command are keys.",
)
def command_getkeys(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The keys in order."""
    words = argv[2:]
    row = TABLE.get(words[0].lower())
    if row is not None and row.subcommands and len(words) > 1:
        row = row.subcommands.get(words[1].lower())
    if row is None:
        raise CommandError("ERR Invalid command specified")
    if not row.keys[0] and row.name not in _STREAMS_WORD:
        raise CommandError("ERR The command has no key arguments")
    if (row.arity > 0 and len(words) != row.arity) or len(words) < -row.arity:
        raise CommandError("ERR Invalid number of arguments specified for command")
    return list(keys_of(row, words))


_HELP = (
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Describe all commands.",
    "COUNT",
    "    How many commands there are.",
    "DOCS [<command> [<command> ...]]",
    "    What commands do.",
    "GETKEYS <command> [<arg> ...]",
    "    Which words of a command are keys.",
    "INFO [<command> [<command> ...]]",
    "    Describe some commands.",
    "LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]",
    "    Names of commands.",
    "HELP",
    "    Print this help.",
)


@command("command|help", 2, flags="loading stale", since="5.0.0", group="server", summary="Tells the subcommands.")
def command_help(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """One line of text each."""
    return [Simple(line.encode()) for line in _HELP]
