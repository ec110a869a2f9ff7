"""Retrying while a server is away: the errors that count as away, and the time to retry.

A restart or a failover must not end a query, so repeatable commands are repeated for half a minute. A refused
command is never repeated: the second reply would be the same.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Seconds that a server may be away that was there before, for a restart or a failover."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Longest seconds between two tries.

The pause doubles up to it, so that waiting clients do not overload a new server.
"""


def lost_contact(reason: BaseException) -> bool:
    """Return True if an error means that the server is away or not ready, not that it refused a command."""
    if isinstance(reason, redis.AuthenticationError):  # redis-py derives it from ConnectionError
        return False
    return isinstance(reason, OSError | redis.ConnectionError | redis.TimeoutError | redis.BusyLoadingError)


def retrying(work: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
    """Call ``work``, and again while the server is away, for at most ``seconds``: only for repeatable work."""
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return work()
        except Exception as reason:
            if not lost_contact(reason) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)  # the server is unreachable; a task can only try again
        pause = min(_LONGEST_PAUSE, pause * 2)
