"""State shared by the parts of one subscriber's loop: its consumer and group, its connections, and the held entries."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from millstream.client.capabilities import Capabilities
from millstream.client.dead_letter.letter import HISTORY
from millstream.client.dead_letter.tries import FailedTry
from millstream.client.jobs.record import FIELD, ResultRow, WantedResult, result_key, take_trailer
from millstream.client.line import Line
from millstream.client.partitions.lease import PartitionLease
from millstream.clock import Clock
from millstream.worker.model.lifecycle import FINAL, TABLE, Event, State, step
from millstream.worker.model.retry import FailureRecord
from millstream.worker.model.stats import SubscriberStats


class Held:
    """One entry that was delivered to this process."""

    __slots__ = ("deliveries", "fields", "id", "leased", "noted", "on_end", "record", "state", "waiter", "was_due")

    def __init__(self, entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> None:
        self.id = entry  # Id of the entry, as the server wrote it
        self.fields = fields  # Names and values, alternating
        self.deliveries = deliveries  # Count of deliveries on the server, including this one
        self.leased = leased  # Monotonic milliseconds of the last confirmation that this consumer owns it
        self.state = State.BUFFERED  # See :mod:`millstream.worker.model.lifecycle`
        # Resolved when the outcome is stored or the entry is lost; created on demand
        self.waiter: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None  # Called once at the same time; see :meth:`then`
        self.noted = False  # Its handler returned long ago without an outcome; ``record`` counts this as a failure
        # Record of its failures, if known; see :mod:`millstream.worker.settlement.failure_log`
        self.record: FailureRecord | None = None
        self.was_due = False  # The server stores a due time for it, which must be deleted with its outcome

    @property
    def tries(self) -> tuple[FailedTry, ...]:
        """Failed tries before this delivery; the note that its handler returned without an outcome is not one."""
        return () if self.record is None else self.record.tries[: -1 if self.noted else None]

    def step(self, event: Event) -> State:
        """Apply an event; when the entry reaches its end, wake the code that waits for it."""
        # `step` raises for a forbidden transition; otherwise the table alone is faster
        state = self.state = TABLE[self.state].get(event) or step(self.state, event)
        if state in FINAL:
            self._reached_end()
        return state

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the outcome is stored or lost, after the functions added before."""
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
            # Removed first: the call may change the entry's state and come here again
            call, self.on_end = self.on_end, None
            call()


class Trailed(Held):
    """An entry with extra fields, which are split off: the history of a former dead letter, or a requested result."""

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
        self.history = history  # Earlier deaths, see :class:`~millstream.client.dead_letter.letter.DeadLetter`
        self.job = job  # Result that its publisher requested
        self.result: str | None = None  # Record of that result, once known


def hold(entry: bytes, fields: list[bytes], deliveries: int, leased: int) -> Held:
    """Return an entry as it was delivered, with Millstream's own fields split off."""
    if len(fields) < 4 or (fields[-2] != FIELD and fields[-2] != HISTORY):
        return Held(entry, fields, deliveries, leased)
    own, history, job = take_trailer(fields)
    return (
        Held(entry, fields, deliveries, leased)
        if own is fields
        else Trailed(entry, own, deliveries, leased, history, job)
    )


def job_of(held: Held) -> WantedResult | None:
    """Return the result that an entry's publisher requested; None without one."""
    return held.job if isinstance(held, Trailed) else None


@dataclass(slots=True)
class Membership:
    """One consumer of one group, and its state."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    consumer: str  # Name of this consumer
    min_idle: int  # Idle milliseconds after which an entry may be claimed
    dead: str  # Key of the dead-letter stream
    dead_maxlen: int | None  # Approximate limit of that stream in entries, if any
    no_ack: bool  # Entries are never pending, so none can be acknowledged, retried or claimed
    delete_acked: bool  # Acknowledged entries leave the stream when no group needs them
    line: Line  # Connection for acks, claims of known entries and lease renewals
    anywhere: Line  # Connection for keys outside of the stream's slot
    private: Line  # Connection only for transactions; use it under ``guard``
    guard: asyncio.Lock
    clock: Clock  # Source of time
    capabilities: Capabilities = field(default_factory=Capabilities)  # Capabilities of the server at the last connect
    stats: SubscriberStats = field(default_factory=SubscriberStats)
    chance: Random = field(default_factory=Random)
    held: dict[bytes, Held] = field(default_factory=dict)  # Held entries by id
    cancelled: set[Held] = field(default_factory=set)  # Running entries that were cancelled
    reasons: Counter[str] = field(default_factory=Counter)  # Number of dead letters by reason
    lease: PartitionLease | None = None  # Lease, if the stream is a partition

    def stale(self, held: Held) -> bool:
        """Report whether another consumer may own the entry, because its lease was not renewed for too long."""
        # Three quarters, which leaves time for the network and for clocks with different speeds
        return self.clock.mono_time() - held.leased > self.min_idle * 3 // 4 and not self.no_ack

    def stale_among(self, entries: Sequence[Held]) -> list[Held]:
        """Return the stale entries among these; the clock is read once."""
        if self.no_ack:
            return []
        fresh = self.clock.mono_time() - self.min_idle * 3 // 4
        return [held for held in entries if held.leased < fresh]

    def drop(self, held: Held) -> None:
        """Remove an entry from the held ones, unless its id was delivered again."""
        if self.held.get(held.id) is held:
            del self.held[held.id]

    def about(self, held: Held) -> dict[str, str | int]:
        """Return an entry's facts as ``extra=`` of a log record, for :mod:`millstream.worker.middlewares.logging`."""
        return {
            "stream": self.stream,
            "group": self.group,
            "consumer": self.consumer,
            "entry_id": held.id.decode(),
            "delivery": held.deliveries,
        }

    def result_row(self, held: Held, text: str) -> ResultRow | None:
        """Return the record to write of an entry's end; None if its publisher requested no result."""
        job = job_of(held)
        return None if job is None else ResultRow(result_key(self.stream, held.id.decode()), self.group, text, job[0])

    def lose(self, held: Held) -> None:
        """Note that this consumer no longer owns the entry, or that it is gone."""
        if held.state is not State.LOST:
            held.step(Event.LOSE)
            self.stats.lost += 1
        self.drop(held)

    def pause(self, attempt: int) -> float:
        """Return the delay in seconds before the ``attempt``-th try to reach the server again, counted from 1."""
        return min(0.1 * 2.0 ** min(attempt - 1, 10), 5.0) * (0.5 + 0.5 * self.chance.random())


class OwnedMembership(Membership):
    """The owner of a partition: an entry is also stale once the partition's lease is."""

    __slots__ = ()

    def stale(self, held: Held) -> bool:
        """Report whether another consumer may own the entry or the partition."""
        now, lasts = self.clock.mono_time(), self.min_idle * 3 // 4
        return self.lease is None or now - self.lease.renewed > lasts or (now - held.leased > lasts and not self.no_ack)

    def stale_among(self, entries: Sequence[Held]) -> list[Held]:
        """Return the stale entries among these; all of them if the partition's lease is stale."""
        return list(entries) if self._lease_is_stale() else Membership.stale_among(self, entries)

    def _lease_is_stale(self) -> bool:
        return self.lease is None or self.clock.mono_time() - self.lease.renewed > self.min_idle * 3 // 4
