"""COMMAND: the command table for clients, made from :mod:`millstream.commands.table.table`.

Clients of clusters and proxies find keys by these replies; ACL and docs/compatibility.md use the same rows. So a wrong
row is wrong everywhere; the comparison with a real server finds it (tests/commands/test_introspection_live.py).

Replies are encoded once for each command and cached: clients request all of them when they connect.

Source: https://redis.io/docs/latest/commands/command/
"""

from functools import cache

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, keyword
from millstream.commands.table.docs import document
from millstream.commands.table.hints import FLAG_ORDER, KEY_NOTES, KEY_USES, MORE_FLAGS, TIPS, UNPLACED
from millstream.commands.table.keyspecs import NO_KEYS, NUMBERED, flags_of_keys, has_keys
from millstream.commands.table.spec import Command
from millstream.commands.table.table import SERVER, TABLE, every, find, named
from millstream.commands.users.categories import categories
from millstream.errors import CommandError
from millstream.glob import matcher
from millstream.replies import NIL_ARRAY, Fixed, Map, Reply, Set, Simple

# First index at which the word STREAMS may be
_AFTER_STREAMS = {"xread": 1, "xreadgroup": 4}


def _specs(row: Command) -> list[Reply]:
    """The key specifications: one, or one for each use of keys.

    Four forms: keys after a token (STREAMS), keys after their number (EVAL), keys at fixed positions, and keys at no
    position, or at any (SORT). Fixed positions may count from the end.
    """
    uses = list(KEY_USES.get(row.name, (("RW", "access", "update"),)))
    first, last, step = row.keys
    if row.name in _AFTER_STREAMS:
        begin = _spec(b"keyword", (b"keyword", b"STREAMS"), (b"startfrom", _AFTER_STREAMS[row.name]))
        return [_described(row, uses[0], begin, _range(-1, 1, 2))]
    found: list[Reply] = []
    if row.name in NUMBERED:
        if first:  # the key of the result
            found.append(_described(row, uses.pop(0), _spec(b"index", (b"index", first)), _range(0, 1, 0)))
        at, step = NUMBERED[row.name]
        find = _spec(b"keynum", (b"keynumidx", 0), (b"firstkey", 1), (b"keystep", step))
        return [*found, _described(row, uses[0], _spec(b"index", (b"index", at)), find)]
    if not first:
        return []
    for at, use in enumerate(uses, first):
        is_last = at == first + len(uses) - 1
        reach = 0 if not is_last else last if last < 0 else last - at
        begin = _spec(b"index", (b"index", at))
        found.append(_described(row, use, begin, _range(reach, step, 0)))
    unknown = _spec(b"unknown")
    return [*found, *(_described(row, use, unknown, unknown, note) for note, use in UNPLACED.get(row.name, ()))]


def _described(row: Command, use: tuple[str, ...], begin: Reply, find: Reply, note: bytes = b"") -> Reply:
    """One specification: the use of the keys, the start of the search, the way to find them, and perhaps a note."""
    flags = Set([Simple(word.encode()) for word in use])
    pairs: list[tuple[Reply, Reply]] = [(b"flags", flags), (b"begin_search", begin), (b"find_keys", find)]
    note = note or KEY_NOTES.get(row.name, b"")
    return Map([(b"notes", note), *pairs] if note else pairs)


def _range(last: int, step: int, limit: int) -> Reply:
    """The part of a specification for keys from the start of the search to a last one."""
    return _spec(b"range", (b"lastkey", last), (b"keystep", step), (b"limit", limit))


def _spec(kind: bytes, *fields: tuple[Reply, Reply]) -> Reply:
    """A part of a specification: its kind and its fields."""
    return Map([(b"type", kind), (b"spec", Map(list(fields)))])


def flags_of(row: Command) -> list[str]:
    """All flags of a command, in Redis's order."""
    return sorted(row.flags.union(MORE_FLAGS.get(row.name, ())), key=FLAG_ORDER.index)


@cache
def described(name: str) -> Fixed:
    """One command in the form of COMMAND INFO, by its name in the table; made once, since the rows never change."""
    row = named(name.encode())
    assert row is not None
    return Fixed(describe(row))


