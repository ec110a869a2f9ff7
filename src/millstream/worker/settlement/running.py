"""Start times of running entries, as seen by an observer: a run itself records no time, so that it costs nothing."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

from millstream.errors import UsageError
from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.consumer import Held

Work: TypeAlias = Held | Sequence[Held]

#: The entry or batch for which code in the event loop runs, including tasks and callbacks of its handler.
AT_WORK: ContextVar[Work | None] = ContextVar("AT_WORK", default=None)


class Process:
    """The id of this process, without a system call for each entry."""

    id = os.getpid()

    @classmethod
    def forked(cls) -> None:
        """Store the new process id after a fork, since the child may run its own app."""
        cls.id = os.getpid()
        AT_WORK.set(None)


os.register_at_fork(after_in_child=Process.forked)

#: Errors that a handler never gets, by the id of its running entry, each with the task that no code has awaited yet.
STRAY: dict[int, tuple[BaseException, asyncio.Task[Any] | None]] = {}


def refuse_by_a_handler(call: str) -> None:
    """Refuse a call that starts or ends the whole app if a handler makes it, since it would wait for that handler."""
    if AT_WORK.get() is not None:
        raise UsageError(
            f"{call} is invalid in a handler: it is about all subscribers. Raise Reject or Nack for the entry, or end "
            "the worker by `millstream worker stop`."
        )


def blame(work: Work, error: BaseException, task: asyncio.Task[Any] | None = None) -> None:
    """Mark the run of an entry, or of each entry in a batch, as failed although its handler returns."""
    for held in [work] if isinstance(work, Held) else work:
        if held.state is State.RUNNING:
            STRAY.setdefault(id(held), (error, task))


def blamed(held: Held) -> BaseException | None:
    """Remove and return the error that an ended run is blamed for; None without one."""
    error, task = STRAY.pop(id(held), (None, None))
    awaited = task is not None and not task._log_traceback  # noqa: SLF001 - asyncio shows it nowhere else
    return None if awaited else error


class RunningSince:
    """Start times of runs, as one observer knows them: the time of its first look that found the run."""

    def __init__(self) -> None:
        self._since: dict[tuple[bytes, int], int] = {}

    def look(self, held: Iterable[Held], now: int) -> list[tuple[int, bytes, int]]:
        """Return running entries as start time, id and deliveries, longest first."""
        running = [one for one in list(held) if one.state is State.RUNNING]
        self._since = {(one.id, one.deliveries): self._since.get((one.id, one.deliveries), now) for one in running}
        return sorted((since, entry, deliveries) for (entry, deliveries), since in self._since.items())
