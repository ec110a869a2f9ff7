"""One running subscriber: its parts are made, started, paused, watched and stopped here.

Its parts are the modules next to it, in the order in which an entry passes them. The intake reads into a bounded
buffer, lanes take entries out and run the handler, and the outcome of a run is stored. This module makes the parts for
one subscription and starts and ends them in the right order. At the end, entries that have not begun are released.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client.delays import due
from millstream.client.line import Command, Disconnected, Line
from millstream.client.open import open_line
from millstream.clock import Clock
from millstream.worker.handlers.invoke import HandlerCalls
from millstream.worker.handlers.middleware import Middleware
from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.limits.limiter import LimitedRuns, Limiter
from millstream.worker.model.histogram import Durations
from millstream.worker.model.lifecycle import LEASED, State
from millstream.worker.model.pause import HandlerPause
from millstream.worker.model.progress import PartProgress
from millstream.worker.model.stats import SubscriberStats
from millstream.worker.settlement import failure_log, spare
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.cancels import Cancels
from millstream.worker.settlement.consumer import Held, Membership, OwnedMembership, hold
from millstream.worker.settlement.delays import EntryDelays
from millstream.worker.settlement.fence import Fence
from millstream.worker.settlement.leases import Leases, OwnedLeases
from millstream.worker.settlement.running import RunningSince, Work
from millstream.worker.subscriber.apart import Apart
from millstream.worker.subscriber.batching import BatchRuns
from millstream.worker.subscriber.buffer import Buffer
from millstream.worker.subscriber.fetch import Fetcher
from millstream.worker.subscriber.group_setup import GroupSetup
from millstream.worker.subscriber.intake import Intake
from millstream.worker.subscriber.isolation import IsolatedRuns, IsolationGate
from millstream.worker.subscriber.key_ordering import HoldingOrder, KeyOrdering
from millstream.worker.subscriber.lanes import Lanes, Runs
from millstream.worker.subscriber.parts import Common
from millstream.worker.subscriber.places import LanePlaces, Owned
from millstream.worker.subscriber.runs import AfterRun, SingleRuns
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

_READ_AHEAD = 128
#: The same for the owner of a partition: a fenced read costs more, and no other worker could run the entries.
_OWNED_AHEAD = 256
_HOLDING = 1_000  # number of entries read ahead if entries may wait for a failed one with their key
_PAGE = 500
#: Additional threads, for handlers that continue after their run was given up (Timeout).
_LATE_THREADS = 1_000
#: Seconds for leaving the group: an unresponsive server must not keep a process from ending.
_LEAVE_WITHIN = 2.0
#: Seconds for storing outcomes at a stop, in addition to the grace time.
_STORED_WITHIN = 5.0


class SubscriberProgress(PartProgress):
    """The progress of one subscriber: its activity, and in ``idle_ms`` the time since the last reply to its reader.

    The activity is ``starting``, ``reading``, ``full`` (every lane and the buffer are taken) or ``paused`` (or quiet).
    Or it is ``unreachable`` (the server does not reply), ``stuck``, ``failed`` or ``stopping``.
    """

    __slots__ = ()
    lost_in = ("stuck", "failed")
    ready_in = ("reading", "full", "paused")  # Also if full or paused


@dataclass(frozen=True, slots=True)
class Shared:
    """State that all subscribers of an app share."""

    url: str = field(repr=False)  # URL of the server
    line: Line  # Connection for short commands
    private: Line  # Connection only for transactions; used under ``guard``
    guard: asyncio.Lock  # Guards ``private``
    gate: IsolationGate  # Lets an isolated entry run alone in the whole process
    clock: Clock  # Source of time
    middlewares: Sequence[Middleware] = ()  # Middlewares of the app, outside of the subscription's own


def membership(
    kind: type[Membership], subscription: Subscription, consumer: str, shared: Shared, line: Line, private: Line
) -> Membership:
    """Return the membership of a consumer in the group of a subscription."""
    sub = subscription.sub
    return kind(
        stream=sub.stream,
        group=subscription.group,
        consumer=consumer,
        min_idle=subscription.min_idle,
        dead=subscription.dead,
        dead_maxlen=sub.maxlen,
        no_ack=sub.no_ack,
        delete_acked=subscription.on_ack == "delete",
        line=line,
        anywhere=shared.line,
        private=private,
        guard=shared.guard,
        clock=shared.clock,
    )


class SubscriberLoop:
    """Runs one subscription in this process."""

    def __init__(
        self, subscription: Subscription, shared: Shared, *, siblings: Collection[str] = (), owned: Owned | None = None
    ) -> None:
        sub, gate = subscription.sub, shared.gate
        # ``_own_name``: the name was generated for this process, and its consumer is removed at the end
        consumer, self._own_name = subscription.consumer()
        if spare.spare is not None and spare.is_here():
            consumer, self._own_name = spare.spare.consumer, True
        if owned is not None:
            consumer, self._own_name = owned.lease.consumer, True
        self.subscription = subscription  # The subscription that it runs
        kind = Membership if owned is None else OwnedMembership
        line, private = shared.line.near(sub.stream), shared.private.near(sub.stream)
        self.member = member = membership(kind, subscription, consumer, shared, line, private)
        self._gate = gate
        greet: tuple[Command, ...] = (("CLIENT", "ID"),)
        if owned is not None:
            member.lease, member.stats, member.reasons = owned.lease, owned.member.stats, owned.member.reasons
            greet += (("WATCH", owned.lease.key), ("GET", owned.lease.key))
        # A separate connection, since a blocking read would delay all other commands
        self._line = open_line(shared.url, near=sub.stream, greet=greet)
        fence = Fence(member, failure_log.key(member.stream, member.group), due.key(member.stream, member.group))
        leases = Leases(member, fence) if owned is None else OwnedLeases(member, fence, owned.renew)
        # Order by key applies within a single process
        stays = sub.no_ack or subscription.key is not None or owned is not None
        hand_over = None if stays else spare.HandOver(member, fence, failure_log.FailureLog.row)
        failures = failure_log.FailureLog(member, fence, subscription.retry, hand_over)
        delays = EntryDelays(member, fence)
        acks = PendingAcks(member, fence, failures, delays, single=subscription.ack == "each")
        apart = Apart()
        outcomes = Outcomes(member, acks, subscription.retry, asyncio.get_running_loop())
        # A thread cannot be interrupted; its function must check ``msg.cancelled``
        cancels = Cancels(member, outcomes.cancelled, apart.interrupt if subscription.is_async else lambda _: None)
        self.common = common = Common(subscription, member, leases, failures, delays, acks, cancels, outcomes, apart)
        self._threads = threads_for(subscription) if owned is None else None
        threads = self._threads if owned is None else owned.threads
        calls = HandlerCalls(subscription, outcomes, threads, shared.middlewares)
        #: Ends this process because of a run beyond the hard limit
        self.overrun: Callable[[Subscription, Work], None] = lambda *_: None
        calls.late = lambda work: self.overrun(subscription, work)
        lowest, highest = _read_ahead(subscription)
        places = LanePlaces(subscription.concurrency, gate) if owned is None else owned.places
        self.holding: HoldingOrder | None = None  # Delays entries while a failed entry with their key is pending
        self._buffer = buffer = Buffer(common, places, lowest=lowest, highest=highest)
        self._after = after = AfterRun(common)
        self._runs: Runs = (
            BatchRuns(common, calls, after, gate, buffer)
            if subscription.batch
            else SingleRuns(common, calls.one, after, gate, None if subscription.key is not None else places)
        )
        self._isolated = isolated = IsolatedRuns(common, gate, self._runs.start, calls.received)
        start, self.limiter = self._runs.start, self._limited(shared, calls, isolated)
        if self.limiter is not None:
            take = self._runs.take if isinstance(self._runs, BatchRuns) else None
            start = LimitedRuns(self.limiter, start, take, buffer.put_first).start
        self.lanes = Lanes(common, buffer, start, isolated)  # Run the handlers
        if subscription.key is not None:
            parts: dict[str, Any] = {
                "message": calls.message,
                "run": self.lanes.begin,
                "unfit": outcomes.failed,
                "moved": buffer.room.set,
                "apart": apart,
            }
            if subscription.hold:
                buffer.by_key = self.holding = HoldingOrder(subscription.key, again=buffer.put_first, **parts)
                outcomes.on_failure = self.holding.failed
            else:
                buffer.by_key = KeyOrdering(subscription.key, **parts)
        self._group = GroupSetup(common, fence, self._line, siblings)
        self._message = calls.message
        self._reads = None if owned is None else owned.reads(self._line)
        self.fetcher = Fetcher(common, self._line, self._reads)  # Reads and claims entries
        self.fetcher.holding = self.holding
        self._intake = Intake(common, self._group, self.fetcher, buffer, isolated, calls.received)
        if (limiter := self.limiter) is not None:
            self._intake.limiter = limiter if limiter.whole else None
            # A pause lets entries without a record on the server run
            limiter.quiet = lambda: (self._intake.held_up and not sub.no_ack) or gate.wanted or buffer.closed.is_set()
        if owned is not None:
            acks.on_return = self.fetcher.returned
        if subscription.claims:
            acks.on_due = self._intake.expect
        leases.on_left = acks.note_left
        self._helpers: list[asyncio.Task[None]] = []
        self._durations: Durations | None = None
        self._running = RunningSince()
        self._quiet = False
        self.paused: HandlerPause | None = None  # Pause of this handler; None if it is not paused

    def _limited(self, shared: Shared, calls: HandlerCalls, isolated: IsolatedRuns) -> Limiter | None:
        """Return the limiter of a handler with limits; None without limits."""
        if not self.subscription.limits:
            return None
        limiter = Limiter(self.subscription, self.member, self.common.acks, shared.line)
        limiter.message, limiter.unfit = calls.message, self.common.outcomes.failed
        limiter.give_back, limiter.moved = self._buffer.give_back, self._buffer.room.set
        isolated.admit = lambda held: limiter.may_start(held, wait=False)
        return limiter

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> SubscriberStats:
        """The counters."""
        return self.member.stats

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the last reply to the reader; at most the polling interval if all is well."""
        return self._intake.idle_ms

    @property
    def parts(self) -> "Sequence[SubscriberLoop]":
        """The loops that read: this loop. A partitioned subscriber has several."""
        return (self,)

    @property
    def limiters(self) -> list[Limiter]:
        """The limiter, if any."""
        return [] if self.limiter is None else [self.limiter]

    def entries(self) -> list[Held]:
        """Return the held entries."""
        return list(self.member.held.values())

    @property
    def buffered(self) -> int:
        """Number of entries that were read and have not begun."""
        return self._buffer.ahead

    def waiting_alone(self) -> tuple[Held, ...]:
        """Return the entries that wait to run in isolation."""
        return self._isolated.waiting

    @property
    def busy(self) -> bool:
        """True while any entry has not begun, runs, or has an outcome that is not stored."""
        return self.buffered > 0 or self.in_hand > 0

    @property
    def in_hand(self) -> int:
        """Number of entries that have not begun, run, or have an outcome that is not stored."""
        return sum(held.state in LEASED for held in self.member.held.values())

    @property
    def last_error(self) -> dict[str, Any] | None:
        """The last failure of a run: ``at_ms``, ``handler``, ``entry``, ``error``."""
        if self.common.outcomes.last_failure is None:
            return None
        at_ms, entry, text = self.common.outcomes.last_failure
        return {"at_ms": at_ms, "handler": self.subscription.name, "entry": entry.decode(), "error": text}

    def durations(self) -> Durations:
        """Return the durations of the runs since the first call; earlier runs are not measured."""
        if self._durations is None:
            self.measure(Durations())
        assert self._durations is not None
        return self._durations

    def measure(self, durations: Durations) -> None:
        """Measure all further runs in these durations."""
        self._durations = durations
        self._runs.call = durations.timed(self._runs.call)

    def bound(self, parts: int) -> None:
        """Limit the read-ahead for one of ``parts`` loops: a fixed bound is divided; otherwise only its minimum is."""
        lowest, highest = _read_ahead(self.subscription)
        given = self.subscription.sub.max_records or self.subscription.hold
        if given:
            highest = max(highest // parts, 1)
        elif not self.subscription.batch:
            highest = max(highest, _OWNED_AHEAD)
        self._buffer.bound(max(lowest // parts, 1), highest, parts)

    def longest_ms(self) -> int:
        """Return the milliseconds since the longest current run was first seen by this method; 0 if nothing runs."""
        now = self.member.clock.now().mono
        running = self._running.look(self.member.held.values(), now)
        return now - running[0][0] if running else 0

    def progress(self) -> SubscriberProgress:
        """Return the progress of this subscriber."""
        reader = self._intake.task
        if self._buffer.closed.is_set():
            doing = "stopping"
        elif reader is None:
            doing = "starting"
        elif any(part.done() for part in (reader, *self.lanes.tasks, *self._helpers)):
            doing = "failed"
        else:
            doing = self._intake.doing
        return SubscriberProgress(self.subscription.name, doing, self.idle_ms)

    def undone(self) -> str:
        """Return the unsettled entries as text for people; empty without any."""
        kept = self.kept_back()
        states = Counter(
            held.state.name.lower()
            for held in self.member.held.values()
            if held.state is not State.LEFT and held.id.decode() not in kept
        )
        if not states and not self.common.acks.idle:
            return "outcomes are being stored"
        return ", ".join(f"{count} {state}" for state, count in states.items())

    def kept_back(self) -> set[str]:
        """Return the ids of held entries that wait for a failed entry of their key."""
        return set() if self.holding is None else {entry.decode() for entry in self.holding.kept()}

    def left(self) -> set[str]:
        """Return the ids of entries whose handler returned without an outcome (manual ack)."""
        return {held.id.decode() for held in self.member.held.values() if held.state is State.LEFT}

    # -- start, pause, stop -----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find out the server's capabilities and create the group."""
        await self._group.prepare()

    async def take_over(self) -> None:
        """Claim the entries of earlier owners, after :meth:`prepare` and before anything is read."""
        if self._reads is not None:
            pending = await self._reads.take_over()
            if self.holding is not None:
                for at in range(0, len(pending), _PAGE):
                    await self._seed(pending[at : at + _PAGE])

    async def _seed(self, entries: Sequence[bytes]) -> None:
        """Make later entries of the same keys wait for these pending entries."""
        assert self.holding is not None
        stream = self.member.stream
        for rows in await self._line.calls([("XRANGE", stream, entry, entry) for entry in entries]):
            if isinstance(rows, list) and rows:
                self.holding.seed(hold(rows[0][0], rows[0][1], 1, 0))

    def start(self) -> None:
        """Start all parts."""
        parts = (self.common.leases, self.common.acks, self.common.cancels)
        self._helpers = [asyncio.create_task(part.run()) for part in parts]
        if self.limiter is not None:
            self._helpers.append(asyncio.create_task(self.limiter.run()))
        self.lanes.start()
        self._intake.start()
        self._gate.join(self._intake.make_way, self._intake.go_on)

    def quieten(self, quiet: bool) -> None:
        """Stop reading and release entries that have not begun; with False, continue. Runs go on in both cases."""
        self._quiet = quiet
        self._intake.hold_up(self._quiet or self.paused is not None)

    def pause(self, pause: HandlerPause | None) -> None:
        """Stop reading as in :meth:`quieten`, for a pause of this handler on the server; with None, continue."""
        self.paused = pause
        self._intake.hold_up(self._quiet or self.paused is not None)

    async def renew(self) -> None:
        """Renew the leases that are due now, as a task does regularly, for tests with a manual clock."""
        await self.common.leases.round()
        await self.fetcher.hold()
        await self.common.cancels.round()
        if self.limiter is not None:
            await self.limiter.send(renew=True)
            self.limiter.moved()  # reading may wait for permits

    async def done(self) -> None:
        """Wait until a part of the loop fails, or all have ended because of a stop."""
        assert self._intake.task is not None
        parts = [self._intake.task, *self.lanes.tasks, *self._helpers]
        ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
        for part in ended:
            if not part.cancelled():
                part.result()

    async def stop(self, grace: float) -> bool:
        """Release entries that have not begun, let runs finish, store every outcome, and leave the group.

        Returns:
            False if something could not be finished: a thread still runs, or the server did not accept an outcome.
        """
        # Order: starting ends first, then reading, then runs, then all outcomes are stored
        self._buffer.close()
        self._buffer.hand_back()
        self._isolated.stop()
        await self._intake.end()
        self._buffer.hand_back()  # entries of the last read
        self._isolated.hand_back()
        # Concurrently with the lanes: outcomes are stored even if a handler uses up the whole grace time
        flushed = asyncio.create_task(self.common.acks.drain(min(grace, _STORED_WITHIN)))
        stubborn = await self.lanes.end(grace)  # added afterwards, since further runs are counted meanwhile
        self._after.unfinished += stubborn
        await flushed
        for held in list(self.member.held.values()):
            if held.state is State.LEFT:
                self.common.acks.release(held, charge=True)
            else:
                self._buffer.give_back(held)  # its lane was cancelled while it renewed the entry
        # Once more, for outcomes of runs that ended meanwhile
        drained = await self.common.acks.drain(_STORED_WITHIN)
        await cancel_all(self._helpers)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._gate.leave(self._intake.make_way)
        if self.limiter is not None:
            await self.limiter.send()
        await self._leave()
        await self._line.close()
        return drained and not self._after.unfinished

    async def abandon(self) -> None:
        """Stop at once, since another worker owns the stream. No entry is released, and runs are cancelled."""
        self._buffer.close()
        for held in self.entries():
            self.member.lose(held)
        self._buffer.hand_back()
        self._isolated.stop()
        await cancel_all((self._intake.task, *self._helpers))
        for held in self.entries():  # entries of the last read
            self.member.lose(held)
        self._buffer.hand_back()
        await self.lanes.end(0)
        self._gate.leave(self._intake.make_way)
        await self._line.close()

    async def _leave(self) -> None:
        """Remove this consumer, if its name was made for this process and it has nothing pending."""
        member = self.member
        if not self._own_name or self._after.unfinished or not self._line.connects:
            return  # without any connection there is no consumer to remove
        failpoints.reach("before_forget")
        try:
            async with asyncio.timeout(_LEAVE_WITHIN):
                if spare.is_here():
                    await member.line.call("EVAL", spare.LEAVE, 1, member.stream, member.group, member.consumer)
                    return
                rows = await member.line.call("XPENDING", member.stream, member.group, "-", "+", 1, member.consumer)
                if not rows:
                    await member.line.call("XGROUP", "DELCONSUMER", member.stream, member.group, member.consumer)
        except (Disconnected, ResponseError, TimeoutError) as error:
            log.info("%s: consumer %s was not removed: %s", member.stream, member.consumer, error)


def threads_for(subscription: Subscription) -> ThreadPoolExecutor | None:
    """Return the threads that run a handler; None if it is async."""
    if subscription.is_async:
        return None
    return ThreadPoolExecutor(subscription.concurrency + _LATE_THREADS, thread_name_prefix=subscription.name)


def _read_ahead(subscription: Subscription) -> tuple[int, int]:
    """Return the minimum and maximum number of entries read ahead."""
    lowest = subscription.sub.max_records or subscription.concurrency
    ahead = _HOLDING if subscription.hold else _READ_AHEAD
    highest = subscription.sub.max_records or max(ahead, 2 * subscription.concurrency)
    if subscription.key is not None:
        return highest, highest  # one busy key must not fill a small buffer
    if subscription.batch:
        return subscription.batch_size, subscription.batch_size
    return lowest, highest
