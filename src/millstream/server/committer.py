"""The server's shell of the group commit: a turn of the event loop, a timer, and one thread that writes and syncs.

:mod:`millstream.node.durability.group_commit` decides when to write, and which replies may be sent. This module carries
out its steps. The loop does quick ones itself, at the end of the turn in which the commands ran. The thread does those
that wait for a slow disk, and reports to the loop. So only the loop's thread touches the group commit.

Under ``everysec`` the loop orders the sync a little before it is due. If one command blocks the loop, the thread syncs
without an order: acknowledged writes do not wait for the end of a script.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from millstream.errors import StorageError
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import SYNC_SECONDS, CommitStep, Fsync, GroupCommit, Report, perform_safely
from millstream.node.durability.held_replies import ReplyGate
from millstream.persistence.log import Log

T = TypeVar("T")

EARLY = 0.1
"""Seconds before a sync is due at which the loop orders it; when it is due, the thread syncs without an order."""

_NO_MEMORY_SECONDS = 0.01  # delay before the thread retries after a lack of memory, since no event reports free memory

Job = Callable[[], object]
"""Work of other code that runs in the thread between writes."""


def answered(job: Callable[[], T]) -> tuple[Callable[[], None], Future[T]]:
    """Return a function that runs a job in another thread, and the future that gets its result or exception."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)

    return run, done


