"""Writes the command tables of docs/compatibility.md from the command table; run by ``make docs``.

A test compares the page with the table, so it cannot fall behind.
"""

from collections import defaultdict
from pathlib import Path

from millstream.commands import load_all
from millstream.commands.table import TABLE, Command

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin: written by make docs -->\n", "<!-- end -->\n"


def tables() -> str:
    """One table a group, streams first, in the order of the registry."""
    load_all()
    groups: dict[str, list[Command]] = defaultdict(list)
    for row in TABLE.values():
        groups[row.group] += row.subcommands.values() if row.subcommands else [row]
    text = ""
    for group in sorted(groups, key=lambda name: (name != "stream", name)):
        text += f"\n### {group.capitalize()}\n\n| command | arguments | since | |\n|---|---|---|---|\n"
        for row in groups[group]:
            name = row.name.upper().replace("|", " ")
            syntax = f"`{row.syntax}`".replace("|", "\\|") if row.syntax else ""
            text += f"| {name} | {syntax} | {row.since} | {row.summary} |\n"
    return text + "\n"


def rewritten(page: str) -> str:
    """The page with its tables made anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + tables() + END + tail


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
