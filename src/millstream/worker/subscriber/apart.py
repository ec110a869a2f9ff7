"""Runs in a separate task and context, so that a handler's changes to these never reach the lane that runs it.

A handler may cancel its own task and set context variables. The lane awaits the task in which handlers run. So only
that task ends by the handler's cancel, and a variable that the handler set ends with the task.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from millstream.worker.handlers.calling import ends_process
from millstream.worker.settlement.running import AT_WORK, Work

Result = TypeVar("Result")
_Task = asyncio.Task[Any]


@Coroutine.register
class _Work:
    """A coroutine that replaces a GeneratorExit raised by a task or a thread by another error.

    Otherwise Python would close all coroutines in it, and raise the error in the outermost one, that of a lane.
    """

    __slots__ = ("_work", "close", "send")

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.send, self.close = work.send, work.close  # called for every step

    def throw(self, error: Any, *more: Any) -> Any:
        if issubclass(type(error), GeneratorExit):
            stopped = RuntimeError("a task or a thread raised GeneratorExit")
            stopped.__cause__ = error
            error = stopped
        return self._work.throw(error, *more)

    def __await__(self) -> Any:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class Apart:
    """The tasks of one subscriber in which handlers run. Their contexts are copies of the context of its creation."""

    def __init__(self) -> None:
        self._base = copy_context()
        self._base.run(AT_WORK.set, None)  # same value as after every run
        self._outer: dict[_Task, _Task] = {}  # task of a handler -> the task that awaits it
        self._contexts: dict[_Task, Context] = {}  # context of each handler's task

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Await a coroutine in a separate task; return None if only that task was cancelled."""
        outer = asyncio.current_task()
        assert outer is not None
        context = self._base.copy()
        wrapped: Any = _Work(work)
        inner: asyncio.Task[Result] = asyncio.create_task(wrapped, context=context)
        self._outer[inner], self._contexts[inner] = outer, context
        try:
            return await inner
        except asyncio.CancelledError:
            # A stop cancels the outer task; a handler that cancels itself reaches only the inner one
            if self._is_ending(outer):
                raise
            return None
        finally:
            del self._outer[inner], self._contexts[inner]

    def interrupt(self, work: Work) -> None:
        """Cancel the task that runs this entry or batch; its handler gets ``CancelledError`` at its next await."""
        for task, context in self._contexts.items():
            if context.get(AT_WORK) is work:
                task.cancel()

    def ends(self, error: BaseException) -> bool:
        """Report whether a run ended by a stop, by Ctrl-C or with its event loop, and not by the handler's error."""
        if issubclass(type(error), asyncio.CancelledError):
            task = asyncio.current_task()
            return task is not None and self._is_ending(task)
        return ends_process(error)

    def _is_ending(self, task: _Task) -> bool:
        # Batches and timeouts nest, and only the outermost task is cancelled by a stop
        while (outer := self._outer.get(task)) is not None:
            task = outer
        return task.cancelling() > 0

    def is_changed(self) -> bool:
        """Report whether a handler has set a context variable, which only a new task lacks."""
        try:
            return copy_context() != self._base
        except BaseException:  # noqa: BLE001 - compares values of the user's types
            return True

    async def calm(self) -> None:
        """Take back a handler's ``cancel()`` of its own task after a run, delivered or not."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return
        if not self._is_ending(task):
            # A pending cancellation must arrive here, where it is harmless
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            while task.uncancel():
                pass
        if self._is_ending(task):
            raise asyncio.CancelledError
