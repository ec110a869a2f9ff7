"""Handlers that take many entries at once, with an outcome for each of them.

* The handler returns: all are acked.
* It raises :class:`BatchError`: the entries it names have failed, each with the error given for it, the rest is acked.
* It raises anything else: all have failed with it.

A failed entry has its own delivery count, delay and dead letter. What was delivered before runs alone, as a batch of
one: nobody can tell which entry of a failed or crashed batch was the cause, and its neighbours must not pay for it.
An entry that does not fit the annotations is dead and never in a batch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from millstream import failpoints
from millstream.errors import MillstreamError, UsageError
from millstream.worker.handlers.invoke import Calls, Entries
from millstream.worker.handlers.message import Message, Nack, Reject
from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.model.error_text import loggable
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.subscriber.isolation_run import Solitude

log = logging.getLogger("millstream.worker")


class BatchError(MillstreamError):
    """Raise it in a batch handler: these entries have failed, all others are done.

    Args:
        failed: the error of each failed entry by its place in the list, counted from 0; a :class:`Nack` or
            :class:`Reject` means what it means when raised.

    Raises:
        UsageError: something else than exceptions is given for them.
    """

    def __init__(self, failed: Mapping[int, BaseException]) -> None:
        for place, error in failed.items():
            if not isinstance(error, BaseException):
                raise UsageError(
                    f"BatchError({{{place!r}: {error!r}}}): give the exception of each failed entry by its place, such "
                    f"as {{{place!r}: ValueError(...)}}"
                )
        super().__init__(f"{len(failed)} entries of the batch failed: {', '.join(map(str, sorted(failed)))}")
        self.failed = dict(failed)


class Batches:
    """Runs the batches of one subscriber.

    Args:
        member: whose entries.
        calls: of the handler.
        outcomes: where failures go.
        solitude: told of each run.
        more: takes up to so many entries that were never delivered before from the buffer.
        returned: what a run without error means for an entry.
        interrupted: what the end of the grace time means for one.
        size: most entries of a batch.
    """

    def __init__(
        self,
        *,
        member: Membership,
        calls: Calls,
        outcomes: Outcomes,
        solitude: Solitude,
        more: Callable[[int], list[Held]],
        returned: Callable[[Held], None],
        interrupted: Callable[[Held], None],
        size: int,
    ) -> None:
        self._member = member
        self._calls = calls
        #: runs the handler; may be put into something that measures it
        self.run: Callable[[Entries], Awaitable[None]] = calls.batch
        self._outcomes = outcomes
        self._solitude = solitude
        self._more = more
        self._returned = returned
        self._interrupted = interrupted
        self._size = size

    async def start(self, first: Held) -> list[Held]:
        """Run a batch that begins with ``first``; what was in it."""
        batch = [first]
        if first.deliveries == 1:
            batch += self._more(self._size - 1)
        else:
            self._member.stats.suspects += 1
        failpoints.reach("before_handler")
        fitting, entries = self._prepare(batch)
        if not fitting:
            return []
        self._solitude.began()
        try:
            await self.run(entries)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                for held in fitting:
                    self._interrupted(held)
                raise
            self._failed(fitting, error)  # the handler cancelled something of its own and let it out
        except BatchError as error:
            self._some_failed(fitting, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises is an outcome of its entries
            self._failed(fitting, error)
        else:
            self._done(fitting)
        finally:
            self._solitude.ended()
        return fitting

    def _prepare(self, batch: list[Held]) -> tuple[list[Held], Entries]:
        fitting: list[Held] = []
        messages: list[Message] = []
        arguments = []
        for held in batch:
            held.step(Event.START)
            message = self._calls.message(held)
            try:
                arguments.append(self._calls.bind(message))
            except Exception as error:  # noqa: BLE001 - mostly a PayloadError, or whatever a type of the user's raises
                self._outcomes.failed(held, error)
            else:
                fitting.append(held)
                messages.append(message)
        return fitting, Entries(messages, arguments)

    def _done(self, entries: list[Held]) -> None:
        failpoints.reach("after_handler")
        self._member.stats.handled += len(entries)
        for held in entries:
            self._returned(held)

    def _some_failed(self, entries: list[Held], error: BatchError) -> None:
        strange = sorted(set(error.failed) - set(range(len(entries))))
        if strange:
            log.error("%s: BatchError names entries that are not in the batch: %s", self._member.stream, strange)
            self._failed(entries, error)
            return
        for place, why in error.failed.items():
            self._failed([entries[place]], why)
        self._done([held for place, held in enumerate(entries) if place not in error.failed])

    def _failed(self, entries: list[Held], error: BaseException) -> None:
        for held in entries:
            if held.state in (State.RUNNING, State.LOST):
                self._outcomes.failed(held, error)
            elif not isinstance(error, Nack | Reject):
                log.warning(
                    "%s: a handler raised after it had settled its entry",
                    self._member.stream,
                    exc_info=loggable(error),
                    extra=self._member.about(held),
                )