class Committer:
    """Writes and syncs one log for the sessions of one event loop."""

    def __init__(
        self,
        log: Log,
        policy: Fsync,
        guard: DiskGuard,
        on_failure: Callable[[StorageError], None],
        *,
        gate: ReplyGate | None = None,
        sync_seconds: float = SYNC_SECONDS,
        early: float = EARLY,
    ) -> None:
        self._log = log
        self._guard = guard
        self._on_failure = on_failure
        self._sync_seconds = sync_seconds
        self._loop = asyncio.get_running_loop()
        late = max(sync_seconds - early, 0)
        self._commit = GroupCommit(log, policy, guard, self._loop.time(), sync_seconds=late, may_wait=True, gate=gate)
        self.gate = self._commit.gate  # Position up to which replies may be sent, with the connections that wait
        # Called in the loop before a group is written, and may add to it
        self.before_write: Callable[[], None] = lambda: None
        self._turn_scheduled = False
        self._closing = False  # close() does the remaining work
        self._ending = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None  # loop time; uvloop's handle stores it only to the millisecond
        self._asked: list[tuple[Job, Future[Any]]] = []  # jobs from other threads, to run when the thread is idle
        self._idle = asyncio.Event()  # set while the thread is idle
        self._idle.set()
        # Items for the thread. A step to run; or a number: sync by this monotonic time, in seconds; or None: end
        self._steps: queue.SimpleQueue[tuple[CommitStep, Job | None] | float | None] = queue.SimpleQueue()
        self._report: Report | None = None  # result of the last step, until the loop has processed it
        self._thread = threading.Thread(target=self._work, name="millstream-commit", daemon=True)
        self._thread.start()

    @property
    def synced_at(self) -> float:
        """Loop time of the last sync, or of the start."""
        return self._commit.synced_at

    @property
    def slow_syncs(self) -> int:
        """Number of syncs that took seconds, since the start."""
        return self._commit.slow_syncs

    @property
    def is_idle(self) -> bool:
        """True if no step is running, and none is due before further commands or a timer."""
        return self._idle.is_set() and not self._turn_scheduled

    # ------------------------------------------------------------------ in the loop

    def begin(self) -> None:
        """Measure the free space before the first write."""
        self._turn()

    def poke(self) -> None:
        """Commit the records of commands that ran, at the end of this turn of the loop."""
        if self._commit.retry_if_floor_moved():
            self._turn()
        elif self._commit.has_group:
            self._schedule_turn()

    def end_turn(self) -> None:
        """Commit this turn's commands now, before other tasks of the loop run."""
        if self._commit.retry_if_floor_moved() or self._commit.has_group:
            self._turn()

    def retry(self) -> None:
        """Try a disk that refuses writes again now, before the retry is due."""
        self._commit.retry()
        self._turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._loop.call_soon(self._turn)
            self._turn_scheduled = True

    def _turn(self, due: float = 0.0) -> None:
        """Do the due steps, until there is none or the thread runs one; then set a timer for later ones.

        If memory runs out during that, the next turn does it again: waiting replies are sent even without further
        commands.
        """
        self._turn_scheduled = False
        try:
            while not self._closing:
                now = max(self._loop.time(), due)  # a timer may fire slightly early
                step = self._commit.next_step(now)
                if step is None:
                    break
                if step.writes:
                    self.before_write()
                if step.in_thread:
                    self._start(step)
                else:
                    self._settle(perform_safely(step, self._log, self._guard))
            self._set_timer()
        except MemoryError:
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        """Repeat a turn in which memory ran out, perhaps while it released replies."""
        self.gate.open()
        self._turn()

    def _set_timer(self) -> None:
        due = None if self._closing or self._commit.is_busy else self._commit.next_due()
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = None if due is None else self._loop.call_at(due, self._timer_rings, due)

    def _timer_rings(self, due: float) -> None:
        self._timer = self._timer_at = None
        self._turn(due)

    def _settle(self, report: Report) -> None:
        """Process the result of a step, and release the replies that waited for it."""
        commit = self._commit
        had_failed, had_sync_due = commit.failure, commit.sync_at is not None
        if commit.done(report, self._loop.time()):
            self.gate.open()
        elif report.step.syncs:
            self.gate.tell_watchers()
        if commit.failure is not None and commit.failure is not had_failed:
            self._on_failure(commit.failure)
        if commit.sync_at is not None and not had_sync_due:
            self._steps.put(time.monotonic() + self._sync_seconds)  # the thread measures too, in case the loop is late

    def exclusively(self, job: Callable[[], T]) -> T:
        """Run a job in the thread that writes, between two groups, and wait for it; for other threads."""
        run, done = answered(job)
        self._loop.call_soon_threadsafe(self._ask, run, done)
        return done.result()

    def _ask(self, job: Job, done: Future[T]) -> None:
        if self._closing or self._commit.failure is not None:
            done.set_exception(StorageError("the log accepts no more jobs"))
        elif self._commit.is_busy:
            self._asked.append((job, done))
        else:
            try:
                self._start(CommitStep.WRITE_AND_SYNC, job)  # completes immediately if the job found the disk failing
            except MemoryError as error:
                done.set_exception(error)

    def _start(self, step: CommitStep, job: Job | None = None) -> None:
        # First the parts for which memory may be missing: if a step were marked as running but never reached the
        # thread, no other step would follow
        self._steps.put((step, job))
        self._commit.begin(step)
        self._idle.clear()

    def _finished(self) -> None:
        """Process the thread's report, in the loop."""
        report, self._report = self._report, None
        if report is not None:
            self._take_in(report)

    def _take_in(self, report: Report) -> None:
        self._idle.set()
        try:
            self._settle(report)
        except MemoryError:
            if self._commit.is_busy:  # no part of the report was processed
                self._loop.call_soon(self._take_in, report)
            else:
                self._loop.call_soon(self._again)
            return
        asked, self._asked = self._asked, []
        for job, done in asked:
            self._ask(job, done)
        self._schedule_turn()

    # ------------------------------------------------------------------ in the thread

    def _work(self) -> None:
        """Run one step after the other in the thread, and report each to the loop."""
        due: float | None = None  # time of the next automatic sync
        while True:
            try:
                given = self._steps.get(timeout=None if due is None else max(due - time.monotonic(), 0))
            except queue.Empty:
                due = None
                self._sync_unasked()
                continue
            if given is None:
                return
            if isinstance(given, float):
                due = given
                continue
            step, job = given
            due = None
            if job is not None:
                job()
            self._report = perform_safely(step, self._log, self._guard)
            self._tell()

    def _tell(self) -> None:
        """Have the loop read the report; repeat while there is no memory for the call."""
        while True:
            try:
                self._loop.call_soon_threadsafe(self._finished)
            except MemoryError:
                time.sleep(_NO_MEMORY_SECONDS)  # the thread has nothing else to do before the loop is notified
            else:
                return

    def _sync_unasked(self) -> None:
        """Sync because the loop is late. No step waits for the result, so it is not reported."""
        with contextlib.suppress(BaseException):  # the log then refuses all writes, which the next step reports
            self._log.sync()

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Commit everything appended so far, release it, and end the thread. The log itself stays open.

        Records that a full disk refuses again stay in the log, unreleased. A second call waits for the first, and then
        does nothing.
        """
        self._closing = True
        async with self._ending:
            if not self._thread.is_alive():
                return
            self._set_timer()
            await self._idle.wait()
            if self._commit.failure is None:
                self._start(CommitStep.WRITE_AND_SYNC)
                await self._idle.wait()
            self._steps.put(None)
            self._thread.join()
