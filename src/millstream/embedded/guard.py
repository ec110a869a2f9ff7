"""Locks that the garbage collector may run into.

redis-py closes connections and pools from ``__del__``, which Python may call at any allocation. This thread may
then be inside a command of the same store, or of another one. Closing must not take a lock then, nor wait, or the
thread would wait for itself. So each thread knows whether it is inside a :class:`Guard`, and puts off such
closing until it has left the outermost. A thread that others wait for while they close (the background thread of a
store) leaves such work to them altogether.

Every command passes a guard, so it is made of what the interpreter has in C: a lock that knows its owner.
"""

import threading
from collections import deque
from collections.abc import Callable

from millstream.errors import UsageError
from millstream.logs import logger

log = logger("millstream.embedded")

Job = Callable[[], None]

INSIDE = "a store was called from within a call of it, as only a signal's handler can: let that set a flag instead"

# For each guard, a function that is True while this thread has it
_mine: dict[int, Callable[[], bool]] = {}


class _Here(threading.local):
    """This thread's state."""

    is_helper = False


_here = _Here()


class _PutOff:
    """Work to be done later."""

    __slots__ = ("left_over", "own", "starting")

    def __init__(self) -> None:
        # Jobs by the number of the thread that does them when it has left the outermost guard
        self.own: dict[int, deque[Job]] = {}
        # Jobs that helpers put off, for the next other thread that leaves a guard
        self.left_over: deque[Job] = deque()
        # Helpers with a thread that may run already, but is not known as one yet
        self.starting: set[threading.Thread] = set()


late = _PutOff()


class Guard:
    """A lock; inside it :func:`outside` puts off its jobs. One thread cannot take it while it has it."""

    __slots__ = ("is_mine", "lock")

    def __init__(self) -> None:
        # The lock itself, for a caller that cannot afford two calls: it asks :attr:`is_mine` first, and looks at
        # :data:`late` after leaving
        self.lock = threading.RLock()
        # True if this thread has it
        self.is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined] # noqa: SLF001 - as threading.Condition has it
        _mine[id(self)] = self.is_mine

    def __del__(self) -> None:
        _mine.pop(id(self), None)

    def __enter__(self) -> None:
        if self.is_mine():
            raise UsageError(INSIDE)
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if late.own or late.left_over:
            catch_up()


def _is_inside() -> bool:
    return any(is_mine() for is_mine in list(_mine.values()))


def outside(job: Job) -> None:
    """Call ``job`` now, or as soon as this thread, or another if this is a helper, has left every guard."""
    if _here.is_helper or late.starting:
        late.left_over.append(job)
    elif _is_inside():
        late.own.setdefault(threading.get_ident(), deque()).append(job)
    else:
        job()


class Helper(threading.Thread):
    """A thread that others wait for when they close; it may be started from inside a guard.

    ``start`` waits for the new thread. The collector may run in the new thread before it is known as a helper. A job
    that takes the starter's guard would then never end, so all jobs are put off until it is known.
    """

    def start(self) -> None:
        """Start the thread, as every thread's ``start`` does."""
        late.starting.add(self)
        try:
            super().start()
        except BaseException:
            late.starting.discard(self)
            raise

    def run(self) -> None:
        """The target."""
        _here.is_helper = True
        late.starting.discard(self)
        super().run()


def forget_guards() -> None:
    """Forget the guards in a forked child: the threads that may be inside one are not here."""
    _mine.clear()
    late.own.clear()
    late.starting.clear()


def catch_up() -> None:
    """Do the work that was put off; failures are logged."""
    if _here.is_helper or _is_inside():
        return
    for jobs in (late.own.pop(threading.get_ident(), None), late.left_over):
        while jobs:
            try:
                job = jobs.popleft()
            except IndexError:  # another thread took it
                break
            try:
                job()
            except Exception:  # the kind of this thread has nothing to do with it
                log.exception("closing a dropped client failed")
