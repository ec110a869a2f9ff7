"""``docs/server.md`` names exactly the server's options and settings."""

import re
from pathlib import Path

import pytest

from millstream.cli.server.serve import serve
from millstream.server.settings import PROMISES

MANUAL = (Path(__file__).parents[3] / "docs" / "server.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    part = MANUAL.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]


def test_every_option_is_in_the_manual() -> None:
    """Each option of ``millstream serve`` is in the manual's table, and no other."""
    told = {word for row in rows("Options") for word in re.findall(r"`(--[a-z-]+)", row[0])}
    assert told == {option for parameter in serve.params for option in parameter.opts}


@pytest.mark.parametrize("mode", sorted(PROMISES))
def test_every_promise_is_in_the_manual(mode: str) -> None:
    """Each fsync mode has its line in the manual."""
    table = rows("Durability of an acknowledged write")
    assert any(mode in row[0] for row in table)
