"""What the parts of one subscriber's loop share: who we are in which group, the lines, and the entries in hand."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from millstream.client.capabilities import Capabilities
from millstream.client.dead_letter.letter import HISTORY, take_history
from millstream.client.line import Line
from millstream.clock import Clock
from millstream.worker.model.lifecycle import FINAL, TABLE, Event, State, step
from millstream.worker.model.stats import SubscriberStats

if TYPE_CHECKING:
    from millstream.worker.model.retry import FailureRecord


class Held:
    """One entry in our hands.

    Attributes:
        id: the entry's id as the server wrote it.
        fields: names and values in turn.
        deliveries: the server's count, the present delivery included.
        leased: monotonic milliseconds at which we surely still owned it.
        state: see :mod:`millstream.worker.model.lifecycle`.
        waiter: resolved when the outcome is stored or lost; made only for those who wait.
        on_end: called then, once; see :meth:`then`.
        noted: its handler returned long ago without a word, which ``record`` counts as a failure already.
        record: what is known of its failures, if anything is; see :mod:`millstream.worker.settlement.failure_log`.
        was_due: a due time of it is on the server, which goes with its outcome.
    """

    __slots__ = ("deliveries", "fields", "id", "leased", "noted", "on_end", "record", "state", "waiter", "was_due")

    def __init__(self, entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> None:
        self.id = entry
        self.fields = fields
        self.deliveries = deliveries
        self.leased = leased
        self.state = State.BUFFERED
        self.waiter: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.noted = False
        self.record: FailureRecord | None = None
        self.was_due = False

    def step(self, event: Event) -> State:
        """Move on, and wake whoever waits for the end."""
        state = self.state = TABLE[self.state].get(event) or step(self.state, event)
        if state in FINAL:
            self._reached_end()
        return state

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the outcome is stored or lost, after what is to be called already."""
        before = self.on_end
        if before is None:
            self.on_end = call
            return

        def both() -> None:
            before()
            call()

        self.on_end = both

    def _reached_end(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        if self.on_end is not None:
            call, self.on_end = self.on_end, None
            call()


class Returned(Held):
    """An entry that was dead and was put back; its fields are the original's.

    Attributes:
        history: its earlier deaths, see :class:`~millstream.client.dead_letter.letter.DeadLetter`.
    """

    __slots__ = ("history",)

    def __init__(
        self,
        entry: bytes,
        fields: list[bytes],
        deliveries: int,
        leased: int,
        history: tuple[Mapping[str, object], ...],
    ) -> None:
        super().__init__(entry, fields, deliveries, leased)
        self.history = history


def hold(entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> Held:
    """An entry as it was delivered; the history of one that was put back is taken off its fields.

    Args:
        entry: its id.
        fields: names and values in turn, as they were read.
        deliveries: how often it was delivered, this time included; the proof of a lease together with the consumer.
        leased: monotonic milliseconds at which we surely owned it: those before the read was sent.
    """
    if len(fields) < 4 or fields[-2] != HISTORY:
        return Held(entry, fields, deliveries, leased)
    own, history = take_history(fields)
    return (
        Held(entry, fields, deliveries, leased) if own is fields else Returned(entry, own, deliveries, leased, history)
    )


@dataclass(slots=True)
class Membership:
    """One consumer of one group.

    Attributes:
        stream: key of the stream.
        group: name of the group.
        consumer: our name in it.
        min_idle: milliseconds without a sign of life after which an entry may be claimed.
        dead: key of the dead-letter stream.
        dead_maxlen: its approximate bound, if any.
        no_ack: entries are never pending; there is nothing to ack, retry or claim.
        delete_acked: what is acked leaves the stream once no group needs it.
        line: for acks, claims of known entries and lease renewals.
        private: a line for transactions, which others' commands must not get into; use under ``guard``.
        clock: where time comes from.
        capabilities: of the server, as found at the last connect.
        held: entries in hand by id.
        reasons: why entries were given up, and how many for each.
    """

    stream: str
    group: str
    consumer: str
    min_idle: int
    dead: str
    dead_maxlen: int | None
    no_ack: bool
    delete_acked: bool
    line: Line
    private: Line
    guard: asyncio.Lock
    clock: Clock
    capabilities: Capabilities = field(default_factory=Capabilities)
    stats: SubscriberStats = field(default_factory=SubscriberStats)
    chance: Random = field(default_factory=Random)
    held: dict[bytes, Held] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def stale(self, held: Held) -> bool:
        """True when so much time went by that somebody else may own the entry."""
        return self.clock.mono_time() - held.leased > self.min_idle * 3 // 4 and not self.no_ack

    def stale_among(self, entries: Sequence[Held]) -> list[Held]:
        """Those of them that are stale; the clock is read once."""
        if self.no_ack:
            return []
        fresh = self.clock.mono_time() - self.min_idle * 3 // 4
        return [held for held in entries if held.leased < fresh]

    def drop(self, held: Held) -> None:
        """Forget an entry, unless its id has been delivered to us anew."""
        if self.held.get(held.id) is held:
            del self.held[held.id]

    def about(self, held: Held) -> dict[str, str | int]:
        """Which entry a log record is about, as ``extra=``, for :mod:`millstream.worker.middlewares.logging`."""
        return {
            "stream": self.stream,
            "group": self.group,
            "consumer": self.consumer,
            "entry_id": held.id.decode(),
            "delivery": held.deliveries,
        }

    def lose(self, held: Held) -> None:
        """The entry is not ours any more, or nowhere."""
        if held.state is not State.LOST:
            held.step(Event.LOSE)
            self.stats.lost += 1
        self.drop(held)

    def pause(self, attempt: int) -> float:
        """Seconds to wait before the ``attempt``-th try to reach the server again, counted from 1."""
        return min(0.1 * 2.0 ** min(attempt - 1, 10), 5.0) * (0.5 + 0.5 * self.chance.random())
