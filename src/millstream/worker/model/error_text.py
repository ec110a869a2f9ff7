"""A handler's error as text: for a dead letter, a log line and the list of failures, whatever its own methods do.

An error is the user's code as much as the handler is: its ``__str__`` may raise, may quote the whole entry, and may
lack what ``traceback`` reads. None of that may cost the entry its letter.
"""

import traceback
from collections.abc import Sequence
from types import TracebackType

from millstream.client.dead_letter.letter import ERROR_LIMIT
from millstream.printable import without_secrets

#: Longest traceback kept, in characters: its end, where the cause is.
TRACEBACK_LIMIT = 8_000

#: Longest text of an error, in characters: its beginning.
TEXT_LIMIT = 8_000


class UnreadableError(Exception):
    """Stands for an error of the user's whose own attributes raise when they are read."""


def describe(error: BaseException | None, trace: TracebackType | None = None) -> tuple[str, str]:
    """An error's text, with its type in front, and its traceback's end; whatever its own methods do."""
    if error is None:
        return "", ""
    try:
        whole = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except BaseException:  # noqa: BLE001 - an attribute that traceback reads is not what it expects
        whole = ""
    return f"{type(error).__name__}: {shown(error)}", without_secrets(whole[-2 * TRACEBACK_LIMIT :])[-TRACEBACK_LIMIT:]


def shown(error: BaseException) -> str:
    """An error's own text, or that it has none; of a long one the beginning: a letter must fit into the server."""
    try:
        text = str.__str__(str(error))  # plain: a subclass of str may raise where it is cut
    except BaseException as failure:  # noqa: BLE001 - it is the user's
        return f"(its text cannot be shown: {type(failure).__name__})"
    length, text = len(text), without_secrets(text[: 2 * TEXT_LIMIT])  # cut first, since it may be of megabytes
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({length} characters)"


def tame(error: BaseException) -> BaseException:
    """An error whose attributes can be read: itself, or one in its place where the user's type makes them raise."""
    try:
        read = error.__cause__, error.__context__, error.__suppress_context__, error.__class__, error.__traceback__
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, Sequence):
            list(notes)
        if isinstance(read[3], type) and isinstance(read[4], TracebackType | None):
            return error
    except BaseException:  # noqa: BLE001, S110 - it is the user's
        pass
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    return UnreadableError(f"{type(error).__qualname__}: {shown(error)}").with_traceback(trace)


def loggable(error: BaseException) -> BaseException:
    """An error for ``exc_info``: itself, or one in its place where its text or its chain cannot be shown.

    Formatters of logs that ask for these unguarded (those of JSON lines do) raise, and some handlers let that out.
    """
    try:
        str(error)
        traceback.format_exception(error)
    except BaseException:  # noqa: BLE001 - it is the user's
        return RuntimeError(f"{type(error).__qualname__} {shown(error)}").with_traceback(error.__traceback__)
    return error


def summarize(error: BaseException) -> str:
    """An error in one line for whoever looks, named as in its dead letter, whatever its own text does."""
    name, text = type(error).__name__, shown(error)
    return first_line(f"{name}: {text}" if text else name)


def first_line(text: str) -> str:
    """An error's text for a list of failures: one line, and no more than a letter's list shows."""
    return text.strip().partition("\n")[0][:ERROR_LIMIT]
