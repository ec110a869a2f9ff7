"""From the end of a handler's run to the outcome of its entry: the policy decides, and makes a settlement.

The log has a limited number of errors: a broken handler fails a thousand times a second, and one traceback is enough.
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
    """An entry was delivered more often than allowed without any outcome: it probably kills its process."""


class Outcomes:
    """Decides about the outcomes of one subscriber's entries."""

    def __init__(self, member: Membership, acks: PendingAcks, retry: Retry, loop: asyncio.AbstractEventLoop) -> None:
        self.member = member
        self.acks = acks
        self.retry = retry
        self.loop = loop
        self._logged: dict[str, int] = {}
        #: Last failure: wall-clock milliseconds, entry, text
        self.last_failure: tuple[int, bytes, str] | None = None
        #: Called with each failure: the entry, wall-clock milliseconds, text
        self.on_failure: Callable[[Held, int, str], None] = lambda *_: None

    def failed(self, held: Held, error: BaseException) -> None:
        """Settle an entry whose run ended in an error, or that must not run."""
        member = self.member
        failure = _kind(error)
        delay = _delay(error)
        counted = tries(held.deliveries, held.record)
        at_ms, why = member.clock.now().wall, _why(error)
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
            settlement.error = why
            self.acks.settle(settlement)
            member.stats.retried += settlement.event is not Event.DIE
        member.stats.failed += 1
        self.last_failure = (at_ms, held.id, why)
        self.on_failure(held, at_ms, why)
        if failure is Failure.ERROR:
            self._log(held, error)

    def cancelled(self, held: Held) -> None:
        """Acknowledge an entry that was cancelled before or during its run; it is never dead."""
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
        if decision.dead or self.member.no_ack:  # without acks nothing is pending, so nothing can be delivered again
            letter = self._letter(held, failure, error)
            text = record("dead", letter.died_ms, error=letter.error[:ERROR_CHARACTERS])
            return DeadSettlement(held, Event.DIE, letter=letter, result=self.member.result_row(held, text))
        if decision.delay <= 0:
            return Settlement(held, Event.RELEASE, failed=True)
        return Settlement(held, Event.RETRY, failed=True, delay_ms=round(decision.delay * 1000))

    # The letter is created now, not when it is written, so that the error's frames are freed
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
            tries=held.tries,
        )

    def _log(self, held: Held, error: BaseException) -> None:
        """Log the first error of each kind with its traceback, then none for ten seconds; counters still count."""
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
    """Return the delay of a Nack in seconds; None if a subclass's attribute is missing or invalid."""
    try:
        asked = error.delay if isinstance(error, Nack) else None
        return None if asked is None else seconds_of(asked)
    except BaseException:  # noqa: BLE001 - raised by the user's code
        return None


def _cause(error: BaseException) -> BaseException | None:
    """Return the exception that a handler caught before it raised this one; None without one."""
    if error.__cause__ is not None:  # by identity, since a truth test of a user's error may raise
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _users_trace(cause: BaseException | None) -> str:
    """Return the traceback of the user's model or decoder for an invalid entry; empty if only Millstream's code ran.

    Millstream's own error text already says what is wrong with the entry.
    """
    part = None if cause is None else users_part(cause.__traceback__)
    return "" if part is None else describe(cause, part)[1]


def _why(error: BaseException) -> str:
    """Return a failure as one line; for a Nack or Reject it includes the cause."""
    if not isinstance(error, Nack | Reject):
        return summarize(error)
    cause, said = _cause(error), type(error).__name__
    if reason := first_line(shown(error)):
        said += f": {reason}"
    return said if cause is None else f"{summarize(cause)} ({said})"


def _kind(error: BaseException) -> Failure:
    """Return the kind of failure, by which the policy decides; any unexpected exception is an ERROR."""
    return next((failure for kind, failure in _KINDS if isinstance(error, kind)), Failure.ERROR)


_KINDS = (
    (Reject, Failure.REJECT),
    (Nack, Failure.NACK),
    (PayloadError, Failure.INVALID),
    (DeliveryLimitError, Failure.OVERDUE),
)
