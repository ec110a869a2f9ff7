"""The one place that loads subcommands: a command's module is imported when it runs, or its help or words are shown.

So a module with a command imports at its top all that it uses.
"""

import ast
import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import click

from millstream.cli.shared.output import exits

Rows: TypeAlias = dict[str, tuple[str, str]]
"""Name -> (module:attribute, below ``millstream.cli``; one line for the list of commands)."""


class LazyGroup(click.Group):
    """A command group that knows its commands by name and imports one on use."""

    def __init__(self, *args: Any, rows: Rows | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows = rows or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table."""
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self.rows:
            return None
        module, _, attribute = self.rows[cmd_name][0].partition(":")
        found: Any = getattr(loaded(ctx, cmd_name, f"millstream.cli.{module}"), attribute)
        assert isinstance(found, click.Command)
        return completed(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Each command with its line."""
        return [(name, line) for name, (_, line) in self.rows.items()]


class NounGroup(LazyGroup):
    """A noun with its subcommands: rows, and the actions that are declared for it in modules of ``ops`` (``changes``).

    Their commands are in ``COMMANDS`` of a module of ``cli`` (``own``); without one, the declarations alone make them.
    """

    def __init__(self, *args: Any, changes: Iterable[str], own: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = changes
        self._own = own

    @cached_property
    def _changes(self) -> dict[str, tuple[str, str]]:
        """Verb -> module and line, from the source: importing the declarations takes longer than all other help."""
        return {
            verb: (module, line)
            for module in self._modules
            for noun, verb, line in _declared(f"millstream.ops.{module}")
            if noun == self.name and verb not in self.rows
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those that look first."""
        return [*super().list_commands(ctx), *self._changes]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, or that of the action."""
        if cmd_name in self.rows or cmd_name not in self._changes:
            return super().get_command(ctx, cmd_name)
        if self._own:
            return completed(loaded(ctx, cmd_name, f"millstream.cli.{self._own}").COMMANDS[cmd_name])
        loaded(ctx, cmd_name, f"millstream.ops.{self._changes[cmd_name][0]}")
        return completed(loaded(ctx, cmd_name, "millstream.cli.changes.commands").declared(f"{self.name} {cmd_name}"))

    def lines(self) -> list[tuple[str, str]]:
        """Those that look first."""
        return [*super().lines(), *((verb, line) for verb, (_, line) in self._changes.items())]


def _declared(module: str) -> Iterator[tuple[str, str, str]]:
    """Noun, verb and line of each action that a module declares."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_bytes())
    for mark in (mark for each in tree.body for mark in getattr(each, "decorator_list", ())):
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "action":
            name, line, *_ = (word.value for word in mark.args if isinstance(word, ast.Constant))
            noun, verb = str(name).split()
            yield noun, verb, str(line)


def loaded(ctx: click.Context, name: str, module: str) -> Any:
    """The module of a command; the process ends in one sentence where it asks for a core that is not there."""
    with exits(" ".join(["millstream", *ctx.command_path.split()[1:], name])):
        return importlib.import_module(module)


def completing() -> Any:
    """The module that completes words, where a shell asks for that; None elsewhere."""
    name = "millstream.cli.shared.completing"
    return importlib.import_module(name) if "_MILLSTREAM_COMPLETE" in os.environ else None


def completed(command: click.Command) -> click.Command:
    """A command whose words are completed, where a shell asks for that."""
    if (words := completing()) is not None:
        words.attach(command)
    return command
