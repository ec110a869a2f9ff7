"""Blocks of the documents that are generated from the code, between two comments.

A page names the block and has no text of its own there::

    <!-- begin: metrics, written by make docs -->
    <!-- end -->

So a page is handwritten prose around facts that are always current: a test generates each page and compares it.
"""

import re
from collections.abc import Callable
from pathlib import Path

from scripts.reference import command_line, environment, errors, metrics, parameters, python, server_commands, spark

DOCS = Path(__file__).parents[2] / "docs"

BLOCKS: dict[str, Callable[[], str]] = {
    "server commands": server_commands.tables,
    "server parameters": parameters.table_of_parameters,
    "server facts": parameters.table_of_facts,
    "commands": command_line.reference,
    "exit codes": command_line.exit_codes,
    "actions": command_line.actions,
    "environment variables": environment.variables,
    "metrics of workers": metrics.of_workers,
    "metrics of streams": metrics.of_streams,
    "metrics of pipelines": metrics.of_pipelines,
    "metrics of tracing": metrics.of_tracing,
    "errors": errors.reference,
    **spark.BLOCKS,
    **python.BLOCKS,
}

_BLOCK = re.compile(
    r"(?<=^<!-- begin: )([^,\n]+)(, written by make docs -->\n).*?(?=^<!-- end -->$)", re.DOTALL | re.MULTILINE
)


def rewritten(page: str) -> str:
    """Return the text of a page with its blocks generated.

    Raises:
        KeyError: There is no block of that name.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{BLOCKS[found[1]]()}", page)


def pages() -> dict[Path, list[str]]:
    """Return pages with blocks, and the names of their blocks."""
    found = {page: [name for name, _ in _BLOCK.findall(page.read_text())] for page in sorted(DOCS.rglob("*.md"))}
    return {page: names for page, names in found.items() if names}
