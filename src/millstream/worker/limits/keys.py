"""The key of an entry: the value of a field, or of a function of the message."""

import asyncio
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from millstream.worker.handlers.calling import ends_process
from millstream.worker.handlers.fields import as_key, key_of
from millstream.worker.handlers.message import Message
from millstream.worker.model.answers import PayloadError
from millstream.worker.model.error_text import summarize, tame
from millstream.worker.settlement.consumer import Held


def checked(key: Hashable) -> Hashable:
    """The value of a function, which must not be a coroutine."""
    if inspect.isawaitable(key):
        raise TypeError("the key function returned an awaitable: make it a plain function")
    return key


def limit_key(key: str | Callable[[Any], Hashable], held: Held, message: Callable[[Held], Message]) -> bytes | None:
    """The key of an entry as bytes; a PayloadError where it cannot be found."""
    try:
        return key_of(held.fields, key) if isinstance(key, str) else as_key(checked(key(message(held))))
    except BaseException as error:
        if ends_process(error) or isinstance(error, asyncio.CancelledError):
            raise
        raise PayloadError(f"limit key: {summarize(error)}") from tame(error)
