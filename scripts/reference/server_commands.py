"""The tables of the server's commands: every command and option with its Redis version and Millstream's status."""

from collections import defaultdict

from millstream.commands.table.spec import Command
from millstream.commands.table.syntax import options, parse, shown
from millstream.commands.table.table import TABLE
from millstream.node.commands import load_all

HEAD = "| command | option | since | status | |\n|---|---|---|---|---|\n"


def tables() -> str:
    """Return one table per group, streams first, in the order of the registry."""
    load_all()
    groups: dict[str, list[Command]] = defaultdict(list)
    for row in TABLE.values():
        groups[row.group] += row.subcommands.values() if row.subcommands else [row]
    text = ""
    for group in sorted(groups, key=lambda name: (name != "stream", name)):
        text += f"\n### {group.capitalize()}\n\n{HEAD}{''.join(line for row in groups[group] for line in lines(row))}"
    return text + "\n"


def lines(row: Command) -> list[str]:
    """Yield the row of a command, a row for each of its option words, and one for other changes of later versions."""
    name = row.name.upper().replace("|", " ")
    arguments = f"{_code(shown(row.document.syntax))}: " if row.document.syntax else ""
    found = [f"| {name} | | {row.document.since} | {status(row)} | {arguments}{row.document.summary} |\n"]
    inner = f"[differs](#{row.document.differs})" if row.document.differs else "same"
    seen: set[tuple[str, str]] = set()
    for word, since in options(row.document.since, parse(row.document.syntax)):
        if (word, since) not in seen:
            seen.add((word, since))
            found.append(f"| | {_code(word)} | {since} | {inner} | |\n")
    found += [f"| | | {since} | {inner} | {text} |\n" for since, text in row.document.history]
    return found


def status(row: Command) -> str:
    """Return Millstream's status: the same, the missing parts, or a link to the difference."""
    differs = row.document.differs or ("texts" if row.name.endswith("|help") else "")
    remarks = [f"limited: {row.document.limited}"] if row.document.limited else []
    if differs:
        remarks.append(f"[differs](#{differs})")
    return "; ".join(remarks) or "same"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
