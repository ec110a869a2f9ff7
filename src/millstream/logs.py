"""The loggers of workers: what they write of others' texts cannot steer the terminal it is read on.

It is done to the records, and not in a formatter, so that it holds in whatever way a program sets up its logging.
"""

import logging

from millstream.printable import printable


class Harmless(logging.Filter):
    """Escapes control characters in the message and the traceback of each record; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Exchange what is not printable, and leave alone what is."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            return True  # a mistake in a log call of ours; logging says so itself
        harmless = printable(message)
        if harmless != message:
            record.msg, record.args = harmless, None
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            text = _formatter.formatException(record.exc_info)
            harmless = printable(text.replace("\t", "    "))
            if harmless != text:
                record.exc_text = harmless
        return True


_formatter = logging.Formatter()
_harmless = Harmless()


def logger(name: str) -> logging.Logger:
    """The logger of that name, made harmless; asked for again, the same."""
    found = logging.getLogger(name)
    found.addFilter(_harmless)
    return found
