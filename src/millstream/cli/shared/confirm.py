"""The question before something that cannot be undone."""

import sys

import click

from millstream.errors import UsageError


def confirm(question: str, action: str) -> None:
    """Ask, and return only if the answer is yes.

    Args:
        question: what is about to happen, with its question mark.
        action: the verb for it, as the message names it where no terminal can be asked.

    Raises:
        UsageError: the answer was no, or standard input is no terminal: a script has to say ``--yes``, since a default
            answer would be taken without anybody having read the question.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here; say --yes to {action}")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was done")
