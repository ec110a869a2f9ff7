"""COMMAND DOCS' content for a row: its group, its history by version, its arguments.

Source: https://redis.io/docs/latest/commands/command-docs/
"""

from collections import defaultdict
from itertools import count

from millstream.commands.table.spec import Command
from millstream.commands.table.syntax import Argument, options, parse
from millstream.replies import Map, Reply, Set, Simple


def document(row: Command) -> Reply:
    """One command in the form of COMMAND DOCS."""
    arguments = parse(row.document.syntax)
    pairs: list[tuple[Reply, Reply]] = [
        (b"summary", row.document.summary.encode()),
        (b"since", row.document.since.encode()),
        (b"group", row.group.encode()),
    ]
    if changes := history(row):
        pairs.append((b"history", Set([[version.encode(), text.encode()] for version, text in changes])))
    if arguments:
        keys = count()
        pairs.append((b"arguments", [_argument(argument, keys) for argument in arguments]))
    if row.subcommands:
        pairs.append((b"subcommands", Map([(sub.name.encode(), document(sub)) for sub in row.subcommands.values()])))
    return Map(pairs)


def history(row: Command) -> list[tuple[str, str]]:
    """The changes since a row's first version, oldest first: new options, then other changes."""
    words: dict[str, list[str]] = defaultdict(list)
    for word, since in options(row.document.since, parse(row.document.syntax)):
        if since != row.document.since and word not in words[since]:
            words[since].append(word)
    changes = {since: f"Added {', '.join(found)}." for since, found in words.items() if found}
    for version, text in row.document.history:
        changes[version] = f"{changes[version]} {text}" if version in changes else text
    return sorted(changes.items(), key=lambda change: [int(part) for part in change[0].split(".")])


def _argument(argument: Argument, keys: "count[int]") -> Reply:
    """One argument; ``keys`` numbers those that are keys, in the order of COMMAND INFO's key specifications."""
    pairs: list[tuple[Reply, Reply]] = [(b"name", argument.name.encode()), (b"type", argument.type.encode())]
    if argument.display:
        pairs.append((b"display_text", argument.display.encode()))
    if argument.type == "key":
        pairs.append((b"key_spec_index", next(keys)))
    if argument.token:
        pairs.append((b"token", argument.token.encode()))
    if argument.since and argument.tells_since:
        pairs.append((b"since", argument.since.encode()))
    marks = (
        ("optional", argument.optional),
        ("multiple", argument.multiple),
        ("multiple_token", argument.repeats_token),
    )
    flags = [name for name, is_so in marks if is_so]
    if flags:
        pairs.append((b"flags", Set([Simple(flag.encode()) for flag in flags])))
    if argument.parts:
        pairs.append((b"arguments", [_argument(part, keys) for part in argument.parts]))
    return Map(pairs)
