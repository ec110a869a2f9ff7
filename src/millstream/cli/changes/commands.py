"""The shell command of each declared action. Its arguments and options come from the action's declaration."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

from millstream.cli.changes.changing import Ask, actor, change, change_options
from millstream.cli.changes.options import parameter
from millstream.cli.shared.output import exits
from millstream.client.line import Line
from millstream.ops.actions import REGISTERED, Action, Word
from millstream.ops.making import Prepared
from millstream.ops.plan import Counting
from millstream.ops.spread import prepare


@dataclass(frozen=True, slots=True)
class TypedChange:
    """A change as typed on the command line."""

    action: Action
    texts: Mapping[str, str]

    async def __call__(self, line: Line, tell: Counting) -> Prepared:
        """Plan the change."""
        return await prepare(self.action, line, self.texts, tell, who=actor().who)


Run: TypeAlias = Callable[..., None]
"""Function that makes a change. It gets the change, the typed ``change_options``, and other options by name."""


def _run(typed: TypedChange, options: Ask) -> None:
    change(options, typed)


def command_of(
    action: Action,
    run: Run = _run,
    options: Callable[[Run], Run] = change_options,
    more: tuple[click.Parameter, ...] = (),
) -> click.Command:
    """Return the click command of an action."""
    words = {(word.typed or word.name): word for word in action.words if word.kind != "hidden"}

    def callback(**given: Any) -> None:
        context = click.get_current_context()
        typed = {name for name in given if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
        texts = {word.name: _text(word, given[name]) for name, word in words.items() if name in typed}
        own = {name: given.pop(name, None) for name in ("url", "form", "dry_run", "yes")}
        rest = {name: value for name, value in given.items() if name not in words}
        with exits(f"millstream {action.name}"):
            action.bound(texts)  # invalid values are reported before the server is contacted
            run(TypedChange(action, texts), Ask(**{**own, "yes": own["yes"] is None or own["yes"]}), **rest)

    made = click.command(action.verb, help=inspect.getdoc(action.make), short_help=action.says)
    command = made(options(callback))
    command.params[:0] = [*(parameter(word, name) for name, word in words.items()), *more]
    return command


def declared(name: str) -> click.Command:
    """Return the click command of an action that needs only its declaration."""
    return command_of(REGISTERED[name])


def _text(word: Word, value: Any) -> str:
    """Return a typed value as the text that a form would contain."""
    if isinstance(value, tuple):
        return word.joined(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
