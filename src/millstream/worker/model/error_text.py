"""Text of a handler's error, for a dead letter, a log line or a list of failures. It never raises.

An error belongs to the user's code as much as the handler does. Its ``__str__`` may raise or quote the whole entry, and
it may lack attributes that ``traceback`` reads. The entry must get its dead letter nevertheless.
"""

import traceback
from collections.abc import Sequence
from types import TracebackType

from millstream.client.dead_letter.letter import ERROR_LIMIT
from millstream.printable import without_secrets

#: Largest length of a traceback in characters; its end is kept, which contains the cause.
TRACEBACK_LIMIT = 8_000

#: Largest length of an error's text in characters; its beginning is kept.
TEXT_LIMIT = 8_000


class UnreadableError(Exception):
    """Replaces a user's error if reading its attributes raises."""


def describe(error: BaseException | None, trace: TracebackType | None = None) -> tuple[str, str]:
    """Return an error's type and text, and the end of its traceback; never raise."""
    if error is None:
        return "", ""
    try:
        whole = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except BaseException:  # noqa: BLE001 - traceback reads an attribute that is not as expected
        whole = ""
    return f"{type(error).__name__}: {shown(error)}", without_secrets(whole[-2 * TRACEBACK_LIMIT :])[-TRACEBACK_LIMIT:]


def shown(error: BaseException) -> str:
    """Return an error's own text, cut to fit into a dead letter, or a note that it cannot be shown."""
    try:
        text = str.__str__(str(error))  # a plain str, since a subclass may raise when it is sliced
    except BaseException as failure:  # noqa: BLE001 - raised by the user's code
        return f"(its text cannot be shown: {type(failure).__name__})"
    length, text = len(text), without_secrets(text[: 2 * TEXT_LIMIT])  # shortened first, since it may have megabytes
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({length} characters)"


def tame(error: BaseException) -> BaseException:
    """Return the error itself, or a replacement if reading its attributes raises."""
    try:
        read = error.__cause__, error.__context__, error.__suppress_context__, error.__class__, error.__traceback__
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, Sequence):
            list(notes)
        if isinstance(read[3], type) and isinstance(read[4], TracebackType | None):
            return error
    except BaseException:  # noqa: BLE001, S110 - raised by the user's code
        pass
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    return UnreadableError(f"{type(error).__qualname__}: {shown(error)}").with_traceback(trace)


def loggable(error: BaseException) -> BaseException:
    """Return an error for ``exc_info``: itself, or a replacement if its text or chain of causes cannot be formatted.

    Log formatters such as those for JSON lines read both without a guard, and some logging handlers pass the error on.
    """
    try:
        str(error)
        traceback.format_exception(error)
    except BaseException:  # noqa: BLE001 - raised by the user's code
        return RuntimeError(f"{type(error).__qualname__} {shown(error)}").with_traceback(error.__traceback__)
    return error


def summarize(error: BaseException) -> str:
    """Return an error as one line, named as in its dead letter; never raise."""
    name, text = type(error).__name__, shown(error)
    return first_line(f"{name}: {text}" if text else name)


def first_line(text: str) -> str:
    """Return the first line of an error's text, at most as long as a list of dead letters shows."""
    return text.strip().partition("\n")[0][:ERROR_LIMIT]
