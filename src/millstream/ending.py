"""SIGTERM and Ctrl-C in a process that ends in order: which signal is the first, and which one means at once.

Service managers send SIGTERM to every process of a service, wrappers pass on what they get, and some tools repeat it:
the same wish then comes several times within moments. So SIGTERMs within two seconds of the first signal are part of
it. Later ones, and any Ctrl-C after the first signal, mean at once: there is a person who does not want to wait.
"""

import os
import signal
import time
from collections.abc import Callable

#: Seconds after the first signal during which SIGTERM says nothing new.
ONE_WISH = 2.0


def has_ended(pid: int) -> bool:
    """True if this machine has no process of that number; False where the system does not report it."""
    # Signal 0 is not sent: the kernel only reports whether it could be
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


class Ending:
    """Hears the signals that ask one process to end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: float | None = None

    @property
    def asked(self) -> bool:
        """True from the first signal on."""
        return self._first is not None

    def at_once(self, number: int) -> bool:
        """Take note of a signal; True when it means that the process is to end at once, with nothing put in order."""
        now = self._clock()
        if self._first is None:
            self._first = now
            return False
        return number == signal.SIGINT or now - self._first > ONE_WISH
