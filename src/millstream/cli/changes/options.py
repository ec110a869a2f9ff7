"""Parameters of declared actions as click arguments and options. Commands that only read use some of them too."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from millstream.ops.actions import Word


def parameter(word: "Word", name: str) -> click.Parameter:
    """Return a declared parameter as a click parameter."""
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
        help=word.says,
    )


def with_words(*words: "Word") -> Callable[[click.Command], click.Command]:
    """Add declared parameters to a command without an action. Its function gets the typed values."""

    def add(command: click.Command) -> click.Command:
        arguments = sum(isinstance(each, click.Argument) for each in command.params)
        command.params[arguments:arguments] = [parameter(word, word.name) for word in words]
        return command

    return add
