"""The documentation of each command, read from ``documents.json`` at the first request."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from millstream.paths import packaged


@dataclass(frozen=True, slots=True)
class Document:
    """The description of one command or subcommand."""

    since: str  # The Redis version that introduced it
    summary: str  # One line, Millstream's own text
    syntax: str = ""  # The arguments, without the name, in the notation of :mod:`millstream.commands.table.syntax`
    # Versions that changed it otherwise than by a word of the syntax, oldest first, with what they changed
    history: Sequence[tuple[str, str]] = ()
    limited: str = ""  # Missing parts of Redis's command; empty if nothing is missing
    # The heading of docs/compatibility.md, as an anchor, that says how it differs; empty if it does not
    differs: str = ""
    help: Sequence[str] = ()  # The lines of a container's HELP, in Redis's form


@cache
def documents() -> dict[str, Document]:
    """All descriptions, by the name of the row."""
    found = json.loads(packaged("millstream.commands.table", "documents.json"))
    return {name: Document(**facts) for name, facts in found.items()}
