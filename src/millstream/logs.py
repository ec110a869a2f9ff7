"""The loggers of servers and workers: what they write of others' texts cannot steer the terminal it is read on.

Nor can they pass for a record of their own: further lines of a message, and of an exception's text, are indented. It is
done to the records, and not in a formatter, so that it holds in whatever way a program sets up its logging.
"""

import logging
import re
import traceback
from collections.abc import Iterable, Iterator

from millstream.printable import printable, without_secrets

#: How Python begins what stands between two exceptions of a chain; a note has no end of line before its text.
_BETWEEN = ("\nThe above exception", "\nDuring handling")


class Harmless(logging.Filter):
    """Escapes control characters, and indents further lines, in each record's message and traceback; all pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Exchange what is not printable, and leave alone what is."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            return True  # a mistake in a log call of ours; logging says so itself
        harmless = _further(printable(without_secrets(message)))
        if harmless != message:
            record.msg, record.args = harmless, None
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            try:
                parts = traceback.format_exception(*record.exc_info)
            except BaseException:  # noqa: BLE001 - attributes of a user's error raise, or of one in its chain
                record.exc_text = f"{record.exc_info[0].__qualname__}: (its traceback cannot be shown)"
                return True
            harmless = "".join(_safe(parts))
            if harmless != "".join(parts):
                record.exc_text = harmless.rstrip("\n")
        return True


def _further(text: str) -> str:
    """Text whose second and further lines begin with a space at least; empty ones stay, and pass for nothing."""
    return re.sub(r"\n(?=\S)", "\n    ", text)


def _safe(parts: Iterable[str]) -> Iterator[str]:
    """The parts of a traceback: of what an exception and its notes say only the first line begins where it would."""
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
    """The logger of that name, made harmless; asked for again, the same."""
    found = logging.getLogger(name)
    found.addFilter(_harmless)
    return found
