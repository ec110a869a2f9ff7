"""The options for decoding and filtering entries: ``--as``, ``--where``, ``--grep``."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from millstream.errors import UsageError
from millstream.ops.payloads import choice
from millstream.ops.payloads.choice import EntryChoice

Command = TypeVar("Command", bound=Callable[..., Any])

_AS = ("auto", "json", "msgpack", "envelope", "text", "hex")

SYNTAX = """\
CONDITION of --where is NAME OPERATOR VALUE, such as amount>100 or status=failed. Operators: = != > >= < <=, and ~
(contains, ignoring case) and !~. A NAME alone matches entries that have it. Combine conditions with and, or, not and
parentheses. NAME is a field or a path into one: user.address.city, items.0.sku, items.sku (any item),
headers.correlation_id of an envelope. Numbers are compared as numbers, all else as text (so are times in ISO form).
Quote values with spaces or operators, and numbers meant as text: 'city = "New York"', 'code = "007"'. != and !~ also
match entries without NAME."""
"""Help text of each command with these options."""


def decoding_option(command: Command) -> Command:
    """Add the option ``--as``; its argument is named ``decoding``."""
    return click.option(
        "--as",
        "decoding",
        type=click.Choice(_AS),
        default="auto",
        help="Encoding of the values; other values are shown as text or hex.",
    )(command)


def choosing_options(command: Command) -> Command:
    """Add the options of :func:`choice_of`; their arguments are named ``where`` and ``grep``."""
    for option in (
        decoding_option,
        click.option(
            "--grep",
            multiple=True,
            metavar="TEXT",
            help="Show entries with this text in a name or a value, ignoring case.",
        ),
        click.option(
            "--where",
            multiple=True,
            metavar="CONDITION",
            help="Show entries that match CONDITION, explained below; repeat to require several.",
        ),
    ):
        command = option(command)
    return command


def choice_of(decoding: str, where: Sequence[str] = (), grep: Sequence[str] = ()) -> EntryChoice:
    """Return the options as one filter."""
    form: Any = None if decoding == "auto" else decoding
    try:
        return choice.choice_of(form, where, grep)
    except ValueError as reason:
        raise UsageError(f"--where {reason}") from None
