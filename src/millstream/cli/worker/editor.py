"""Editing of a text in the user's editor, without losing the user's work."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from millstream.client.jsontext import fault
from millstream.errors import UsageError

T = TypeVar("T")


def edited(text: str, parse: Callable[[str], T]) -> tuple[T, Path]:
    """Return the parsed text that the user edited, and its file, which the caller must remove.

    If the text is invalid and there is a terminal, the editor can open again on the edited text.
    """
    number, name = tempfile.mkstemp(prefix="millstream-", suffix=".json")  # creates a file that only its owner can read
    path = Path(name)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(text)
    while True:
        _run(path)
        try:
            return parse(path.read_text(encoding="utf-8")), path
        except OSError as reason:
            why = f"the edited file {path} cannot be read ({reason.strerror})"
            raise UsageError(f"{why}; nothing was done") from None
        except ValueError as reason:  # includes UnicodeDecodeError
            problem = f"the edited text is invalid: {fault(reason)}"
        if not sys.stdin.isatty() or not click.confirm(f"{problem}. Edit it again?", default=True, err=True):
            raise UsageError(f"{problem}; nothing was changed, and the text is kept in {path}")


def _run(path: Path) -> None:
    """Open a file in the editor, and wait until it ends."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as reason:
        raise UsageError(
            f"the editor {editor!r} cannot be started ({reason}): set EDITOR; nothing was changed, and the text is "
            f"kept in {path}"
        ) from None
    if code:
        raise UsageError(
            f"the editor {editor!r} ended with code {code}: nothing was changed, and the text is kept in {path}"
        )
