"""Lazy loading of subcommands: a command's module is imported when it runs, or for its help or completions.

So a command's module can import everything that it uses at its top.
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
"""Name -> (module:attribute below ``millstream.cli``; one line for the list of commands)."""


class LazyGroup(click.Group):
    """A command group with a table of its commands. It imports a command on use."""

    def __init__(self, *args: Any, rows: Rows | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows = rows or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the table."""
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command."""
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
        """Return each command with its one-line help."""
        return [(name, line) for name, (_, line) in self.rows.items()]


class NounGroup(LazyGroup):
    """A noun with its subcommands: rows, and the actions that modules of ``ops`` (``changes``) declare for it.

    The commands of these actions are in ``COMMANDS`` of the ``cli`` module ``own``. Without ``own``, they are made from
    the declarations alone.
    """

    def __init__(self, *args: Any, changes: Iterable[str], own: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = changes
        self._own = own

    @cached_property
    def _changes(self) -> dict[str, tuple[str, str]]:
        """Verb -> module and one-line help, parsed from the source, since importing the declarations is slow."""
        return {
            verb: (module, line)
            for module in self._modules
            for noun, verb, line in _declared(f"millstream.ops.{module}")
            if noun == self.name and verb not in self.rows
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, the commands that only read first."""
        return [*super().list_commands(ctx), *self._changes]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of the command or of the action, and return the command."""
        if cmd_name in self.rows or cmd_name not in self._changes:
            return super().get_command(ctx, cmd_name)
        if self._own:
            return completed(loaded(ctx, cmd_name, f"millstream.cli.{self._own}").COMMANDS[cmd_name])
        loaded(ctx, cmd_name, f"millstream.ops.{self._changes[cmd_name][0]}")
        return completed(loaded(ctx, cmd_name, "millstream.cli.changes.commands").declared(f"{self.name} {cmd_name}"))

    def lines(self) -> list[tuple[str, str]]:
        """Return each command with its one-line help, the commands that only read first."""
        return [*super().lines(), *((verb, line) for verb, (_, line) in self._changes.items())]


def _declared(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield noun, verb and one-line help of each action that a module declares."""
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
    """Import the module of a command. If it needs a missing core, the process ends with one sentence."""
    with exits(" ".join(["millstream", *ctx.command_path.split()[1:], name])):
        return importlib.import_module(module)


def completing() -> Any:
    """Return the completion module if a shell requests completions; else None."""
    name = "millstream.cli.shared.completing"
    return importlib.import_module(name) if "_MILLSTREAM_COMPLETE" in os.environ else None


def completed(command: click.Command) -> click.Command:
    """Return a command, with completion added if a shell requests completions."""
    if (words := completing()) is not None:
        words.attach(command)
    return command
