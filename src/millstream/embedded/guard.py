"""Locks that the garbage collector may run into.

redis-py closes connections and pools from ``__del__``, which Python may call at any allocation: while this very thread
is inside a command of the same store, or of another one. Closing must not take a lock then, nor wait for anything, or
the thread would wait for itself. So each thread knows whether it is inside a :class:`Guard`; what it is told to close
meanwhile is put off until it has left the outermost. A thread that others wait for while they close (the background
thread of a store) leaves such work to them altogether.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("millstream.embedded")


# What helpers were told to close, for the next other thread that leaves a guard.
_left_over: deque[Callable[[], None]] = deque()


class _Here(threading.local):
    """This thread's state: how many guards it is inside of, and what was put off."""

    depth = 0
    is_helper = False
    late = _left_over  # until the thread has its own: the collector may run while that is made

    def __init__(self) -> None:
        self.late = deque()


_here = _Here()


class Guard:
    """A lock; inside it :func:`outside` puts off what it is given. One thread cannot take it while it has it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        _here.depth += 1
        try:
            self._lock.acquire()
        except BaseException:
            _here.depth -= 1
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        here = _here
        here.depth = depth = here.depth - 1
        if not depth and (here.late or _left_over):
            catch_up()


def outside(job: Callable[[], None]) -> None:
    """Call ``job`` now, or as soon as this thread, or another if this is a helper, has left every guard."""
    if _here.is_helper:
        _left_over.append(job)
    elif _here.depth:
        _here.late.append(job)
    else:
        job()


def be_helper() -> None:
    """The calling thread is one that others wait for when they close."""
    _here.is_helper = True


def catch_up() -> None:
    """Do what was put off; what goes wrong is logged."""
    if _here.is_helper:
        return
    for jobs in (_here.late, _left_over):
        while jobs:
            try:
                job = jobs.popleft()
            except IndexError:  # another thread took it
                break
            try:
                job()
            except Exception:  # whose thread this is has nothing to do with it
                log.exception("closing what was dropped failed")
