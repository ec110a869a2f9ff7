"""The output of Java while it starts, held back and shown only if the start fails.

Java and Spark print warnings (incubator modules, logging profiles, native libraries) before any log settings take
effect. In a command they precede the result and mean nothing. If the start fails, they explain it.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_CHUNK = 1 << 16


class _Relay:
    """Reads a pipe: keeps the output at first, and passes it on to standard error later."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._kept: bytes | None = b""
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name="java's standard error", daemon=True).start()

    def _work(self) -> None:
        while chunk := os.read(self._pipe, _CHUNK):
            with self._lock:
                if self._kept is None:
                    os.write(_STDERR, chunk)
                else:
                    self._kept += chunk
        os.close(self._pipe)

    def open(self, *, show: bool) -> None:
        """Pass on output from now on; the kept output is shown first, or dropped."""
        with self._lock:
            if show and self._kept:
                os.write(_STDERR, self._kept)
            self._kept = None


@contextmanager
def held_back() -> Iterator[int]:
    """Yield a file descriptor for Java's standard error; its output is shown if the block fails.

    After a block that ended well, the earlier output is dropped and later output is passed on.
    """
    reader, writer = os.pipe()
    relay = _Relay(reader)
    try:
        yield writer
    except BaseException:
        relay.open(show=True)
        raise
    finally:
        os.close(writer)
    relay.open(show=False)
