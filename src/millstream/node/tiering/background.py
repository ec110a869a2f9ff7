"""One thread at a time that works for the loop: it writes packs, reads them for checks, or ends them.

Nothing else in a node writes to packs, so no two jobs meet.
"""

import threading
from collections.abc import Callable
from typing import Any

from millstream.clock import Now
from millstream.logs import logger

log = logger("millstream.tier")

Take = Callable[[Any, Now], None]
"""Called in the loop with the result of a job."""


class NoThreadError(Exception):
    """The system starts no thread; the job may be given again."""


class JobError(Exception):
    """A job ended with an error, the cause of this one; a later job may follow."""


class TierThread:
    """Runs one job after the other, each in a thread; the loop takes the result in a turn."""

    def __init__(self, wake: Callable[[], None], thread: type[threading.Thread]) -> None:
        self._wake, self._new_thread = wake, thread
        self._ending = threading.Lock()  # guards is_stopped and the start of a thread
        self.is_stopped = False  # Nothing begins any more
        self._thread: threading.Thread | None = None
        self._taking: Take | None = None  # Takes the result of the present job; None without one
        self._result: tuple[Any] | Exception | None = None  # Result or error, until the loop has taken it
        self._lacks = False  # The system started no thread for the last job
        self._held = 0  # Bytes that the last job holds

    @property
    def is_busy(self) -> bool:
        """True from the start of a job until its result was taken."""
        return self._taking is not None

    @property
    def is_done(self) -> bool:
        """True if there is a result to take."""
        return self._result is not None

    @property
    def held(self) -> int:
        """Bytes that the present job holds."""
        return self._held if self.is_busy else 0

    def run(self, job: Callable[[], Any], take: Take, held: int = 0) -> None:
        """Run a job, which reports its failures by its result, and holds so many bytes until that is taken.

        Raises:
            NoThreadError: the system starts no thread.
        """
        thread = self._new_thread(target=self._run, args=(job,), name="millstream-tier", daemon=True)
        with self._ending:
            self._taking, self._held = take, held
            if self.is_stopped:
                return
            try:
                thread.start()
            except BaseException as error:
                self._taking = None
                if not isinstance(error, RuntimeError | MemoryError):
                    raise
                if not self._lacks:
                    log.warning("no thread for work on packs was started; it is tried again: %r", error)
                self._lacks = True
                raise NoThreadError from error
            self._thread, self._lacks = thread, False

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            self._result = (job(),)
        except Exception as error:  # noqa: BLE001 - the loop raises it; without a result no other job would follow
            self._result = error
        self._wake()

    def take(self, now: Now) -> None:
        """Take the result of the job that has ended.

        Raises:
            JobError: the job raised an error.
        """
        taking, result = self._taking, self._result
        self._taking = self._result = None
        assert taking is not None, "it has run"
        assert result is not None, "it has ended"
        if isinstance(result, Exception):
            raise JobError("a job of the thread that writes packs failed") from result
        taking(*result, now)

    def forget(self) -> None:
        """Drop the result of a job that has ended."""
        self._taking = self._result = None

    def wait(self) -> None:
        """Wait for the job, which ends soon; called in another thread while no new job may begin."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Let nothing begin any more, and wait for the job."""
        with self._ending:
            self.is_stopped = True
        self.wait()
