"""Batch handlers: they take many entries at once, and each entry has its own outcome.

* The handler returns: all entries are acked.
* It raises :class:`BatchError`: the entries that it names have failed, each with its own error. The others are acked.
* It raises a group of BatchErrors: the entries that they name have failed in the same way, and the others with the
  group. A task group cancels its other tasks at the first error, so nothing shows that the other entries are done.
* It raises anything else: all entries have failed with it.

A failed entry has its own delivery count, delay and dead letter. An entry that was delivered before runs alone, as a
batch of one: the entry that made a batch fail or crash is unknown, and must not harm other entries. An entry that does
not fit the annotations is dead and never in a batch.
"""

import logging
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from millstream import failpoints
from millstream.errors import MillstreamError, UsageError
from millstream.texts import plural
from millstream.worker.handlers.calling import end_if_forked
from millstream.worker.handlers.invoke import BatchMessages, HandlerCalls
from millstream.worker.model.answers import leaves
from millstream.worker.model.error_text import summarize, tame
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement import running
from millstream.worker.settlement.consumer import Held
from millstream.worker.settlement.running import AT_WORK
from millstream.worker.subscriber.buffer import Buffer
from millstream.worker.subscriber.isolation import IsolationGate
from millstream.worker.subscriber.parts import Common, SubscriberPart
from millstream.worker.subscriber.runs import AfterRun

log = logging.getLogger("millstream.worker")


class BatchError(MillstreamError):
    """A batch handler raises it to name the failed entries of the batch; the others are done.

    What to do: raise it in a batch handler. No other code may catch it.

    Args:
        failed: the error of each failed entry by its place in the list, counted from 0; a :class:`Nack` or
            :class:`Reject` has the same meaning as if raised.

    Raises:
        UsageError: a value is not an exception.
    """

    def __init__(self, failed: Mapping[int, BaseException]) -> None:
        if not isinstance(failed, Mapping):
            raise UsageError(f"BatchError({failed!r}) is invalid: it must be a mapping. Write {{0: ValueError(...)}}.")
        for place, error in failed.items():
            if not isinstance(error, BaseException):
                raise UsageError(
                    f"BatchError({{{place!r}: {error!r}}}): give the exception of each failed entry by its place, such "
                    f"as {{{place!r}: ValueError(...)}}"
                )
        places = ", ".join(map(str, sorted(failed)))
        super().__init__(f"{plural(len(failed), 'entry', 'entries')} of the batch failed: {places}")
        self.failed = dict(failed)


class BatchRuns(SubscriberPart):
    """Runs a handler that takes many entries."""

    def __init__(
        self, common: Common, calls: HandlerCalls, after: AfterRun, gate: IsolationGate, buffer: Buffer
    ) -> None:
        # Runs the handler; may be wrapped for measurements
        self.call: Callable[[BatchMessages], Awaitable[Any]] = calls.batch
        self._calls = calls
        super().__init__(common)
        self._after = after
        self._gate = gate
        self._buffer = buffer
        self._size = self._subscription.batch_size
        self._process = running.Process.id
        self._each = self._subscription.ack == "each" and not self._member.no_ack

    def take(self, first: Held) -> list[Held]:
        """Take the entries out of the buffer that are to run with one."""
        # An entry that was delivered before may have crashed a process, so it runs without others
        return self._buffer.take_fresh(self._size - 1) if first.deliveries == 1 else []

    async def start(self, first: Held, others: list[Held] | None = None) -> None:
        """Run a batch that begins with ``first``; with those that were taken for it before, where there are any."""
        batch = [first, *(self.take(first) if others is None else others)]
        if first.deliveries > 1:
            self._member.stats.suspects += 1
        if any(held.__class__ is not Held for held in batch):
            batch = await self._after.may_begin(batch, self._gate)
        failpoints.reach("before_handler")
        AT_WORK.set(batch)
        try:
            fitting, messages = self._prepare(batch)
            if fitting:
                await self._run(fitting, messages)
        finally:
            AT_WORK.set(None)
        if self._each:
            await self._apart.calm()
            for held in fitting:
                if held.state is not State.LEFT:
                    await self._acks.stored(held)

    def _prepare(self, batch: list[Held]) -> tuple[list[Held], BatchMessages]:
        """Start and bind every entry; return the entries that fit the handler's annotations, with their messages."""
        fitting = []
        messages = []
        arguments = []
        for held in batch:
            held.step(Event.START)
            message = self._calls.message(held)
            try:
                arguments.append(self._calls.bind(message))
            except BaseException as error:  # usually a PayloadError, or any error of a user's type
                # An error that ends the run or the process must not be charged to this entry
                if self._apart.ends(error):
                    raise
                self._outcomes.failed(held, tame(error))
            else:
                fitting.append(held)
                messages.append(message)
        return fitting, BatchMessages(messages, arguments)

    async def _run(self, entries: list[Held], messages: BatchMessages) -> None:
        self._gate.began()
        try:
            try:
                values = await self.call(messages)
            except BaseException as error:
                end_if_forked(self._process, error)
                raise
            end_if_forked(self._process)
        # It names the entries that failed; all others count as handled
        except BatchError as error:
            self._some_failed(entries, error)
        except BaseException as error:
            if self._apart.ends(error):
                for held in entries:
                    self._after.interrupted(held, error)
                raise
            self._failed(entries, error)
        else:
            self._done(entries, values)
        finally:
            self._gate.ended()

    def _done(self, entries: list[Held], values: Any = None) -> None:
        failpoints.reach("after_handler")
        self._member.stats.handled += len(entries)
        # One result for each entry, if the handler returned as many
        each = values if isinstance(values, list | tuple) and len(values) == len(entries) else None
        for place, held in enumerate(entries):
            self._after.answered(held, None if each is None else each[place])

    def _some_failed(self, entries: list[Held], error: BatchError) -> None:
        failed = _by_place([error], len(entries))
        if failed is None:
            log.error(
                "%s: BatchError names entries that are not in the batch: %s", self._member.stream, summarize(error)
            )
            self._failed(entries, error)
            return
        for place, why in failed.items():
            self._after.raised(entries[place], why)
        self._done([held for place, held in enumerate(entries) if place not in failed])

    def _failed(self, entries: list[Held], error: BaseException) -> None:
        named = _by_place(_grouped(error), len(entries)) or {}
        for place, held in enumerate(entries):
            self._after.raised(held, named.get(place, error))


def _grouped(error: BaseException) -> list[BatchError]:
    """Return the errors of a group that contains only BatchErrors; empty for any other error."""
    try:
        said = list(leaves(error))
    except BaseException:  # noqa: BLE001 - the group's class belongs to the user
        return []
    found = [one for one in said if isinstance(one, BatchError)]
    return found if len(found) == len(said) else []


def _by_place(errors: Sequence[BatchError], size: int) -> dict[int, BaseException] | None:
    """Return the errors by place; None if they do not fit this batch, since a subclass may contain anything."""
    try:
        failed: dict[int, BaseException] = {}
        for place, why in ((operator.index(place), why) for error in errors for place, why in error.failed.items()):
            if not 0 <= place < size or not issubclass(type(why), BaseException):
                return None
            failed[place] = BaseExceptionGroup("", [failed[place], why]) if place in failed else why
    except BaseException:  # noqa: BLE001 - raised by the user's code
        return None
    return failed
