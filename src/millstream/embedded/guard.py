"""Locks that are safe when the garbage collector closes a client.

redis-py closes connections and pools from ``__del__``, which Python may call at any allocation. The thread may then be
inside a command of the same store, or of another one. Closing must then neither take a lock nor wait, or the thread
would wait for itself. So each thread records whether it is inside a :class:`Guard`, and postpones such closing until it
has left the outermost one. Other threads wait for the background thread of a store when they close it, so that thread
leaves all such work to them.

Every command passes a guard, so it uses a lock that the interpreter implements in C.
"""

import threading
from collections import deque
from collections.abc import Callable

from millstream.errors import UsageError
from millstream.logs import logger

log = logger("millstream.embedded")

Job = Callable[[], None]

INSIDE = "a store was called from within a call of it, as only a signal's handler can: let that set a flag instead"

# For each guard, a function that returns True while this thread holds it
_mine: dict[int, Callable[[], bool]] = {}


class _Here(threading.local):
    """The state of this thread."""

    is_helper = False


_here = _Here()


class _PutOff:
    """Postponed jobs."""

    __slots__ = ("left_over", "own", "starting")

    def __init__(self) -> None:
        # Jobs by the id of the thread that runs them after it has left the outermost guard
        self.own: dict[int, deque[Job]] = {}
        # Jobs that helpers postponed, for the next other thread that leaves a guard
        self.left_over: deque[Job] = deque()
        # Helpers whose thread may already run, but is not registered yet
        self.starting: set[threading.Thread] = set()


late = _PutOff()


class Guard:
    """A lock inside which :func:`outside` postpones its jobs. A thread cannot take it twice."""

    __slots__ = ("is_mine", "lock")

    def __init__(self) -> None:
        # The lock itself, for a caller that must save two calls: it checks :attr:`is_mine` first, and :data:`late`
        # after leaving
        self.lock = threading.RLock()
        # True if this thread holds it
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
    """Call ``job`` now, or when the thread has left every guard.

    A helper thread leaves the job to the next other thread that leaves a guard.
    """
    if _here.is_helper or late.starting:
        late.left_over.append(job)
    elif _is_inside():
        late.own.setdefault(threading.get_ident(), deque()).append(job)
    else:
        job()


class Helper(threading.Thread):
    """A thread that other threads wait for when they close a store. It may be started from inside a guard.

    ``start`` waits for the new thread. The garbage collector may run in the new thread before it is registered as a
    helper. A job that takes the starter's guard would then never end, so all jobs are postponed until it is registered.
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
        """Register this thread as a helper, then run its target."""
        _here.is_helper = True
        late.starting.discard(self)
        super().run()


def forget_guards() -> None:
    """Forget the guards in a forked child, which lacks the threads that may be inside one."""
    _mine.clear()
    late.own.clear()
    late.starting.clear()


def catch_up() -> None:
    """Run the postponed jobs; failures are logged."""
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
            except Exception:  # the job does not belong to this thread's own call
                log.exception("closing a dropped client failed")
