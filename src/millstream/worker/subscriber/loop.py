"""One subscriber at work: put together, started, paused, watched and stopped.

Its parts are the modules next to it, in the order in which an entry meets them. The intake reads into a bounded buffer,
lanes take entries out and run the handler, and the outcome of a run is stored. This module makes the parts for one
subscription and sees that they begin and end in the right order; at the end whatever was not started is handed back.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
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
_HOLDING = 1_000  # The same where entries may wait for a failed one of their key
_PAGE = 500
#: Threads that handlers may go on in after their run was given up (Timeout), before the next runs wait for one.
_LATE_THREADS = 1_000
#: Seconds to leave the group in; a server that hangs must not keep a process from ending.
_LEAVE_WITHIN = 2.0
#: Seconds in which outcomes are to be stored at a stop, beside the grace time.
_STORED_WITHIN = 5.0


class SubscriberProgress(PartProgress):
    """The progress of one subscriber: ``idle_ms`` since its reader last got an answer, and what it is doing.

    That is ``starting``, ``reading``, ``full`` (every lane and the buffer are taken), ``paused`` (or quiet),
    ``unreachable`` (it tries, and the server does not answer), ``stuck``, ``failed`` or ``stopping``.
    """

    __slots__ = ()
    lost_in = ("stuck", "failed")
    ready_in = ("reading", "full", "paused")  # Also without room, or while it is paused


@dataclass(frozen=True, slots=True)
class Shared:
    """State that all subscribers of an app share."""

    url: str = field(repr=False)  # The server
    line: Line  # For short commands
    private: Line  # For transactions, which others' commands must not get into; used under ``guard``
    guard: asyncio.Lock  # See ``private``
    gate: IsolationGate  # An isolated entry runs with nothing beside it in the whole process
    clock: Clock  # Source of time
    middlewares: Sequence[Middleware] = ()  # The app's, outside the subscription's own


def membership(
    kind: type[Membership], subscription: Subscription, consumer: str, shared: Shared, line: Line, private: Line
) -> Membership:
    """The place of a consumer in the group of a subscription."""
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
        # ``_own_name``: the name was made for this process, and is removed at the end
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
        # A connection of its own: a read that waits would hold up all other commands
        self._line = open_line(shared.url, near=sub.stream, greet=greet)
        fence = Fence(member, failure_log.key(member.stream, member.group), due.key(member.stream, member.group))
        leases = Leases(member, fence) if owned is None else OwnedLeases(member, fence, owned.renew)
        # order by key holds within one process
        stays = sub.no_ack or subscription.key is not None or owned is not None
        hand_over = None if stays else spare.HandOver(member, fence, failure_log.FailureLog.row)
        failures = failure_log.FailureLog(member, fence, subscription.retry, hand_over)
        delays = EntryDelays(member, fence)
        acks = PendingAcks(member, fence, failures, delays, single=subscription.ack == "each")
        apart = Apart()
        outcomes = Outcomes(member, acks, subscription.retry, asyncio.get_running_loop())
        # A thread cannot be interrupted: its function looks at ``msg.cancelled``
        cancels = Cancels(member, outcomes.cancelled, apart.interrupt if subscription.is_async else lambda _: None)
        self.common = common = Common(subscription, member, leases, failures, delays, acks, cancels, outcomes, apart)
        self._threads = threads_for(subscription) if owned is None else None
        threads = self._threads if owned is None else owned.threads
        calls = HandlerCalls(subscription, outcomes, threads, shared.middlewares)
        #: ends this process over a run beyond the hard limit
        self.overrun: Callable[[Subscription, Work], None] = lambda *_: None
        calls.late = lambda work: self.overrun(subscription, work)
        lowest, highest = _read_ahead(subscription)
        places = LanePlaces(subscription.concurrency, gate) if owned is None else owned.places
        self.holding: HoldingOrder | None = None  # Keeps entries back until a failed one of their key is over
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
            start = LimitedRuns(self.limiter, start, self._with_one).start
        self.lanes = Lanes(common, buffer, start, isolated)  # Run handlers
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
        self.fetcher = Fetcher(common, self._line, self._reads)  # Asks for entries
        self.fetcher.holding = self.holding
        self._intake = Intake(common, self._group, self.fetcher, buffer, isolated, calls.received)
        if (limiter := self.limiter) is not None:
            self._intake.limiter = limiter if limiter.whole else None
            limiter.quiet = lambda: self._intake.held_up or gate.wanted or buffer.closed.is_set()
        if owned is not None:
            acks.on_return = self.fetcher.returned
        if subscription.claims:
            acks.on_due = self._intake.expect
        leases.on_left = acks.note_left
        self._helpers: list[asyncio.Task[None]] = []
        self._durations: Durations | None = None
        self._running = RunningSince()
        self._quiet = False
        self.paused: HandlerPause | None = None  # Why it is to run nothing, if somebody paused it

    def _limited(self, shared: Shared, calls: HandlerCalls, isolated: IsolatedRuns) -> Limiter | None:
        """The limiter of a handler with limits."""
        if not self.subscription.limits:
            return None
        limiter = Limiter(self.subscription, self.member, self.common.acks, shared.line)
        limiter.message, limiter.unfit = calls.message, self.common.outcomes.failed
        limiter.give_back, limiter.moved = self._buffer.give_back, self._buffer.room.set
        isolated.admit = lambda held: limiter.may_start(held, wait=False)
        return limiter

    def _with_one(self) -> Sequence[Held]:
        """The entries that would run in one batch with another."""
        if not self.subscription.batch:
            return ()
        return tuple(islice(self._buffer.entries, self.subscription.batch_size - 1))

    # -- what is known of it ----------------------------------------------------------------------------------------

    @property
    def stats(self) -> SubscriberStats:
        """The counters."""
        return self.member.stats

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the reader last got an answer; a healthy one is never older than its polling interval."""
        return self._intake.idle_ms

    @property
    def parts(self) -> "Sequence[SubscriberLoop]":
        """The loops that read: this one, or those of the partitions that are owned."""
        return (self,)

    @property
    def limiters(self) -> list[Limiter]:
        """The one that asks for permits, if any."""
        return [] if self.limiter is None else [self.limiter]

    def entries(self) -> list[Held]:
        """Entries in hand."""
        return list(self.member.held.values())

    @property
    def buffered(self) -> int:
        """Entries read and not begun."""
        return self._buffer.ahead

    def waiting_alone(self) -> tuple[Held, ...]:
        """Entries that wait to run in isolation."""
        return self._isolated.waiting

    @property
    def busy(self) -> bool:
        """True while anything is in hand: not begun, running, or its outcome not stored."""
        return self.buffered > 0 or self.in_hand > 0

    @property
    def in_hand(self) -> int:
        """Entries that are ours: not begun, running, or their outcome not stored."""
        return sum(held.state in LEASED for held in self.member.held.values())

    @property
    def last_error(self) -> dict[str, Any] | None:
        """The last failure of a run: ``at_ms``, ``handler``, ``entry``, ``error``."""
        if self.common.outcomes.last_failure is None:
            return None
        at_ms, entry, text = self.common.outcomes.last_failure
        return {"at_ms": at_ms, "handler": self.subscription.name, "entry": entry.decode(), "error": text}

    def durations(self) -> Durations:
        """Durations of the runs since the first call; earlier runs are not measured."""
        if self._durations is None:
            self.measure(Durations())
        assert self._durations is not None
        return self._durations

    def measure(self, durations: Durations) -> None:
        """Have the runs from now on measured there."""
        self._durations = durations
        self._runs.call = durations.timed(self._runs.call)

    def bound(self, parts: int) -> None:
        """Limit the entries read ahead to a share of ``parts`` loops; to the whole while handlers are quick."""
        lowest, highest = _read_ahead(self.subscription)
        given = self.subscription.sub.max_records or self.subscription.hold
        highest = max(highest // parts, 1) if given else highest
        self._buffer.bound(max(lowest // parts, 1), highest, parts)

    def longest_ms(self) -> int:
        """Milliseconds since the longest run at work was first seen by whoever asks for this; 0 when nothing runs."""
        now = self.member.clock.now().mono
        running = self._running.look(self.member.held.values(), now)
        return now - running[0][0] if running else 0

    def progress(self) -> SubscriberProgress:
        """True if this subscriber moves on, and why not."""
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
        """The unsettled entries, in words for people; empty when there are none."""
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
        """Ids of entries in hand that wait for a failed one of their key."""
        return set() if self.holding is None else {entry.decode() for entry in self.holding.kept()}

    def left(self) -> set[str]:
        """Ids of entries that a handler neither acked nor gave back before it returned (manual ack)."""
        return {held.id.decode() for held in self.member.held.values() if held.state is State.LEFT}

    # -- start, pause, stop -----------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find out what the server can do and make the group."""
        await self._group.prepare()

    async def take_over(self) -> None:
        """Take what owners before have in hand: before anything is read, and after :meth:`prepare`."""
        if self._reads is not None:
            pending = await self._reads.take_over()
            if self.holding is not None:
                for at in range(0, len(pending), _PAGE):
                    await self._seed(pending[at : at + _PAGE])

    async def _seed(self, entries: Sequence[bytes]) -> None:
        """Have later entries wait for these, which are pending."""
        assert self.holding is not None
        stream = self.member.stream
        for rows in await self._line.calls([("XRANGE", stream, entry, entry) for entry in entries]):
            if isinstance(rows, list) and rows:
                self.holding.seed(hold(rows[0][0], rows[0][1], 1, 0))

    def start(self) -> None:
        """Begin to work."""
        parts = (self.common.leases, self.common.acks, self.common.cancels)
        self._helpers = [asyncio.create_task(part.run()) for part in parts]
        if self.limiter is not None:
            self._helpers.append(asyncio.create_task(self.limiter.run()))
        self.lanes.start()
        self._intake.start()
        self._gate.join(self._intake.make_way, self._intake.go_on)

    def quieten(self, quiet: bool) -> None:
        """Read nothing more, and hand back what has not begun; or go on. Running handlers go on either way."""
        self._quiet = quiet
        self._intake.hold_up(self._quiet or self.paused is not None)

    def pause(self, pause: HandlerPause | None) -> None:
        """The same for this subscriber alone, for a reason that is kept on the server."""
        self.paused = pause
        self._intake.hold_up(self._quiet or self.paused is not None)

    async def renew(self) -> None:
        """Renew the leases that are due now, as a task does every second; for tests with a manual clock."""
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
        """Hand back what has not begun, let the rest finish, store every outcome, leave the group.

        Returns:
            False when something could not be finished: a thread still running, an outcome the server did not take.
        """
        # Order: nothing begins, then nothing is read, then what runs ends, then all outcomes are stored
        self._buffer.close()
        self._buffer.hand_back()
        self._isolated.stop()
        await self._intake.end()
        self._buffer.hand_back()  # what came with the last read
        self._isolated.hand_back()
        # Next to the lanes: outcomes are stored even if a handler uses up the whole grace time
        flushed = asyncio.create_task(self.common.acks.drain(min(grace, _STORED_WITHIN)))
        stubborn = await self.lanes.end(grace)  # counts further runs meanwhile, so it is added afterwards
        self._after.unfinished += stubborn
        await flushed
        for held in list(self.member.held.values()):
            if held.state is State.LEFT:
                self.common.acks.release(held, charge=True)
            else:
                self._buffer.give_back(held)  # its lane was cancelled while it asked whether the entry is still ours
        # Once more, for the outcomes of runs that ended meanwhile
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
        """Stop at once: the stream is another's. Nothing is handed back, and what runs is cancelled."""
        self._buffer.close()
        for held in self.entries():
            self.member.lose(held)
        self._buffer.hand_back()
        self._isolated.stop()
        await cancel_all((self._intake.task, *self._helpers))
        for held in self.entries():  # what came with the last read
            self.member.lose(held)
        self._buffer.hand_back()
        await self.lanes.end(0)
        self._gate.leave(self._intake.make_way)
        await self._line.close()

    async def _leave(self) -> None:
        """Remove our consumer, if its name was made for this process and it has nothing pending."""
        member = self.member
        if not self._own_name or self._after.unfinished or not self._line.connects:
            return  # where nobody ever got through there is no consumer to remove
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
    """Threads that run a handler; None if it is async."""
    if subscription.is_async:
        return None
    return ThreadPoolExecutor(subscription.concurrency + _LATE_THREADS, thread_name_prefix=subscription.name)


def _read_ahead(subscription: Subscription) -> tuple[int, int]:
    """Fewest and most entries that are read ahead."""
    lowest = subscription.sub.max_records or subscription.concurrency
    ahead = _HOLDING if subscription.hold else _READ_AHEAD
    highest = subscription.sub.max_records or max(ahead, 2 * subscription.concurrency)
    if subscription.key is not None:
        return highest, highest  # one busy key must not fill the little there is
    if subscription.batch:
        return subscription.batch_size, subscription.batch_size
    return lowest, highest
