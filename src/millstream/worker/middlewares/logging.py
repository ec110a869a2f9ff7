"""Log context: mark each log record that is made while a handler runs with its entry, in threads as well.

::

    app = App(middlewares=[LogContext()])
    handler.addFilter(EntryFilter())       # on a logging.Handler
    logging.Formatter("%(levelname)s %(stream)s %(entry_id)s %(message)s")
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware, Run, RunBatch

_entry: ContextVar[Mapping[str, str | int]] = ContextVar("millstream_entry")

#: Attributes that :class:`EntryFilter` sets, with their values outside of a handler.
OUTSIDE: Mapping[str, str | int] = {"stream": "-", "group": "-", "consumer": "-", "entry_id": "-", "delivery": 0}


def entry_context() -> Mapping[str, str | int]:
    """Return facts about the current handler's entry, by the names of :data:`OUTSIDE`, for any structured logger."""
    return _entry.get(OUTSIDE)


class EntryFilter(logging.Filter):
    """Sets :func:`entry_context` as attributes of each record; every record passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes that the record lacks."""
        for name, value in entry_context().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class LogContext(Middleware):
    """Sets the log context for the time of a run; for a batch, ``entry_id`` is the id of the first entry.

    A context variable holds the context, so tasks that the handler starts and its thread have it too.
    """

    async def run(self, call_next: Run, msg: Message) -> Any:
        """Run the handler in the log context of its entry."""
        with _described(msg):
            return await call_next(msg)

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """Run the handler in the log context of the batch."""
        with _described(msgs[0]):
            return await call_next(msgs)


@contextlib.contextmanager
def _described(msg: Message) -> Iterator[None]:
    # Same names as in the worker's own log records, so that one filter finds both
    token = _entry.set(msg._outcomes.member.about(msg._held))  # noqa: SLF001 - they are the message's own
    try:
        yield
    finally:
        _entry.reset(token)
