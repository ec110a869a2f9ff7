"""The loggers of servers and workers. Text from other programs in a record cannot control the terminal that shows it.

Such text cannot pass for a separate record either: the second and later lines of a message and of an exception's text
are indented. A filter changes the records themselves, so the protection holds with any formatter.
"""

import contextlib
import functools
import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence

from millstream.printable import printable, without_secrets

#: Largest message or traceback, and largest part of a traceback, in characters.
_LIMIT = 64_000
_PART_LIMIT = 8_000

#: Python's line between two exceptions of a chain; a note has no line end before its text.
_BETWEEN = ("\nThe above exception", "\nDuring handling")


class Harmless(logging.Filter):
    """Filter that escapes control characters and indents continuation lines. It drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape unprintable characters, hide secrets, and indent continuation lines; return True for every record."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            return True  # a bug in a log call; logging reports it itself
        harmless = _further(printable(without_secrets(_cut(message, _LIMIT))))
        if harmless != message:
            record.msg, record.args = harmless, None
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            try:
                parts = traceback.format_exception(*record.exc_info)
            except BaseException:  # noqa: BLE001 - attributes of a user's exception, or of one in its chain, may raise
                record.exc_text = f"{record.exc_info[0].__qualname__}: (its traceback cannot be shown)"
                return True
            harmless = "".join(_safe(_bounded(parts)))
            if harmless != "".join(parts):
                record.exc_text = harmless.rstrip("\n")
        return True


def _cut(text: str, limit: int) -> str:
    """Return the text; if it is longer than the limit, its beginning and its length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _bounded(parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a traceback, each cut to a limit.

    If the traceback is too long, yield only its beginning, which has the first cause, and its end, which has the error
    itself.
    """
    cut = [part if len(part) <= _PART_LIMIT else f"{_cut(part.rstrip(), _PART_LIMIT)}\n" for part in parts]
    size = sum(map(len, cut))
    left, head = _LIMIT // 2, 0
    while size > _LIMIT and head < len(cut) and left >= len(cut[head]):
        left -= len(cut[head])
        head += 1
    if size <= _LIMIT:
        yield from cut
        return
    yield from cut[:head]
    tail, left = len(cut), _LIMIT // 2
    while tail > head and left >= len(cut[tail - 1]):
        tail -= 1
        left -= len(cut[tail])
    yield f"    ... ({sum(map(len, cut[head:tail]))} characters)\n"
    yield from cut[tail:]


def _further(text: str) -> str:
    """Return the text with its second and later lines indented. Empty lines stay as they are."""
    return re.sub(r"\n(?=\S)", "\n    ", text)


def _safe(parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a traceback. Only the first line of an exception's text is not indented."""
    said = False
    for part in parts:
        safe = printable(without_secrets(part).replace("\t", "    "))
        if safe.startswith(_BETWEEN):
            said = False
            yield safe
        elif said:
            yield "    " + _further(safe)
        else:
            said = not safe.startswith((" ", "Traceback ("))
            yield _further(safe)


_harmless = Harmless()


def logger(name: str) -> logging.Logger:
    """Return the logger with this name, with the filter added. A second call returns the same logger."""
    found = logging.getLogger(name)
    found.addFilter(_harmless)
    found.handle = functools.partial(_handle, found)  # type: ignore[method-assign] # logging has no setting for it
    return found


def _handle(own: logging.Logger, record: logging.LogRecord) -> None:
    """Pass a record on. If a filter or handler of the program raises an error, only the record is lost."""
    try:
        logging.Logger.handle(own, record)
    except Exception:  # noqa: BLE001 - as in logging.Handler.handleError, which a handler may not call
        if logging.raiseExceptions:
            with contextlib.suppress(Exception):  # sys.stderr may be closed
                traceback.print_exc()
