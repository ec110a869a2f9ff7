"""Texts of the code as Markdown: cells of tables, docstrings, the help of commands."""

import re
from collections.abc import Iterable, Sequence

_ROLE = re.compile(r":[a-z]+:`~?(?:[^`<]+<)?(?:[^`]*?\.)?([^`.>]+)>?`")
_CODE = re.compile(r"(`[^`]*`)")
_MARKS = re.compile(r"(\*|(?<!\w)_|_(?!\w)|\](?=\())")
_SEE = re.compile(r"[;,]? \(?see :(?:mod|class):`[^`]*`\)?")


def prose(text: str) -> str:
    """Return a text of the code as a line of Markdown.

    Names in backticks stay, and all else is escaped from marks and HTML; references to modules are left out.
    """
    line = _ROLE.sub(r"`\1`", _SEE.sub("", " ".join(text.split()))).replace("``", "`")
    parts = _CODE.split(line)
    return "".join(part if at % 2 else _escaped(part) for at, part in enumerate(parts))


def _escaped(text: str) -> str:
    return _MARKS.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def code(text: str) -> str:
    """Return a name in backticks; empty for an empty one."""
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars inside cells are escaped."""
    return "".join([_row(heads), "|" + "---|" * len(heads) + "\n", *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def sections(docstring: str) -> dict[str, str]:
    """Return a docstring's parts by heading (``Args``, ``Raises``); the text before them under the empty name."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in docstring.expandtabs().splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            name = line[:-1]
        elif name and line and not line.startswith(" "):
            name = ""
            found[""].append(line)
            continue
        if not line.endswith(":") or line[:-1] != name:
            found.setdefault(name, []).append(line)
    return {key: "\n".join(lines).strip("\n") for key, lines in found.items()}


def items(section: str) -> dict[str, str]:
    """Return the items ``name: text`` of a section in order; text with more indent belongs to the name above it."""
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if begun := re.match(r" {4}(\*{0,2}[\w, .]+?): (.*)", line):
            name = begun[1].strip("*")
            found[name] = begun[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def meaning(says: str, more: str | None) -> str:
    """Return the table cell with the meaning of something.

    Args:
        says: Text in the code.
        more: Link to a page with more; None for none.
    """
    return "; ".join(filter(None, (prose(says), more)))
