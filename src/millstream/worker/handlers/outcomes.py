"""The meaning of a handler's run for its entry: the policy decides, and its decision becomes a settlement.

Errors are logged in moderation: a broken handler fails a thousand times a second, and the first traceback says it all.
"""

import asyncio
from collections.abc import Callable

from millstream.client.dead_letter.letter import DeadLetter
from millstream.client.jobs.record import ERROR_CHARACTERS, record
from millstream.logs import logger
from millstream.worker.handlers.frames import users_part
from millstream.worker.model.answers import Nack, PayloadError, Reject, seconds_of
from millstream.worker.model.error_text import describe, first_line, loggable, shown, summarize
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.model.retry import Decision, Failure, Retry, decide, tries
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.consumer import Held, Membership, Trailed
from millstream.worker.settlement.settlement import DeadSettlement, Settlement

log = logger("millstream.worker")

_LOG_EVERY_MS = 10_000


class DeliveryLimitError(Exception):
    """An entry was delivered more often than allowed and never came back: it probably kills its process."""


class Outcomes:
    """Decides about the entries of one subscriber."""

    def __init__(self, member: Membership, acks: PendingAcks, retry: Retry, loop: asyncio.AbstractEventLoop) -> None:
        self.member = member
        self.acks = acks
        self.retry = retry
        self.loop = loop
        self._logged: dict[str, int] = {}
        #: of the last failure: wall milliseconds, entry, text
        self.last_failure: tuple[int, bytes, str] | None = None
        #: is called with each failure: the entry, wall milliseconds, text
        self.on_failure: Callable[[Held, int, str], None] = lambda *_: None

    def failed(self, held: Held, error: BaseException) -> None:
        """A run ended in an error, or there was no run because there must not be one."""
        member = self.member
        failure = _kind(error)
        delay = _delay(error)
        counted = tries(held.deliveries, held.record)
        policy = self.retry.policy(error) if failure is Failure.ERROR else self.retry
        if policy == "ack":
            self.acks.ack(held)
        else:
            decision = (
                decide(policy, failure, counted, member.chance.random(), delay)
                if isinstance(policy, Retry)
                else Decision(dead=True)
            )
            settlement = self._settlement(held, failure, error, decision)
            self.acks.settle(settlement)
            member.stats.retried += settlement.event is not Event.DIE
        member.stats.failed += 1
        at_ms, why = member.clock.now().wall, _why(error)
        self.last_failure = (at_ms, held.id, why)
        self.on_failure(held, at_ms, why)
        if failure is Failure.ERROR:
            self._log(held, error)

    def cancelled(self, held: Held) -> None:
        """The entry was cancelled before its run, or its run ended by that: it is acknowledged, and never dead."""
        member = self.member
        if held.state is State.BUFFERED:
            held.step(Event.START)
        member.stats.cancelled += held.state is State.RUNNING
        if isinstance(held, Trailed):
            held.result = record("cancelled", member.clock.now().wall)
        if member.no_ack:
            member.drop(held)
        else:
            self.acks.ack(held, urgent=True)

    def _settlement(self, held: Held, failure: Failure, error: BaseException, decision: Decision) -> Settlement:
        if decision.dead or self.member.no_ack:  # without acks nothing is pending, so there is nothing to deliver again
            letter = self._letter(held, failure, error)
            text = record("dead", letter.died_ms, error=letter.error[:ERROR_CHARACTERS])
            return DeadSettlement(held, Event.DIE, letter=letter, result=self.member.result_row(held, text))
        if decision.delay <= 0:
            return Settlement(held, Event.RELEASE, failed=True)
        return Settlement(held, Event.RETRY, failed=True, delay_ms=round(decision.delay * 1000))

    # the letter is made now and not when it is written: the error's frames must not be kept alive until then
    def _letter(self, held: Held, failure: Failure, error: BaseException) -> DeadLetter:
        member = self.member
        cause = _cause(error) if isinstance(error, Nack | Reject) else error
        text, trace = describe(cause, users_part(cause.__traceback__) if cause is not None else None)
        if failure is Failure.INVALID and users_part(error.__traceback__) is None:
            trace = _users_trace(error.__cause__)
        if isinstance(error, Nack | Reject):
            text = shown(error) or text
        return DeadLetter(
            fields=tuple(held.fields),
            stream=member.stream,
            id=held.id.decode(),
            group=member.group,
            consumer=member.consumer,
            deliveries=held.deliveries,
            reason=failure.value,
            error=text,
            traceback=trace,
            published_ms=int(held.id.partition(b"-")[0]),
            died_ms=member.clock.now().wall,
            history=held.history if isinstance(held, Trailed) else (),
        )

    def _log(self, held: Held, error: BaseException) -> None:
        """One line with traceback for each kind of error, then silence about it for ten seconds; counters count on."""
        now = self.member.clock.now().mono
        kind = type(error).__qualname__
        if now - self._logged.get(kind, -_LOG_EVERY_MS) < _LOG_EVERY_MS:
            return
        self._logged[kind] = now
        log.warning(
            "%s %s: delivery %d failed (further %s are counted, not logged, for 10 s)",
            self.member.stream,
            held.id.decode(),
            held.deliveries,
            kind,
            exc_info=(type(error), loggable(error), users_part(error.__traceback__) or error.__traceback__),
            extra=self.member.about(held),
        )


def _delay(error: BaseException) -> float | None:
    """Seconds that a Nack asks for; None where a subclass's attribute is missing or no such number."""
    try:
        asked = error.delay if isinstance(error, Nack) else None
        return None if asked is None else seconds_of(asked)
    except BaseException:  # noqa: BLE001 - it is the user's
        return None


def _cause(error: BaseException) -> BaseException | None:
    """The exception that a handler caught before it raised this one, if any."""
    if error.__cause__ is not None:  # by identity: an error of the user's may raise where it is asked for its truth
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _users_trace(cause: BaseException | None) -> str:
    """The trace of the user's model or decoder at an invalid entry; empty if only our own code saw it.

    Its error is ours, and its text says what is wrong with the entry: the way there would only hide it.
    """
    part = None if cause is None else users_part(cause.__traceback__)
    return "" if part is None else describe(cause, part)[1]


def _why(error: BaseException) -> str:
    """A failure in one line; of one that the handler said itself, the cause is what somebody wants to know."""
    if not isinstance(error, Nack | Reject):
        return summarize(error)
    cause, said = _cause(error), type(error).__name__
    if reason := first_line(shown(error)):
        said += f": {reason}"
    return said if cause is None else f"{summarize(cause)} ({said})"


def _kind(error: BaseException) -> Failure:
    """The kind of failure, by which the policy decides; anything that a handler raises by accident is an ERROR."""
    return next((failure for kind, failure in _KINDS if isinstance(error, kind)), Failure.ERROR)


_KINDS = (
    (Reject, Failure.REJECT),
    (Nack, Failure.NACK),
    (PayloadError, Failure.INVALID),
    (DeliveryLimitError, Failure.OVERDUE),
)
