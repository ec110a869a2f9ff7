"""One run of a handler, from its start until its entry is settled by the end of the run.

The rules are the same for one entry and for each entry of a batch (:mod:`millstream.worker.subscriber.batching`):

* The handler returned: the entry is acked, unless ack is manual or the handler settled it itself.
* It raised: the retry policy decides. An error after the entry was settled is only logged.
* It was cancelled, because the grace time of a stop is over: the entry is released uncharged. But if the supervisor did
  not order the stop, or was killed, the handler may be the cause. Then the stop counts as a crash of every entry that
  still ran.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from millstream import failpoints
from millstream.worker.handlers.calling import end_if_forked, finished
from millstream.worker.handlers.fields import result_text
from millstream.worker.handlers.invoke import Call
from millstream.worker.model.answers import JobCancelledError, Nack, Reject, answer
from millstream.worker.model.error_text import loggable, tame
from millstream.worker.model.lifecycle import FINAL, Event, State
from millstream.worker.settlement import running
from millstream.worker.settlement.consumer import Held, Trailed
from millstream.worker.settlement.running import AT_WORK
from millstream.worker.subscriber.isolation import IsolationGate
from millstream.worker.subscriber.parts import Common, SubscriberPart
from millstream.worker.subscriber.places import LanePlaces

log = logging.getLogger("millstream.worker")

#: States of an entry without an outcome. Outcomes of lost entries are ignored.
_UNSETTLED = (State.RUNNING, State.LOST)


#: Reports whether this process was stopped by a signal from another process than the supervisor, or the supervisor was
#: killed.
stopped_alone: Callable[[], bool] | None = None
_BY_CANCEL = (asyncio.CancelledError, JobCancelledError)  # errors with which a cancelled run ends


class AfterRun(SubscriberPart):
    """Settles an entry by the end of its run."""

    def __init__(self, common: Common) -> None:
        super().__init__(common)
        # Number of runs that continue after the stop, in threads or in handlers that ignore cancellation; their entries
        # stay pending
        self.unfinished = 0

    async def may_begin(self, entries: list[Held], gate: IsolationGate) -> list[Held]:
        """Return the entries without the cancelled jobs; no isolated run begins during the look-up."""
        gate.began()
        try:
            return await self._cancels.begin(entries)
        finally:
            gate.ended()

    def returned(self, held: Held, *, urgent: bool = False) -> None:
        """Settle an entry whose run ended without an error from the handler."""
        # An error that bypassed the handler, for example of a task that it started
        if running.STRAY and (error := running.blamed(held)) is not None:
            self._member.stats.handled -= 1
            self.raised(held, error)
            return
        if self._subscription.ack == "manual":
            if held.state is State.RUNNING:
                held.step(Event.LEAVE)
        elif held.state in _UNSETTLED:
            if self._member.no_ack:
                self._member.drop(held)
            else:
                self._acks.ack(held, urgent=urgent)

    def answered(self, held: Held, value: Any) -> None:
        """Settle an entry whose run returned a value, which is stored with the ack if its publisher requested it."""
        job = held if isinstance(held, Trailed) and held.job is not None else None
        if job is not None:
            try:
                job.result = result_text(value, self._member.clock.now().wall)
            except BaseException as error:
                if self._apart.ends(error):
                    raise
                self._member.stats.handled -= 1
                self.raised(held, error)
                return
        self.returned(held, urgent=job is not None)  # the publisher waits for the result

    def raised(self, held: Held, error: BaseException) -> None:
        """Settle an entry whose run ended in an error."""
        running.STRAY.pop(id(held), None)
        if held in self._member.cancelled and held.state is State.RUNNING and issubclass(type(error), _BY_CANCEL):
            self._outcomes.cancelled(held)
            return
        # The exception is a user's object: reading its text or class may raise
        error = answer(tame(error))
        if held.state in _UNSETTLED:
            self._outcomes.failed(held, error)
        elif not isinstance(error, Nack | Reject):
            log.warning(
                "%s: a handler raised after it had settled its entry",
                self._member.stream,
                exc_info=loggable(error),
                extra=self._member.about(held),
            )

    def interrupted(self, held: Held, error: BaseException) -> None:
        """Settle an entry whose run was cancelled after the grace time: it is released uncharged.

        An entry whose handler runs in a thread stays pending, since a thread cannot be cancelled.
        """
        if held.state not in _UNSETTLED or not issubclass(type(error), asyncio.CancelledError):
            return
        if self._subscription.is_async:
            # A handler can kill its own process with a signal. If its entry came back uncharged each time, it would do
            # so endlessly
            if stopped_alone is not None and stopped_alone():
                log.warning(
                    "%s %s: a signal ended this process alone, or its supervisor, while the handler ran; it counts as "
                    "a crash of the entry",
                    self._member.stream,
                    held.id.decode(),
                    extra=self._member.about(held),
                )
                self._acks.give_back(held)
            else:
                self._failures.survived(held)
                self._acks.release(held, charge=False)
            self._member.stats.released += 1
        else:
            self.unfinished += 1
            log.error(
                "%s %s: the handler did not end in time",
                self._member.stream,
                held.id.decode(),
                extra=self._member.about(held),
            )


class SingleRuns(SubscriberPart):
    """Runs a handler that takes one entry."""

    def __init__(
        self, common: Common, call: Call, after: AfterRun, gate: IsolationGate, places: LanePlaces | None = None
    ) -> None:
        self.call = call  # May be wrapped for measurements
        super().__init__(common)
        self._after = after
        self._returned = after.returned  # looked up only once, since it is called for every entry
        self._gate = gate
        self._places = places
        self._each = self._subscription.ack == "each" and not self._member.no_ack
        self._process = running.Process.id

    async def start(self, held: Held) -> None:
        """Run one entry to its end; with ``ack="each"``, wait for its outcome, or keep a place until it is stored."""
        if held.__class__ is not Held and not await self._after.may_begin([held], self._gate):
            return
        if held.deliveries > 1:
            self._member.stats.suspects += 1
        held.step(Event.START)
        AT_WORK.set(held)
        failpoints.reach("before_handler")
        self._gate.began()
        ended = True
        try:
            result = await self.call(held)
            if result is not None:
                result = await finished(result)
        except BaseException as error:
            if self._process != running.Process.id:
                end_if_forked(self._process, error)
            # SystemExit too: an entry must not end the process with all its other entries
            if self._apart.ends(error):
                self._after.interrupted(held, error)
                raise
            self._after.raised(held, error)
        else:
            if self._process != running.Process.id:
                end_if_forked(self._process)
            failpoints.reach("after_handler")
            self._member.stats.handled += 1
            if held.__class__ is Held:
                self._returned(held)
            else:
                self._after.answered(held, result)
            if self._each and held.state not in FINAL:
                if self._places is None or self._gate.wanted:
                    await self._apart.calm()  # if the handler cancels its own task, the lane must not end
                    await self._acks.stored(held)
                else:
                    ended = False
                    self._places.keep(held)
        finally:
            AT_WORK.set(None)
            if ended:
                self._gate.ended()
