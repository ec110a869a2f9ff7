"""Groups of subcommands that import only the one that is asked for, so that help and short commands are quick."""

import importlib
import os
from typing import Any, TypeAlias

import click

Rows: TypeAlias = dict[str, tuple[str, str]]
"""Name -> (module:attribute, one line for the list of commands)."""


class LazyGroup(click.Group):
    """A command group that knows its commands by name and imports one on use."""

    def __init__(self, *args: Any, rows: Rows | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows = rows or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table."""
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command's module."""
        if cmd_name not in self.rows:
            return None
        module, _, attribute = self.rows[cmd_name][0].partition(":")
        found: Any = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command)
        return completed(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.rows.items()])


def completed(command: click.Command) -> click.Command:
    """A command whose words are completed, where a shell asks for that."""
    if "_MILLSTREAM_COMPLETE" in os.environ:
        from millstream.cli.shared.completing import attach  # noqa: PLC0415 - only a shell needs it

        attach(command)
    return command
