"""Group commit: many commands, one write and one fsync, and no reply before the disk has what it tells of.

Commands append records to the log while they run. When a turn of the event loop is over they are written:

``always``
    One thread writes and syncs. Meanwhile further commands run and append; they are the next group. A reply waits for
    its record to be *durable*. Under load a group is as large as what arrives during one fsync.
``everysec``
    The loop writes at once, and the thread syncs once a second. A reply waits for its record to be *written*: the end
    of the process loses nothing, the end of the machine about a second. If the loop does not ask for the sync in time,
    since one command keeps it busy, the thread syncs unasked.
``no``
    The same without the syncs, except when the server stops.

A disk that fails ends it: nothing above the last durable record is ever released, and :attr:`Committer.failure` is
told to the server, which stops. A second try would lie, since the kernel forgets what a failed fsync did not store.

A disk that is full does not: nothing of the refused group was written, the log keeps it, and the replies stay held. The
room (:mod:`millstream.node.disk_guard`) has further writes turned away; the group is tried again from time to time.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from millstream.errors import DiskFullError, StorageError
from millstream.node.disk_guard import LOOK_SECONDS, Room
from millstream.server.settings import Fsync

T = TypeVar("T")

SYNC_SECONDS = 1.0
"""The longest that ``everysec`` leaves something unsynced (Redis: the same)."""

EARLY = 0.1
"""So many seconds before that the loop asks for the sync; at the end of them the thread syncs unasked."""


Job = Callable[[], tuple[int, int | None]]
"""What the thread does: it returns the last durable position and the free bytes, if they are known."""


def _watch() -> tuple[int, int | None]:
    """A mark among the jobs, never called: from here on a sync is to be asked for in time."""
    raise AssertionError


class LogFile(Protocol):
    """What the committer needs of a log; :class:`millstream.persistence.log.Log` is one."""

    @property
    def appended(self) -> int:
        """Last position given out."""
        ...

    @property
    def durable(self) -> int:
        """Last position on the medium."""
        ...

    def write(self) -> int:
        """Hand all buffered records to the operating system; the last position written."""
        ...

    def sync(self) -> int:
        """Bring what was written to the medium; the last durable position."""
        ...


class Waiting(Protocol):
    """Whoever has replies that wait for a position."""

    def release(self) -> None:
        """The released position has moved on."""
        ...


class Committer:
    """Writes and syncs one log for the sessions of one event loop.

    Args:
        log: the log; its ``append`` is called by others, in the loop's thread.
        policy: when to sync.
        room: told of a full disk and of free space.
        on_failure: called once, in the loop, when the disk has failed.

    Attributes:
        released: replies may go out that wait for this position or an earlier one.
        waiting: who waits for more; each leaves by itself when it has got what it waited for.
        failure: why the disk failed, or None.
        synced_at: loop time of the last sync, or of the start.
    """

    def __init__(self, log: LogFile, policy: Fsync, room: Room, on_failure: Callable[[StorageError], None]) -> None:
        self._log = log
        self._policy = policy
        self._room = room
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.released = log.appended
        self.waiting: dict[Waiting, None] = {}
        self.failure: StorageError | None = None
        self.synced_at = self._loop.time()
        self._due = False  # a turn is scheduled
        self._busy = False  # the thread works
        self._closing = False  # close() does what is left to do
        self._synced = log.appended
        self._timer: asyncio.TimerHandle | None = None
        self._next_try: asyncio.TimerHandle | None = None
        self._look_at = 0.0  # loop time from which free space is looked at again
        self._asked: list[tuple[Job, Future[Any]]] = []  # jobs of others, for when it is idle
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="millstream-commit", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Look at the free space before anything is written."""
        self._look(self._room.measure())

    def poke(self) -> None:
        """Commands have run: whatever they appended is to be committed when this turn of the loop is over."""
        if self._next_try is not None and not self._closing and self._room.has_moved():
            self._next_try.cancel()  # who lowers the floor by CONFIG SET need not wait for it
            self._try_again()
        if self._due or self._busy or self._room.is_full:
            return
        if self._log.appended > self.released and self.failure is None:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        if self._busy or self._closing or self.failure is not None or self._room.is_full:
            return
        if self._policy == "always":
            self._start(self._write_and_sync)
            return
        try:
            self._release(self._log.write())
        except StorageError as error:
            self._fail(error)
            return
        if self._room.is_near or self._loop.time() >= self._look_at:
            self._look_at = self._loop.time() + LOOK_SECONDS
            self._look(self._room.measure())
        if self._policy == "everysec" and self._timer is None:
            self._timer = self._loop.call_later(max(SYNC_SECONDS - EARLY, 0), self._sync_due)
            self._jobs.put(_watch)

    def _sync_due(self) -> None:
        self._timer = None
        if not self._busy and self.failure is None:
            self._start(self._sync)

    def _sync(self) -> tuple[int, int | None]:
        return self._log.sync(), self._room.measure()

    def _write_and_sync(self) -> tuple[int, int | None]:
        self._log.write()
        return self._sync()

    def _start(self, job: Job) -> None:
        self._busy = True
        self._idle.clear()
        self._jobs.put(job)

    def exclusively(self, job: Callable[[], T]) -> T:
        """Run a job in the thread that writes, between two groups, and wait for it; called from other threads.

        Raises:
            StorageError: no more jobs are run, since the disk has failed or the server stops.
        """
        done: Future[T] = Future()

        def run() -> tuple[int, int | None]:
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it belongs to who asked
                done.set_exception(error)
            return self._write_and_sync()  # says at once if the job found the disk failing

        self._loop.call_soon_threadsafe(self._ask, run, done)
        return done.result()

    def _ask(self, run: Job, done: "Future[T]") -> None:
        if self._closing or self.failure is not None:
            done.set_exception(StorageError("the log takes no more jobs"))
        elif self._busy:
            self._asked.append((run, done))
        else:
            self._start(run)

    def _next_asked(self) -> None:
        asked, self._asked = self._asked, []
        for run, done in asked:
            self._ask(run, done)

    def _work(self) -> None:
        """The thread: one job after the other, each answered in the loop."""
        due: float | None = None  # monotonic seconds by which the loop has asked for a sync, if it is well
        while True:
            try:
                job = self._jobs.get(timeout=None if due is None else max(due - time.monotonic(), 0))
            except queue.Empty:
                due = None
                self._sync_unasked()
                continue
            if job is None:
                return
            if job is _watch:
                due = time.monotonic() + SYNC_SECONDS
                continue
            if job == self._sync:  # it was asked for
                due = None
            try:
                done = job()
            except StorageError as error:
                self._loop.call_soon_threadsafe(self._done, 0, None, error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, no reply may be released after it
                self._loop.call_soon_threadsafe(self._done, 0, None, StorageError(f"the log failed: {error!r}"))
            else:
                self._loop.call_soon_threadsafe(self._done, *done, None)

    def _sync_unasked(self) -> None:
        """The loop is late. What it has written is synced all the same; nothing waits for that, so nothing is told."""
        with contextlib.suppress(BaseException):  # the log takes nothing more then, which the next job finds and tells
            self._log.sync()

    def _done(self, durable: int, free: int | None, error: StorageError | None) -> None:
        self._busy = False
        self._idle.set()
        if error is not None:
            self._fail(error)
            self._next_asked()
            return
        self._synced = durable
        self.synced_at = self._loop.time()
        if durable > self.released:  # under the weaker policies most of it was released when it was written
            self._release(durable)
        self._look(free)
        self._next_asked()
        self.poke()

    def _release(self, position: int) -> None:
        self.released = position
        for waiter in list(self.waiting):
            waiter.release()

    def _look(self, free: int | None) -> None:
        """Everything was written, and so much is free."""
        self._room.worked(free)
        if self._room.state != "ok":
            self._try_later()

    def _try_later(self) -> None:
        if self._next_try is None and not self._closing:
            self._next_try = self._loop.call_later(self._room.delay(), self._try_again)

    def _try_again(self) -> None:
        """Write what is held, if something is, and look at the space; in the thread, whatever the policy."""
        self._next_try = None
        if self._busy:  # that one will tell
            self._try_later()
        elif self.failure is None:
            self._start(self._write_and_sync)

    def _fail(self, error: StorageError) -> None:
        if isinstance(error, DiskFullError):
            if self._log.durable > self.released:
                self._release(self._log.durable)  # by SAVE; nothing of the refused group is in the file
            self._room.refused(error)
            self._try_later()
        elif self.failure is None:
            self.failure = error
            self._on_failure(error)

    async def close(self) -> None:
        """Commit everything appended so far, release it, and end the thread. The log itself stays open.

        What a full disk refuses once more stays in the log, and is not released.
        """
        self._closing = True
        for timer in (self._timer, self._next_try):
            if timer is not None:
                timer.cancel()
        await self._idle.wait()
        self._next_asked()
        if self.failure is None:
            self._start(self._write_and_sync)
            await self._idle.wait()
        if self.failure is None and not self._room.is_full:
            self._release(self._synced)
        self._jobs.put(None)
        self._thread.join()
