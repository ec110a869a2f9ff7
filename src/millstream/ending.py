"""Handling of SIGTERM and Ctrl-C: the first signal requests an orderly stop, a later one an immediate stop.

Service managers send SIGTERM to every process of a service, wrappers pass signals on, and some tools repeat them. One
request to stop may therefore arrive several times within moments. SIGTERMs within two seconds of the first signal count
as the same request. A later SIGTERM, and any Ctrl-C after the first signal, request an immediate stop, since a person
is waiting.
"""

import os
import signal
import time
from collections.abc import Callable

#: Seconds after the first signal during which SIGTERM counts as the same request.
ONE_WISH = 2.0


def has_ended(pid: int) -> bool:
    """Return True if this machine has no process with this id, and False if the system does not report it."""
    # Signal 0 is not sent: the kernel only reports whether it could be
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


class Ending:
    """Record of the signals that request one process to stop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: float | None = None

    @property
    def asked(self) -> bool:
        """True from the first signal on."""
        return self._first is not None

    def at_once(self, number: int) -> bool:
        """Record a signal. Return True if the process must stop at once, without an orderly end."""
        now = self._clock()
        if self._first is None:
            self._first = now
            return False
        return number == signal.SIGINT or now - self._first > ONE_WISH
