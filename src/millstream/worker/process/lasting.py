"""An event loop for a worker: it runs until the worker itself ends, whatever a handler's code does.

In asyncio, SystemExit and KeyboardInterrupt from any task or callback end the loop. In a worker, a handler could then
end the process with exit code 0 and no error in a dead letter. So could a call of the loop's ``stop``, or a cancel of
the worker's own tasks.
"""

import asyncio
import os
import sys
import threading
from asyncio.events import Handle
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

from millstream.errors import UsageError
from millstream.logs import logger
from millstream.worker.handlers.calling import ends_process
from millstream.worker.settlement import running

log = logger("millstream.worker")

#: Seconds in which the user's tasks and threads must end after the app; shorter than a supervisor waits.
_CLEAN_UP_SECONDS = 8.0

_OURS = str(Path(__file__).parents[2])
#: Paths of code that may cancel any task.
_TRUSTED = (_OURS, str(Path(asyncio.__file__).parent))


def run_lasting(main: Coroutine[Any, Any, int], *, ends_process: bool = False) -> int:
    """Run a coroutine to its end, as asyncio.run does, and return the exit code.

    With ``ends_process``, threads that never end do not delay the end of the process.
    """
    late: threading.Timer | None = None
    try:
        with asyncio.Runner() as runner:
            code = 1
            try:
                code = _run(runner.get_loop(), main)
            finally:
                # At its end the runner waits for threads, and a handler in one may never return
                late = threading.Timer(_CLEAN_UP_SECONDS, _end_now, (code,))
                late.daemon = True
                late.start()
    finally:
        if late is not None and not ends_process:
            late.cancel()
    return code


class _WorkersTask(asyncio.Task[Any]):
    """A task that a handler's code cannot cancel if it belongs to the worker or runs another entry."""

    def __init__(self, coro: Any, *, context: Context | None = None, **options: Any) -> None:
        self._own = copy_context() if context is None else context
        super().__init__(coro, context=self._own, **options)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task, if the caller may; as for :class:`asyncio.Task`."""
        work = running.AT_WORK.get()
        if work is None or self._own.get(running.AT_WORK) is work or not self._is_ours():
            return super().cancel(msg)
        if sys._getframe(1).f_code.co_filename.startswith(_TRUSTED):  # noqa: SLF001 - the caller's code
            return super().cancel(msg)
        _blame(work, UsageError("the handler cancelled a task of the worker. Cancel only tasks that you have created."))
        return False

    def _is_ours(self) -> bool:
        code = getattr(self.get_coro(), "cr_code", None)
        return code is not None and code.co_filename.startswith(_OURS)


def _guard(loop: asyncio.AbstractEventLoop) -> None:
    """Prevent handlers from ending a loop by its ``stop`` or by a cancel of the worker's tasks."""
    stop, process = loop.stop, os.getpid()

    def forked() -> None:
        # Before any other callback, since the forked copy shares its connections with this process
        ready = getattr(loop, "_ready", None)  # other loops do not run in a copy
        if ready is not None and os.getppid() == process and not loop.is_closed():
            ready.appendleft(Handle(_end_copy, (), loop))

    os.register_at_fork(after_in_child=forked)

    def stop_unless_asked_by_a_handler() -> None:
        work = running.AT_WORK.get()
        if work is None:
            stop()
        else:
            _blame(work, UsageError("the handler stopped the worker's event loop. Raise Reject or Nack instead."))

    run_in_executor = loop.run_in_executor

    def run_in_living_executor(executor: Any, function: Any, *given: Any) -> Any:
        try:
            return run_in_executor(executor, function, *given)
        except RuntimeError:  # the executor is shut down
            if executor is not None:
                raise
        # A handler has temporarily replaced the executor, or shut it down, but asyncio needs one to resolve host names
        loop._executor_shutdown_called = False  # type: ignore[attr-defined] # noqa: SLF001 - no other way
        loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
        return run_in_executor(None, function, *given)

    loop.stop = stop_unless_asked_by_a_handler  # type: ignore[method-assign] # asyncio has no setting for it
    loop.run_in_executor = run_in_living_executor  # type: ignore[method-assign,assignment] # as above
    loop.set_task_factory(lambda loop, coro, **options: _WorkersTask(coro, loop=loop, **options))


def _end_copy() -> None:
    log.error(
        "a handler has forked the worker, and the copy awaits something: ending the copy. Use multiprocessing or "
        "subprocess, or end a copy by os._exit before it awaits or returns"
    )
    os._exit(1)


def _blame(work: running.Work, error: UsageError) -> None:
    log.warning("%s The worker goes on, and it counts as a failure of the entry", error)
    running.blame(work, error)


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, int]) -> int:
    _guard(loop)
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except BaseException as error:
            if task.done() or ends_process(error) or not _fails_entry(error):
                raise


def _fails_entry(error: BaseException) -> bool:
    """Charge an error from a task or a callback to the entry for which it ran; return False if there is none."""
    handle = _handle(error)
    work = None if handle is None else handle._context.get(running.AT_WORK)  # type: ignore[attr-defined] # noqa: SLF001 - as typeshed leaves it out
    if work is None:
        return False
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[union-attr] # noqa: SLF001 - a task's step
    task = owner if isinstance(owner, asyncio.Task) else None
    log.warning(
        "%s left the event loop in %s of a handler; the worker goes on, and it counts as a failure of the entry",
        type(error).__name__,
        "a callback" if task is None else "a task",
    )
    running.blame(work, error, task)
    return True


def _handle(error: BaseException) -> Handle | None:
    """Return the callback that the loop ran when it raised."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is Handle._run.__code__:  # noqa: SLF001 - the one frame that knows
            found: Handle = trace.tb_frame.f_locals["self"]
            return found
        trace = trace.tb_next
    return None


def _end_now(code: int) -> None:
    log.error(
        "a task or thread goes on %g s after the app has stopped; ending the process. Let tasks that a hook starts end "
        "when they are cancelled",
        _CLEAN_UP_SECONDS,
    )
    os._exit(code)
