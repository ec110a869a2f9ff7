"""The command of the shell for each declared action: its arguments and options are the words of the declaration."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource

from millstream.cli.changes.changing import Ask, actor, change, change_options
from millstream.cli.shared.lazy import LazyGroup, completed
from millstream.cli.shared.output import exits

if TYPE_CHECKING:
    from millstream.client.line import Line
    from millstream.console.changes.actions import Action, Word
    from millstream.console.changes.gather import Counting
    from millstream.console.changes.making import Prepared

_WIDE = {"max_content_width": 110}


class NounGroup(LazyGroup):
    """A noun with its subcommands: rows, commands of its own, and the actions that are declared for it."""

    def __init__(self, *args: Any, changes: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._module = changes

    @cached_property
    def _changes(self) -> dict[str, click.Command]:
        module = importlib.import_module(self._module)
        from millstream.console.changes.actions import REGISTERED  # noqa: PLC0415 - those that only look do not need it

        declared = [found for found in REGISTERED.values() if found.noun == self.name and found.verb not in self.rows]
        found = getattr(module, "COMMANDS", None) or {one.verb: command_of(one) for one in declared}
        return {verb: completed(command) for verb, command in found.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Those that look first."""
        return [*self.rows, *self.commands, *self._changes]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One that looks is found without the others."""
        known = super().get_command(ctx, cmd_name) or self.commands.get(cmd_name)
        return known or self._changes.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """List them with what each does."""
        own = [(name, found.get_short_help_str(110)) for name, found in {**self.commands, **self._changes}.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, says) for name, (_, says) in self.rows.items()), *own])


@dataclass(frozen=True, slots=True)
class TypedChange:
    """A change as somebody typed it."""

    action: "Action"
    texts: "Mapping[str, str]"

    async def __call__(self, line: "Line", tell: "Counting") -> "Prepared":
        """Plan it."""
        from millstream.console.changes.making import prepare  # noqa: PLC0415 - help does not need it

        return await prepare(self.action, line, self.texts, tell, who=actor().who)


Run: TypeAlias = Callable[..., None]
"""Makes a change: it gets the change, what was typed of ``change_options``, and of other options by their names."""


def _run(typed: TypedChange, options: Ask) -> None:
    change(options, typed)


def command_of(
    action: "Action",
    run: Run = _run,
    options: Callable[[Run], Run] = change_options,
    more: "tuple[click.Parameter, ...]" = (),
) -> click.Command:
    """The command of an action."""
    words = {(word.typed or word.name): word for word in action.words if word.kind != "hidden"}

    def callback(**given: Any) -> None:
        context = click.get_current_context()
        typed = {name for name in given if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
        texts = {word.name: _text(word, given[name]) for name, word in words.items() if name in typed}
        own = {name: given.pop(name, None) for name in ("url", "form", "dry_run", "yes")}
        rest = {name: value for name, value in given.items() if name not in words}
        with exits(f"millstream {action.name}"):
            action.bound(texts)  # what is invalid is said before a server is asked
            run(TypedChange(action, texts), Ask(**{**own, "yes": own["yes"] is None or own["yes"]}), **rest)

    made = click.command(action.verb, context_settings=_WIDE, help=inspect.getdoc(action.make), short_help=action.says)
    command = made(options(callback))
    command.params[:0] = [*(parameter(word, name) for name, word in words.items()), *more]
    return command


def parameter(word: "Word", name: str) -> click.Parameter:
    """A word as click knows it."""
    if word.kind == "argument":
        metavar = word.metavar
        several = metavar.endswith("...")
        return click.Argument([name], metavar=metavar, nargs=-1 if several else 1, required=not metavar.startswith("["))
    if word.flag:
        return click.Option([word.option, name], is_flag=True, help=word.says)
    kind: Any = click.Choice(word.values) if word.values else None
    if word.least is not None:
        kind = click.IntRange(word.least) if isinstance(word.least, int) else click.FloatRange(word.least)
    return click.Option(
        [word.option, name],
        type=kind,
        metavar=word.metavar or None,
        required=word.required,
        default=word.usual,
        show_default=word.usual is not None,
        help=word.says,
    )


def with_words(*words: "Word") -> Callable[[click.Command], click.Command]:
    """Give a command of another kind options that actions have too; its function gets what was typed of them."""

    def add(command: click.Command) -> click.Command:
        arguments = sum(isinstance(each, click.Argument) for each in command.params)
        command.params[arguments:arguments] = [parameter(word, word.name) for word in words]
        return command

    return add


def _text(word: "Word", value: Any) -> str:
    """The text that a form would have for a typed value."""
    if isinstance(value, tuple):
        return word.joined(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
