"""The message: one delivery of an entry, as a handler can receive it."""

import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

from millstream.client.payloads import envelope
from millstream.errors import MillstreamError, UsageError
from millstream.logs import logger
from millstream.worker.handlers.calling import ends_process
from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.model.answers import Nack, PayloadError, Reject
from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.consumer import Held

# Outcomes of a delivery: acknowledged, given back, in the dead-letter stream, or lost to another consumer.
Settled = Literal["ack", "nack", "dead", "lost"]

_SETTLED: dict[State, Settled] = {
    State.ACKED: "ack",
    State.RELEASED: "nack",
    State.WAITING: "nack",
    State.DEAD: "dead",
    State.LOST: "lost",
}


log = logger("millstream.worker")


class EntryLostError(MillstreamError):
    """Another consumer owns the entry now, or the entry was removed. So this consumer cannot give it an outcome.

    What to do: leave the entry alone. Raise `min_idle_time` if handlers block the event loop for that long.
    """


Kind = TypeVar("Kind", bound="Message")


class Message:
    """One delivery of one entry.

    ``ack``, ``nack`` and ``reject`` take effect when called. Awaiting them waits until the server has stored the
    outcome, or has refused it because another consumer owns the entry (:class:`EntryLostError`). In a handler that runs
    in a thread they return once the server has stored the outcome. A second call raises
    :class:`~millstream.worker.model.lifecycle.AlreadySettledError`.
    """

    __slots__ = ("_held", "_outcomes", "fields")

    def __init__(self, held: Held, outcomes: Outcomes) -> None:
        self._held = held
        self._outcomes = outcomes
        self.fields: dict[str, bytes] = {
            name.decode("utf-8", "surrogateescape"): value
            for name, value in zip(held.fields[::2], held.fields[1::2], strict=True)
        }

    @property
    def id(self) -> str:
        """The entry's id, ``milliseconds-sequence``."""
        return self._held.id.decode()

    @property
    def raw(self) -> Sequence[bytes]:
        """The entry's field names and values in turn, as the server sent them."""
        return self._held.fields

    @property
    def stream(self) -> str:
        """Key of the stream."""
        return self._outcomes.member.stream

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return self._outcomes.member.group

    @property
    def consumer(self) -> str:
        """Name of this consumer in the group."""
        return self._outcomes.member.consumer

    @property
    def partition(self) -> int | None:
        """Number of the entry's partition, from 0, which this process owns; None for a plain stream."""
        lease = self._outcomes.member.lease
        return None if lease is None else lease.number

    @property
    def fence(self) -> int | None:
        """A number that grows with each owner of the partition; None for a plain stream.

        Another database can use it to refuse an earlier owner: ``UPDATE ... WHERE fence <= :fence``. It does not grow
        across a failover that lost writes.
        """
        lease = self._outcomes.member.lease
        return None if lease is None else lease.fence

    @property
    def delivery_count(self) -> int:
        """Number of deliveries of the entry, including this one; above 1, an earlier run may have had effects."""
        return self._held.deliveries

    @property
    def timestamp(self) -> datetime:
        """Time at which the entry was added, by its id, in UTC."""
        return datetime.fromtimestamp(int(self._held.id.partition(b"-")[0]) / 1000, UTC)

    @property
    def headers(self) -> dict[str, str]:
        """Headers, if the entry is in FastStream's envelope; otherwise empty.

        Raises:
            PayloadError: the envelope is damaged.
        """
        fields = self._held.fields
        if len(fields) != 2 or fields[0] != envelope.FIELD:
            return {}
        try:
            return envelope.parse(fields[1]).headers
        except ValueError as error:
            raise PayloadError(str(error)) from error

    @property
    def origin(self) -> str:
        """The entry's first id: its own, or, if a dead letter was put back, the id of the entry that died first."""
        history = getattr(self._held, "history", ())
        first = history[0].get("id") if history else None
        return first if isinstance(first, str) else self.id

    @property
    def idempotency_key(self) -> str:
        """A text that is the same for every delivery of the entry to this group, also after a dead letter was put back.

        Use it in a table of finished work, or as another service's idempotency header; :func:`millstream.once` uses it
        too.
        """
        return f"{self.stream}/{self.group}/{self.origin}"

    def seen_as(self, kind: "type[Kind]") -> "Kind":
        """Return this delivery as a message class of another library; an outcome given to one counts for both."""
        return kind(self._held, self._outcomes)

    @property
    def cancelled(self) -> bool:
        """True once the job was cancelled during its run; a plain function then raises ``JobCancelledError``."""
        return self._held in self._outcomes.member.cancelled

    def progress(self, at: float, *, of: float | None = None, text: str = "") -> Awaitable[None]:
        """Report the progress of the run, for :meth:`Job.state <millstream.worker.jobs.job.Job.state>`; to be awaited.

        An entry published without ``result=`` stores none. In a handler that runs in a thread, the call returns once
        the server has stored it.

        Args:
            at: amount done so far.
            of: total amount.
            text: a note, at most 1,000 characters.

        Raises:
            UsageError: the arguments are not numbers and a text.
            EntryLostError: this consumer no longer owns the entry.
        """
        words = _progress(at, of, text)
        self._check_ours()
        report = self._outcomes.acks.report(self._held, words)
        if self._in_the_loop():
            return report
        asyncio.run_coroutine_threadsafe(report, self._outcomes.loop).result()
        return _Done()

    @property
    def settled(self) -> bool:
        """True once the entry has an outcome."""
        return self._held.state not in (State.BUFFERED, State.RUNNING, State.LEFT)

    def when_settled(self, call: Callable[[Settled], None]) -> None:
        """Call a function once, in the event loop, when the server has stored the entry's outcome or the entry is lost.

        It is never called if entries are not acknowledged (``no_ack``). Its exceptions are logged and change nothing.
        """
        held = self._held

        def settled() -> None:
            try:
                call(_SETTLED[held.state])
            except BaseException as error:
                if ends_process(error):
                    raise
                log.exception("%s %s: a function given to when_settled failed", self.stream, self.id)

        if held.state in _SETTLED:  # the outcome is already stored, so call at once
            settled()
        else:
            held.then(settled)

    def ack(self) -> Awaitable[None]:
        """Acknowledge the entry.

        Raises:
            AlreadySettledError: the entry has an outcome already.
            EntryLostError: this consumer no longer owns the entry.
        """
        return self._settle(lambda: self._outcomes.acks.ack(self._held, urgent=True))

    def nack(self, delay: float | str | None = None) -> Awaitable[None]:
        """Release the entry to any worker, now or after ``delay`` (see :class:`Nack`); at the limit it is dead instead.

        Raises:
            AlreadySettledError: the entry has an outcome already.
            EntryLostError: this consumer no longer owns the entry.
            UsageError: the delay is not a length of time.
        """
        said = Nack(delay=delay)
        said.__context__ = sys.exception()  # the exception that the handler is handling, if any
        return self._settle(lambda: self._outcomes.failed(self._held, said))

    def reject(self, reason: str = "") -> Awaitable[None]:
        """Move the entry to the dead-letter stream.

        Raises:
            AlreadySettledError: the entry has an outcome already.
            EntryLostError: this consumer no longer owns the entry.
        """
        said = Reject(reason)
        said.__context__ = sys.exception()
        return self._settle(lambda: self._outcomes.failed(self._held, said))

    def _settle(self, decide: Callable[[], None]) -> Awaitable[None]:
        self._check_ours()
        if self._in_the_loop():
            decide()
            return _Storing(self._outcomes.acks.stored(self._held), self._check_ours)

        async def settle() -> None:
            decide()
            await self._outcomes.acks.stored(self._held)

        asyncio.run_coroutine_threadsafe(settle(), self._outcomes.loop).result()  # only the event loop may use the acks
        self._check_ours()
        return _Done()

    def _in_the_loop(self) -> bool:
        """Report whether this runs in the event loop that has the acks; a plain function runs in a thread."""
        try:
            return asyncio.get_running_loop() is self._outcomes.loop
        except RuntimeError:
            return False

    def _check_ours(self) -> None:
        if self._held.state is State.LOST:
            raise EntryLostError(f"{self.stream} {self.id}: another consumer has it, or it was removed")


def _progress(at: object, of: object, text: object) -> str:
    """Return the record of a progress as text."""
    numbers = [one for one in (at, of) if one is not None]
    fine = all(isinstance(one, int) or (isinstance(one, float) and math.isfinite(one)) for one in numbers)
    if at is None or not fine or not isinstance(text, str):
        raise UsageError(
            f"progress({at!r}, of={of!r}, text={text!r}) is invalid: it takes numbers and a text. Write progress(40, "
            'of=100, text="pages").'
        )
    return json.dumps({"at": at, "of": of, "text": text[:1000]}, separators=(",", ":"))


class _Storing:
    """An awaitable that ends once the outcome is stored, or raises if it was refused."""

    def __init__(self, stored: "asyncio.Future[None]", check: Callable[[], None]) -> None:
        self._stored = stored
        self._check = check

    def __await__(self) -> Generator[None, None, None]:
        yield from self._stored
        self._check()


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
