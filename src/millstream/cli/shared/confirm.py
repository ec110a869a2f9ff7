"""The question before something that cannot be undone, or that is done to a server in production."""

import sys

import click

from millstream.errors import UsageError

PRODUCTION = "millstream.production"
"""Where click's context has the name of the production context that is used without having been named."""


def confirm(question: str, action: str, *, yes: bool = False) -> None:
    """Ask, and return only if the answer is yes.

    For a production server that the command line does not name, it asks even so. The answer is its context's name: a
    ``--yes`` was perhaps typed with another server in mind.
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
    """Ask for the name of a production context."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} The context {name} is marked as production, and the command line does not name it: use "
            f"--context {name} to {action}"
        )
    click.echo(question, err=True)
    answer = click.prompt(f"This is {name}, a production server; type its name to {action}", err=True)
    if answer.strip() != name:
        raise UsageError("nothing was done")