@cache
def documented(name: str) -> Fixed:
    """One command in the form of COMMAND DOCS, by its name in the table."""
    row = named(name.encode())
    assert row is not None
    return Fixed(document(row))


@cache
def flag_set(words: tuple[str, ...]) -> Fixed:
    """The flags of a key specification."""
    return Fixed(Set([Simple(word.encode()) for word in words]))


def describe(row: Command) -> Reply:
    """One command in the form of COMMAND INFO: a container has its subcommands, each in the same form."""
    return [
        row.name.encode(),
        row.arity,
        Set([Simple(flag.encode()) for flag in flags_of(row)]),
        *row.keys,
        Set([Simple(category.encode()) for category in categories(row)]),
        Set([tip.encode() for tip in TIPS.get(row.name, ())]),
        Set(_specs(row)),
        [describe(sub) for sub in row.subcommands.values()] or Set([]),
    ]


@SERVER.command("command", -1, "loading stale", acl="connection")
def command_(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """One array for each command, as COMMAND INFO without names."""
    if len(argv) > 1:
        raise CommandError(f"ERR unknown subcommand '{argv[1].decode('utf-8', 'surrogateescape')}'. Try COMMAND HELP.")
    return [described(row.name) for row in TABLE.values()]


@SERVER.command("command|count", 2, "loading stale", acl="connection")
def command_count(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The number of commands, without subcommands."""
    return len(TABLE)


@SERVER.command("command|info", -2, "loading stale", acl="connection")
def command_info(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The rows of the named commands; null for an unknown name, which is a null array in RESP2, not a null string."""
    if len(argv) == 2:
        return [described(row.name) for row in TABLE.values()]
    rows = [named(word) for word in argv[2:]]
    return [NIL_ARRAY if row is None else described(row.name) for row in rows]


@SERVER.command("command|docs", -2, "loading stale", acl="connection")
def command_docs(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The documentation of the named commands; unknown names are left out."""
    rows = [named(word) for word in argv[2:]] if len(argv) > 2 else list(TABLE.values())
    return Map([(row.name.encode(), documented(row.name)) for row in rows if row is not None])


@SERVER.command("command|list", -2, "loading stale", acl="connection")
def command_list(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Full names, including subcommands (``xinfo|stream``), with or without a filter.

    Modules have no commands here, so the MODULE filter finds none. Patterns ignore case, as names do.
    """
    if len(argv) == 2:
        return [row.name.encode() for row in every()]
    if len(argv) != 5 or keyword(argv[2]) != b"FILTERBY":
        raise SYNTAX
    kind, wanted = keyword(argv[3]), argv[4]
    if kind == b"PATTERN":
        fits = matcher(wanted, nocase=True)
        return [row.name.encode() for row in every() if fits(row.name.encode())]
    if kind == b"ACLCAT":
        category = "@" + keyword(wanted).decode("utf-8", "surrogateescape").lower()
        return [row.name.encode() for row in every() if category in categories(row)]
    if kind == b"MODULE":
        return []
    raise SYNTAX


@SERVER.command("command|getkeys", -3, "loading stale", acl="connection")
def command_getkeys(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The keys in order."""
    return [key for key, _ in _keys(argv[2:])]


@SERVER.command("command|getkeysandflags", -3, "loading stale", acl="connection")
def command_getkeysandflags(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The keys in order, each with the flags of its key specification."""
    return [[key, flag_set(words)] for key, words in _keys(argv[2:])]


def _keys(words: list[bytes]) -> list[tuple[bytes, tuple[str, ...]]]:
    """The keys of a command line, each with its flags.

    EVAL without keys has an empty reply, other commands without keys an error; both as in Redis.
    """
    row = find(words)
    if row is None:
        raise CommandError("ERR Invalid command specified")
    if not has_keys(row):
        raise CommandError(NO_KEYS)
    if not row.takes(len(words)):
        raise CommandError("ERR Invalid number of arguments specified for command")
    try:
        return flags_of_keys(row, words)
    except CommandError:
        if "no_mandatory_keys" in flags_of(row):
            return []
        raise


SERVER.help("command", acl="connection")
