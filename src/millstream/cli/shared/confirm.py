"""Confirmation of a change that cannot be undone, or that affects a production server."""

import sys

import click

from millstream.errors import UsageError

PRODUCTION = "millstream.production"
"""Key in click's context for the production context that is used but not named on the command line."""


def confirm(question: str, action: str, *, yes: bool = False) -> None:
    """Ask for confirmation, and return only if the user agrees.

    For a production server that the command line does not name, ``--yes`` is not enough, since the user may have meant
    another server. The user must then type the name of its context.
    """
    context = click.get_current_context(silent=True)
    name = None if context is None else context.meta.get(PRODUCTION)
    if name is not None:
        _confirm_production(question, action, name)
    elif not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{question} There is no terminal for the confirmation; use --yes to {action}")
        if not click.confirm(question, err=True):
            raise UsageError("nothing was done")


def _confirm_production(question: str, action: str, name: str) -> None:
    """Ask the user to type the name of a production context."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} The context {name} is marked as production, and the command line does not name it: use "
            f"--context {name} to {action}"
        )
    click.echo(question, err=True)
    answer = click.prompt(f"This is {name}, a production server; type its name to {action}", err=True)
    if answer.strip() != name:
        raise UsageError("nothing was done")
