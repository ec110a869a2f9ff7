"""The documentation of each command, read from ``documents.json`` at the first request."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from millstream.paths import packaged


@dataclass(frozen=True, slots=True)
class Document:
    """The description of one command or subcommand."""

    since: str  # Redis version that introduced the command
    summary: str  # Summary in one line, in our own words
    syntax: str = ""  # Arguments without the name, in the notation of :mod:`millstream.commands.table.syntax`
    # Versions that changed more than the syntax, oldest first, each with its change
    history: Sequence[tuple[str, str]] = ()
    limited: str = ""  # Parts of Redis's command that are missing here; empty if none are
    # Anchor of the heading in docs/compatibility.md that describes differences; empty for none
    differs: str = ""
    help: Sequence[str] = ()  # Lines of a container's HELP, in Redis's form


@cache
def documents() -> dict[str, Document]:
    """All descriptions, by the name of the row."""
    found = json.loads(packaged("millstream.commands.table", "documents.json"))
    return {name: Document(**facts) for name, facts in found.items()}
