"""The exceptions by which a handler decides about its entry, and the exception for an invalid entry. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from millstream import times
from millstream.errors import ConfigError, MillstreamError, UsageError


class Nack(MillstreamError):  # noqa: N818 - raised by the handler, not a fault
    """A handler raises it to give the entry back, for any worker to take now or after ``delay``.

    The delivery counts towards the limit, also with a delay. ``delay`` is seconds, or a text such as ``"1m"``; it holds
    across restarts of the worker.

    What to do: raise it in a handler. No other code may catch it.

    Raises:
        UsageError: the delay is not a length of time, or is below zero; or the reason is a number.
    """

    def __init__(self, reason: str = "", *, delay: float | str | None = None) -> None:
        given: object = reason
        if isinstance(given, int | float | timedelta):
            raise UsageError(f"Nack({given!r}) is invalid: the reason is a text. Write Nack(delay={given!r}).")
        super().__init__(reason)
        self.delay = None if delay is None else seconds_of(delay)


class Reject(MillstreamError):  # noqa: N818 - raised by the handler, not a fault
    """A handler raises it for an invalid entry, which then goes to the dead-letter stream at once.

    What to do: raise it in a handler. No other code may catch it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class JobDeadError(MillstreamError):
    """The awaited job is in the dead-letter stream; the message has the handler's error.

    What to do: correct the cause. `millstream dead retry` puts the entry back, under a new id.
    """


class JobCancelledError(MillstreamError):
    """The awaited job was cancelled. A synchronous handler raises it when `msg.cancelled` is true.

    What to do: nothing, if you wanted to cancel the job. Otherwise publish it again.
    """


def answer(error: BaseException) -> BaseException:
    """Return the Nack or Reject that an error contains, or the error itself.

    A task group puts the errors of its tasks into one group. If all are Nack or Reject, a Reject wins; otherwise the
    Nack with the longest delay wins.
    """
    if not issubclass(type(error), BaseExceptionGroup):
        return error
    try:
        said = list(leaves(error))
        if not all(isinstance(one, Nack | Reject) for one in said):
            return error
        return max(said, key=lambda one: (isinstance(one, Reject), getattr(one, "delay", None) or 0.0))
    except BaseException:  # noqa: BLE001 - the group's class and its errors are the user's
        return error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group and in its nested groups; nothing for an error that is not a group."""
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from leaves(one) if isinstance(one, BaseExceptionGroup) else [one]


class PayloadError(MillstreamError):
    """An entry does not fit the handler's annotations, or content cannot be published; the message names the field.

    What to do: correct the annotation or the publisher. An invalid entry is in the dead-letter stream and can be put
    back; refused content was not added.
    """


def seconds_of(delay: object) -> float:
    """Return the delay of a Nack in seconds."""
    try:
        return float(times.configured("Nack(delay=", delay, "s"))  # type: ignore[arg-type] # validates the type
    except ConfigError as reason:
        text = str(reason).removesuffix(".")
        raise UsageError(f"{text}. Write 0 for at once; for dead at once raise Reject.") from None
