"""State that the parts of one subscriber's loop share: our name and group, the lines, and the entries in hand."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from millstream.client.capabilities import Capabilities
from millstream.client.dead_letter.letter import HISTORY
from millstream.client.jobs.record import FIELD, ResultRow, WantedResult, result_key, take_trailer
from millstream.client.line import Line
from millstream.client.partitions.lease import PartitionLease
from millstream.clock import Clock
from millstream.worker.model.lifecycle import FINAL, TABLE, Event, State, step
from millstream.worker.model.retry import FailureRecord
from millstream.worker.model.stats import SubscriberStats


class Held:
    """One entry in our hands."""

    __slots__ = ("deliveries", "fields", "id", "leased", "noted", "on_end", "record", "state", "waiter", "was_due")

    def __init__(self, entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> None:
        self.id = entry  # The entry's id as the server wrote it
        self.fields = fields  # Names and values in turn
        self.deliveries = deliveries  # The server's count, the present delivery included
        self.leased = leased  # Monotonic milliseconds at which we surely still owned it
        self.state = State.BUFFERED  # See :mod:`millstream.worker.model.lifecycle`
        # Resolved when the outcome is stored or lost; made only for those who wait
        self.waiter: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None  # Called then, once; see :meth:`then`
        self.noted = False  # Its handler returned long ago without a word, which ``record`` counts as a failure already
        # Facts about its failures, if any are known; see :mod:`millstream.worker.settlement.failure_log`
        self.record: FailureRecord | None = None
        self.was_due = False  # A due time of it is on the server, which goes with its outcome

    def step(self, event: Event) -> State:
        """Move on, and wake whoever waits for the end."""
        # `step` raises for a forbidden move; the table alone is the fast way for the rest
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
            # Taken off first: the call may move the entry on and come here again
            call, self.on_end = self.on_end, None
            call()


class Trailed(Held):
    """An entry with more than its own fields, which are taken off: it was dead and was put back, or has a result."""

    __slots__ = ("history", "job", "result")

    def __init__(
        self,
        entry: bytes,
        fields: list[bytes],
        deliveries: int,
        leased: int,
        history: tuple[Mapping[str, object], ...],
        job: WantedResult | None,
    ) -> None:
        super().__init__(entry, fields, deliveries, leased)
        self.history = history  # Its earlier deaths, see :class:`~millstream.client.dead_letter.letter.DeadLetter`
        self.job = job  # The result that its publisher wants
        self.result: str | None = None  # The record of it, once it is known


def hold(entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> Held:
    """An entry as it was delivered, without the fields that are ours."""
    if len(fields) < 4 or (fields[-2] != FIELD and fields[-2] != HISTORY):
        return Held(entry, fields, deliveries, leased)
    own, history, job = take_trailer(fields)
    return (
        Held(entry, fields, deliveries, leased)
        if own is fields
        else Trailed(entry, own, deliveries, leased, history, job)
    )


def job_of(held: Held) -> WantedResult | None:
    """The result that an entry's publisher wants."""
    return held.job if isinstance(held, Trailed) else None


@dataclass(slots=True)
class Membership:
    """One consumer of one group."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    consumer: str  # Our name in it
    min_idle: int  # Milliseconds without a sign of life after which an entry may be claimed
    dead: str  # Key of the dead-letter stream
    dead_maxlen: int | None  # Its approximate bound, if any
    no_ack: bool  # Entries are never pending; there is nothing to ack, retry or claim
    delete_acked: bool  # Acked entries leave the stream once no group needs them
    line: Line  # For acks, claims of known entries and lease renewals
    anywhere: Line  # To keys that need not be near the stream
    private: Line  # A line for transactions, which others' commands must not get into; use under ``guard``
    guard: asyncio.Lock
    clock: Clock  # Source of time
    capabilities: Capabilities = field(default_factory=Capabilities)  # The server's, as found at the last connect
    stats: SubscriberStats = field(default_factory=SubscriberStats)
    chance: Random = field(default_factory=Random)
    held: dict[bytes, Held] = field(default_factory=dict)  # Entries in hand by id
    cancelled: set[Held] = field(default_factory=set)  # Running entries that were cancelled
    reasons: Counter[str] = field(default_factory=Counter)  # Why entries were given up, and how many for each
    lease: PartitionLease | None = None  # The lease, if the stream is a partition

    def stale(self, held: Held) -> bool:
        """True if so much time passed that another consumer may own the entry."""
        # Three quarters: the rest is for the way to the server and for clocks of different speed
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

    def result_row(self, held: Held, text: str) -> ResultRow | None:
        """The record of an entry's end to write; None if its publisher wants none."""
        job = job_of(held)
        return None if job is None else ResultRow(result_key(self.stream, held.id.decode()), self.group, text, job[0])

    def lose(self, held: Held) -> None:
        """The entry is not ours any more, or nowhere."""
        if held.state is not State.LOST:
            held.step(Event.LOSE)
            self.stats.lost += 1
        self.drop(held)

    def pause(self, attempt: int) -> float:
        """Seconds to wait before the ``attempt``-th try to reach the server again, counted from 1."""
        return min(0.1 * 2.0 ** min(attempt - 1, 10), 5.0) * (0.5 + 0.5 * self.chance.random())


class OwnedMembership(Membership):
    """The owner of a partition: its entries are as stale as its lease."""

    __slots__ = ()

    def stale(self, held: Held) -> bool:
        """True when so much time went by that another may own the entry, or the partition."""
        now, lasts = self.clock.mono_time(), self.min_idle * 3 // 4
        return self.lease is None or now - self.lease.renewed > lasts or (now - held.leased > lasts and not self.no_ack)

    def stale_among(self, entries: Sequence[Held]) -> list[Held]:
        """Those of them that are stale."""
        return list(entries) if self._lease_is_stale() else Membership.stale_among(self, entries)

    def _lease_is_stale(self) -> bool:
        return self.lease is None or self.clock.mono_time() - self.lease.renewed > self.min_idle * 3 // 4
