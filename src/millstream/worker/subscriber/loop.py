"""One subscriber at work: a reader fills a bounded buffer, lanes run the handler, the ledger stores what came of it.

``settle`` says what may happen to an entry, ``policy`` what should; this module only makes it happen, in order:
read, start, run, settle, and at the end hand back whatever was not started.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import capabilities
from millstream.client.dead_letter.letter import meant_for
from millstream.client.line import AccessDenied, Disconnected, Line, Reply, open_line, passes
from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.worker.handlers.invoke import Calls
from millstream.worker.handlers.message import Message, Nack, Reject
from millstream.worker.handlers.middleware import Middleware
from millstream.worker.handlers.outcomes import DeliveryLimitError, Outcomes
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.model.error_text import loggable
from millstream.worker.model.histogram import Durations
from millstream.worker.model.lifecycle import LEASED, Event, State
from millstream.worker.model.retry import Course, resize
from millstream.worker.model.stats import Stats
from millstream.worker.settlement import failure_log
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.consumer import Held, Membership, Returned
from millstream.worker.settlement.fence import Fence
from millstream.worker.settlement.leases import Leases
from millstream.worker.subscriber.batching import Batches
from millstream.worker.subscriber.fetch import GroupMissing, Reading
from millstream.worker.subscriber.isolation import Suspects
from millstream.worker.subscriber.isolation_run import Solitude
from millstream.worker.subscriber.key_ordering import KeyLanes

if TYPE_CHECKING:
    from millstream.worker.registry.protocol import Pause

log = logging.getLogger("millstream.worker")

_READ_AHEAD = 128
#: Milliseconds beyond the polling interval: without an answer, the server counts as unreachable; without even a try,
#: the loop as stuck. The second is longer than any time a try may take.
_SILENT_MS = 10_000
_STUCK_MS = 75_000
_YIELD_EVERY = 64
#: Seconds a cancelled handler has for tidying up.
_LAST_WORD = 3.0
#: Seconds to leave the group in; a server that hangs must not keep a process from ending.
_GOODBYE = 2.0


class FatalError(MillstreamError):
    """The subscriber cannot go on: wrong kind of key, no permission, wrong password."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How one subscriber moves on.

    Attributes:
        handler: its name.
        doing: ``starting``, ``reading``, ``full`` (every lane and the buffer are taken), ``paused`` (or quiet),
            ``unreachable`` (it tries, and the server does not answer), ``stuck``, ``failed`` or ``stopping``.
        idle_ms: milliseconds since the reader last got an answer.
    """

    handler: str
    doing: str
    idle_ms: int

    @property
    def alive(self) -> bool:
        """False when only a new process can help."""
        return self.doing not in ("stuck", "failed")

    @property
    def ready(self) -> bool:
        """True while it works, or would if there were room, or somebody paused it."""
        return self.doing in ("reading", "full", "paused")


class SubscriberLoop:
    """Runs one subscription in this process.

    Args:
        subscription: what to run.
        url: the server.
        line: shared by all subscribers of the app.
        private: for transactions, shared likewise, under ``guard``.
        guard: see ``private``.
        solitude: shared likewise: a suspect runs with nothing beside it in the whole process.
        clock: where time comes from.
        middlewares: of the app, outside the subscription's own.
        siblings: groups of the app's subscribers of the same stream.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        url: str,
        line: Line,
        private: Line,
        guard: asyncio.Lock,
        solitude: Solitude,
        clock: Clock,
        middlewares: Sequence[Middleware] = (),
        siblings: Collection[str] = (),
    ) -> None:
        self.subscription = subscription
        self._siblings = siblings
        consumer, self._own_name = subscription.consumer()
        self.member = Membership(
            stream=subscription.sub.stream,
            group=subscription.group,
            consumer=consumer,
            min_idle=subscription.min_idle,
            dead=subscription.dead,
            dead_maxlen=subscription.sub.maxlen,
            no_ack=subscription.sub.no_ack,
            delete_acked=subscription.on_ack == "delete",
            line=line.near(subscription.sub.stream),
            private=private.near(subscription.sub.stream),
            guard=guard,
            clock=clock,
        )
        self._reader_line = open_line(url, near=subscription.sub.stream, greet=(("CLIENT", "ID"),))
        self._fence = Fence(self.member, failure_log.key(self.member.stream, self.member.group))
        self._leases = Leases(self.member, self._fence)
        self._records = failure_log.FailureLog(self.member, self._fence, subscription.retry)
        single = subscription.ack == "each"
        self._ledger = PendingAcks(self.member, self._fence, self._leases, self._records, single=single)
        self._outcomes = Outcomes(self.member, self._ledger, subscription.retry, asyncio.get_running_loop())
        self._reading = Reading(subscription, self.member, self._ledger, self._records, self._reader_line)
        self._threads = (
            None
            if subscription.is_async
            else ThreadPoolExecutor(subscription.concurrency, thread_name_prefix=subscription.name)
        )
        calls = Calls(subscription, self._outcomes, self._threads, middlewares)
        self._call = calls.one
        self._solitude = solitude
        self._buffer: deque[Held] = deque()
        self._idle_lanes: deque[asyncio.Future[None]] = deque()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._nudges: set[asyncio.Future[None]] = set()
        self._lanes: list[asyncio.Task[None]] = []
        self._helpers: list[asyncio.Task[None]] = []
        self._reader: asyncio.Task[None] | None = None
        if subscription.claims:
            self._ledger.on_due = self._expect
        self._leases.on_left = self._ledger.note_left
        self._keys: KeyLanes | None = None
        self._begin: Callable[[Held], Awaitable[None]] = self._start
        self._batches: Batches | None = None
        if subscription.batch:
            self._batches = self._batched(calls)
            self._begin = self._start_batch
        self._durations: Durations | None = None
        self._lowest = subscription.sub.max_records or subscription.concurrency
        self._highest = subscription.sub.max_records or max(_READ_AHEAD, 2 * subscription.concurrency)
        if subscription.key is not None:
            self._lowest = self._highest  # one busy key must not fill the little there is
            self._keys = self._by_key(subscription.key, calls)
        elif subscription.batch:
            self._lowest = self._highest = subscription.batch_size
        self._target = self._lowest
        self._fed_at = 0
        self._suspects = Suspects(self.member, self._ledger, self._records, solitude, self._begin)
        self._passed_at = self._turned_at = clock.now().mono
        self._unfinished = 0
        self._waiting = True
        self._quiet = False
        self._held_up = False
        #: why this subscriber is to run nothing, if somebody paused it
        self.paused: Pause | None = None

    @property
    def stats(self) -> Stats:
        """The counters."""
        return self.member.stats

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the reader last got an answer; a healthy one is never older than its polling interval."""
        return self.member.clock.now().mono - self._passed_at

    @property
    def buffered(self) -> int:
        """Entries read and not begun."""
        return self._ahead

    @property
    def busy(self) -> bool:
        """True while anything is in hand: not begun, running, or its outcome not stored."""
        return self._ahead > 0 or self.in_hand > 0

    @property
    def in_hand(self) -> int:
        """Entries that are ours: not begun, running, or their outcome not stored."""
        return sum(held.state in LEASED for held in self.member.held.values())

    @property
    def last_error(self) -> dict[str, Any] | None:
        """The last failure of a run: ``at_ms``, ``handler``, ``entry``, ``error``."""
        if self._outcomes.last_failure is None:
            return None
        at_ms, entry, text = self._outcomes.last_failure
        return {"at_ms": at_ms, "handler": self.subscription.name, "entry": entry.decode(), "error": text}

    def durations(self) -> Durations:
        """How long runs took since this was asked for the first time: before, they are not measured."""
        if self._durations is None:
            self._durations = Durations()
            self._call = self._durations.timed(self._call)
            if self._batches is not None:
                self._batches.run = self._durations.timed(self._batches.run)
        return self._durations

    def progress(self) -> Progress:
        """Whether this subscriber moves on, and why not."""
        polling = self.subscription.polling_interval
        ended = [part for part in (self._reader, *self._lanes, *self._helpers) if part is not None and part.done()]
        turned = self.member.clock.now().mono - self._turned_at
        if self._reader is None or self._stopping.is_set():
            doing = "stopping" if self._stopping.is_set() else "starting"
        elif ended:
            doing = "failed"
        elif self._waiting:
            doing = "paused" if self._held_up else "full"
        elif turned > polling + _STUCK_MS:
            doing = "stuck"
        else:
            doing = "reading" if self.idle_ms <= polling + _SILENT_MS else "unreachable"
        return Progress(self.subscription.name, doing, self.idle_ms)

    def quieten(self, quiet: bool) -> None:
        """Read nothing more, and hand back what has not begun; or go on. What runs goes on either way."""
        self._quiet = quiet
        self._gate()

    def pause(self, pause: "Pause | None") -> None:
        """The same for this subscriber alone, for a reason that is kept on the server."""
        self.paused = pause
        self._gate()

    def _gate(self) -> None:
        self._held_up = self._quiet or self.paused is not None
        self._room.set()
        if self._held_up and self._reader is not None:
            if not self.member.no_ack:  # what was read without a trace on the server can only be run
                self._hand_back()
                self._suspects.hand_back()
            self._unblock()

    def undone(self) -> str:
        """What is not settled yet, in words for people; empty when nothing is."""
        states = Counter(held.state.name.lower() for held in self.member.held.values() if held.state is not State.LEFT)
        if not states and not self._ledger.idle:
            return "outcomes are being stored"
        return ", ".join(f"{count} {state}" for state, count in states.items())

    def left(self) -> set[str]:
        """Ids of entries a handler returned from without a word (manual ack)."""
        return {held.id.decode() for held in self.member.held.values() if held.state is State.LEFT}

    async def renew(self) -> None:
        """Renew what is due now, as happens by itself every second or so; for tests that turn the clock by hand."""
        await self._leases.round()

    async def prepare(self) -> None:
        """Find out what the server can do and make the group.

        Raises:
            Disconnected: the server cannot be reached.
            FatalError: the group cannot be made.
        """
        self.member.capabilities = await capabilities.find(self._reader_line, self.member.stream)
        await self._make_group(log_it=False)
        if self.member.no_ack:
            return
        await self._fence.prepare(self._reader_line)
        refusal = self._fence.refusal
        if refusal is not None and self.member.delete_acked and not self.member.capabilities.xackdel:
            raise FatalError(
                f'{self.member.stream}: on_ack="delete" needs XACKDEL or the right to run scripts: {refusal}'
            )

    def start(self) -> None:
        """Begin to work."""
        create = asyncio.create_task
        self._helpers = [create(self._leases.run()), create(self._ledger.run())]
        self._lanes = [create(self._lane()) for _ in range(self.subscription.concurrency)]
        self._lanes.append(create(self._suspects.run()))
        self._reader = create(self._read_on())
        self._solitude.join(self._make_way, self._go_on)

    async def done(self) -> None:
        """Wait until a part of the loop fails, or all have ended because of a stop.

        Raises:
            FatalError: the server makes it impossible to go on.
            Exception: a mistake of ours; better a dead process than one that seems to work.
        """
        assert self._reader is not None
        parts = [self._reader, *self._lanes, *self._helpers]
        ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
        for part in ended:
            if not part.cancelled():
                part.result()

    async def stop(self, grace: float) -> bool:
        """Hand back what has not begun, let the rest finish, store every outcome, leave the group.

        Args:
            grace: seconds for running handlers; then they are cancelled and their entries handed back.

        Returns:
            False when something could not be finished: a thread still running, an outcome the server did not take.
        """
        self._stopping.set()
        self._room.set()
        self._hand_back()
        self._suspects.stop()
        await self._end_reader()
        self._hand_back()  # what came with the last read
        self._suspects.hand_back()
        flushed = asyncio.create_task(self._ledger.drain(min(grace, 5.0)))
        self._wake_lanes(len(self._idle_lanes))
        if self._lanes:
            _, late = await asyncio.wait(self._lanes, timeout=grace)
            await self._cancel(late)
        await flushed
        for held in list(self.member.held.values()):
            if held.state is State.LEFT:
                self._ledger.release(held, charge=True)
            else:
                self._give_back(held)  # its lane was cancelled while it asked whether the entry is still ours
        drained = await self._ledger.drain(5.0)
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._solitude.leave(self._make_way)
        await self._leave()
        await self._reader_line.close()
        return drained and not self._unfinished

    async def _cancel(self, late: Iterable[asyncio.Task[None]]) -> None:
        """Cancel what runs beyond the grace time; a handler that goes on all the same cannot be waited for."""
        for lane in late:
            lane.cancel()
        ended, deaf = await asyncio.wait(self._lanes, timeout=_LAST_WORD)
        await asyncio.gather(*ended, return_exceptions=True)
        if deaf:
            self._unfinished += len(deaf)
            log.error(
                "%s: %d handlers go on %g s after they were cancelled; their entries stay pending",
                self.member.stream,
                len(deaf),
                _LAST_WORD,
            )

    def _go_on(self) -> None:
        """The suspect has run: read again, and look for what was handed back."""
        self._reading.sweep_soon()
        self._room.set()

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read_on(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._waiting = True
            room = await self._wait_for_room()
            self._waiting = False
            self._turned_at = self.member.clock.now().mono
            if not room:
                break
            try:
                found = await self._read(room)
                if self._reader_line.connects > 1 and failures:
                    log.info("%s: reading again", self.member.stream)
                failures = 0
                self._passed_at = self.member.clock.now().mono
                if not found and self.subscription.read == "claimed":
                    await self._sleep(self._reading.wait_ms() / 1000)
            except GroupMissing:
                failures = await self._recover(failures, "the group is gone")
            except Disconnected as error:
                failures = await self._recover(failures, str(error))
            except AccessDenied as error:
                raise FatalError(f"{self.member.stream}: {error}") from error
            except ResponseError as error:
                if not passes(error):
                    raise FatalError(f"{self.member.stream}: {error}") from error
                failures = await self._recover(failures, str(error))

    async def _read(self, room: int) -> list[Held]:
        """Read and put what came where it belongs; a suspect that wants to be alone waits for the end of it."""
        self._solitude.began()
        try:
            found = self._pass_over(await self._reading.read(room))
            if self._records.alone:
                found = self._set_aside(found)
            self._feed(found)
        finally:
            self._solitude.ended()
        return found

    def _pass_over(self, found: list[Held]) -> list[Held]:
        """Acknowledge without a run what was put back for another group of the stream; the rest."""
        stream, mine = self.member.stream, (None, self.member.group)
        others = [held for held in found if isinstance(held, Returned) and meant_for(held.history, stream) not in mine]
        for held in others:
            log.info("%s %s: put back for another group, and not run in %s", stream, held.id.decode(), mine[1])
            held.step(Event.START)
            if self.member.no_ack:
                self.member.drop(held)
            else:
                self._ledger.ack(held)  # also where ack is manual: the handler never sees it
        return [held for held in found if held not in others] if others else found

    def _set_aside(self, found: list[Held]) -> list[Held]:
        """Send suspects to where they run alone; the rest."""
        alone, self._records.alone = {one for one in self._records.alone if one.state is State.BUFFERED}, []
        for held in alone:
            self._suspects.add(held)
        if self._held_up:
            self._suspects.hand_back()
        return [held for held in found if held not in alone]

    async def _recover(self, failures: int, reason: str) -> int:
        """Wait, then find out what server this is and make the group if need be; returns the failures so far."""
        if self._stopping.is_set():
            return failures
        if failures == 0:
            log.warning("%s: %s; trying again", self.member.stream, reason)
            self.stats.reconnects += reason != "the group is gone"
        failures += 1
        if reason != "the group is gone" or failures > 1:
            await self._sleep(self.member.pause(failures))
        self._turned_at = self.member.clock.now().mono
        with contextlib.suppress(Disconnected):  # the next read fails as well and comes back here
            self.member.capabilities = await capabilities.find(self._reader_line, self.member.stream)
            await self._fence.prepare(self._reader_line)
            await self._make_group(log_it=True)
        return failures

    async def _make_group(self, *, log_it: bool) -> None:
        member = self.member
        # the consumer as well, so that whoever looks sees a worker that has not got anything yet
        reply, _, length, groups = await self._reader_line.calls(
            [
                ("XGROUP", "CREATE", member.stream, member.group, self.subscription.sub.start, "MKSTREAM"),
                ("XGROUP", "CREATECONSUMER", member.stream, member.group, member.consumer),
                ("XLEN", member.stream),
                ("XINFO", "GROUPS", member.stream),
            ]
        )
        if not isinstance(reply, ResponseError):
            self.stats.groups_created += 1
            if self.subscription.sub.group is None and not log_it:
                self._warn_of_new_group(length, groups)
            if log_it:
                log.warning(
                    "%s: group %s was gone; made anew from %s",
                    member.stream,
                    member.group,
                    self.subscription.sub.start,
                )
        elif not str(reply).startswith("BUSYGROUP") and not passes(reply):
            raise FatalError(f"cannot make group {member.group} of {member.stream}: {reply}")

    def _warn_of_new_group(self, length: Reply, groups: Reply) -> None:
        """A group was made under the handler's name: perhaps the handler was renamed, and all of it runs once more."""
        if isinstance(length, ResponseError) or isinstance(groups, ResponseError):
            return  # a user who may not ask
        stream, name = self.member.stream, self.subscription.name
        names = [dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode(errors="replace") for row in groups]
        others = [other for other in names if other not in self._siblings and other != self.member.group]
        if not length:
            return
        start = self.subscription.sub.start
        what = f"runs all {length} entries that {stream!r} holds" if start == "0" else f"begins at {start!r}"
        hint = "its other groups: " + ", ".join(map(repr, others[:10])) if others else "it has no other group"
        if others:
            hint += f". If {name} was called {others[0]!r} before, write StreamSub({stream!r}, group={others[0]!r})"
        log.warning(
            "%s: MADE A NEW GROUP named %r, after the handler, since StreamSub names none: it %s; %s. To keep this "
            "group when the handler is renamed, write StreamSub(%r, group=%r)",
            stream,
            self.member.group,
            what,
            hint,
            stream,
            self.member.group,
        )

    async def _wait_for_room(self) -> int:
        """How many entries may be read now; waits for half of the buffer and for suspects; 0 when stopping."""
        while not self._stopping.is_set():
            if self._ahead * 2 <= self._target and not self._held_up and not self._solitude.wanted:
                return self._target - self._ahead
            self._room.clear()
            await self._room.wait()
        return 0

    @property
    def _ahead(self) -> int:
        """Entries in hand that have not begun."""
        return len(self._buffer) + (self._keys.waiting if self._keys is not None else 0)

    def _feed(self, found: list[Held]) -> None:
        if not found:
            return
        if self._solitude.wanted or (self._held_up and not self.member.no_ack):
            for held in found:
                self._give_back(held)
            return
        now = self.member.clock.now().mono
        if not self._buffer and self._fed_at:
            waited = now - self._fed_at
            self._target = resize(self._target, self._lowest, self._highest, waited_ms=waited)
        self._fed_at = now
        self._buffer.extend(found)
        self._wake_lanes(len(found))

    async def _end_reader(self) -> None:
        """End a blocked read by CLIENT UNBLOCK, so that nothing is delivered to a connection that is being closed."""
        if self._reader is None:
            return
        while not self._reader.done():
            reachable = False
            with contextlib.suppress(Disconnected, TimeoutError):
                await asyncio.wait_for(self._unblock(), 1.0)
                reachable = True
            await asyncio.wait([self._reader], timeout=0.02)
            if not reachable and not self._reader.done():
                self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def _unblock(self) -> Awaitable[list[Reply]]:
        """End a read that waits, as if its time were up; where the server refuses, it waits that time out."""
        greeting = self._reader_line.greeting
        number = greeting[0] if greeting and isinstance(greeting[0], int) else 0
        return self.member.line.calls((("CLIENT", "UNBLOCK", number),))

    def _expect(self, due: int) -> None:
        """A retry of ours is due then: do not sit in a read that ends later."""
        wait = (due - self.member.clock.now().mono) / 1000
        asyncio.get_running_loop().call_later(max(wait, 0), self._nudge, due)

    def _nudge(self, due: int) -> None:
        until = self._reading.blocked_until
        if until > due:
            self._nudges.add(nudge := asyncio.ensure_future(self._end_read(until)))
            nudge.add_done_callback(self._nudges.discard)

    async def _end_read(self, until: int) -> None:
        """End the read that waits until then; a word that came before it is repeated."""
        with contextlib.suppress(Disconnected):
            while self._reading.blocked_until == until:
                (reply,) = await self._unblock()
                if reply != 0:  # ended, or the server does not let us
                    return
                await asyncio.sleep(0.002)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not through a stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # -- running ----------------------------------------------------------------------------------------------------

    async def _lane(self) -> None:
        """Run one entry after the other."""
        buffer = self._buffer
        run = self._run if self._keys is None else self._keys.run
        count = 0
        while True:
            while not buffer:
                if self._stopping.is_set():
                    return
                turn = asyncio.get_running_loop().create_future()
                self._idle_lanes.append(turn)
                await turn
            held = buffer.popleft()
            if len(buffer) * 2 <= self._target:
                self._room.set()
            await run(held)
            count += 1
            if count % _YIELD_EVERY == 0:
                await asyncio.sleep(0)  # handlers that never wait must not keep the others from running

    def _wake_lanes(self, count: int) -> None:
        while count > 0 and self._idle_lanes:
            turn = self._idle_lanes.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    async def _run(self, held: Held) -> None:
        if held.state is not State.BUFFERED:
            return
        if self.member.stale(held) and not await self._still_ours(held):
            return
        if held.deliveries == 1 and not self._solitude.wanted:
            await self._begin(held)
        else:
            await self._run_again(held)

    async def _run_again(self, held: Held) -> None:
        """Run, or do not, what was delivered before, or what comes while a suspect wants to be alone."""
        course = self._records.course(held)
        if course is Course.DEAD:
            limit = self.subscription.retry.max_deliveries
            self._outcomes.failed(
                held,
                DeliveryLimitError(f"delivered {held.deliveries} times without an outcome, {limit} tries are allowed"),
            )
        elif course is Course.ALONE:
            # claimed by ourselves while it waited: charged already
            try:
                await self._records.uncharge(held)
            except Disconnected:
                self.member.lose(held)  # it stays pending, and is claimed when its time is up
            self._suspects.add(held)
        elif self._solitude.wanted:
            self._give_back(held)
        else:
            await self._begin(held)

    def _make_way(self) -> None:
        """A suspect wants to be alone: hand back what waits, and end the read that waits for more."""
        self._hand_back()
        self._room.set()
        self._unblock()  # what it may still bring is handed back as it comes

    async def _start(self, held: Held) -> None:
        member = self.member
        if held.deliveries > 1:
            member.stats.suspects += 1
        held.step(Event.START)
        failpoints.reach("before_handler")
        self._solitude.began()
        try:
            await self._call(held)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._interrupted(held)
                raise
            if self._unsettled(held):  # the handler cancelled something of its own and let it out
                self._outcomes.failed(held, error)
        except (Exception, SystemExit) as error:
            # SystemExit too: an entry must not end the process, with exit code 0 at that and all it has in hand
            if self._unsettled(held):
                self._outcomes.failed(held, error)
            elif not isinstance(error, Nack | Reject):
                log.warning(
                    "%s: a handler raised after it had settled its entry",
                    member.stream,
                    exc_info=loggable(error),
                    extra=member.about(held),
                )
        else:
            failpoints.reach("after_handler")
            member.stats.handled += 1
            self._returned(held)
            if self.subscription.ack == "each" and not member.no_ack:
                await self._ledger.stored(held)
        finally:
            self._solitude.ended()

    def _batched(self, calls: Calls) -> Batches:
        return Batches(
            member=self.member,
            calls=calls,
            outcomes=self._outcomes,
            solitude=self._solitude,
            more=self._take_fresh,
            returned=self._returned,
            interrupted=self._interrupted,
            size=self.subscription.batch_size,
        )

    async def _start_batch(self, held: Held) -> None:
        assert self._batches is not None
        batch = await self._batches.start(held)
        if self.subscription.ack == "each" and not self.member.no_ack:
            for one in batch:
                if one.state is not State.LEFT:
                    await self._ledger.stored(one)

    def _take_fresh(self, limit: int) -> list[Held]:
        """The first of the buffer, as far as they were never delivered before and surely are ours."""
        taken: list[Held] = []
        buffer = self._buffer
        while buffer and len(taken) < limit and buffer[0].deliveries == 1 and not self.member.stale(buffer[0]):
            held = buffer.popleft()
            if held.state is State.BUFFERED:
                taken.append(held)
        self._room.set()
        return taken

    def _by_key(self, key: str | Callable[[Message], Hashable], calls: Calls) -> KeyLanes:
        return KeyLanes(key, message=calls.message, run=self._run, unfit=self._outcomes.failed, moved=self._room.set)

    def _returned(self, held: Held) -> None:
        if self.subscription.ack == "manual":
            if held.state is State.RUNNING:
                held.step(Event.LEAVE)
        elif self._unsettled(held):  # the handler did not settle it by hand
            if self.member.no_ack:
                self.member.drop(held)
            else:
                self._ledger.ack(held)

    def _interrupted(self, held: Held) -> None:
        """The grace time is over: what can be cancelled is handed back uncharged; a thread cannot, its entry stays."""
        if not self._unsettled(held):
            return
        if self._threads is None:
            self._ledger.release(held, charge=False)
            self.stats.released += 1
        else:
            self._unfinished += 1
            log.error(
                "%s %s: the handler did not end in time",
                self.member.stream,
                held.id.decode(),
                extra=self.member.about(held),
            )

    def _unsettled(self, held: Held) -> bool:
        return held.state in (State.RUNNING, State.LOST)

    async def _still_ours(self, held: Held) -> bool:
        with contextlib.suppress(Disconnected):
            await self._leases.renew([held])
        if held.state is State.BUFFERED and self.member.stale(held):
            # the server could not be asked; the entry stays pending and will be claimed
            self.member.lose(held)
        return held.state is State.BUFFERED

    # -- leaving ----------------------------------------------------------------------------------------------------

    def _hand_back(self) -> None:
        """Give back what has not begun, uncharged."""
        while self._buffer:
            self._give_back(self._buffer.popleft())
        if self._keys is not None:
            for held in self._keys.take_all():
                self._give_back(held)

    def _give_back(self, held: Held) -> None:
        if held.state is not State.BUFFERED:
            return
        if self.member.no_ack:
            self.member.lose(held)  # read without a trace on the server: that is what no_ack means
        else:
            self._ledger.release(held, charge=False)
            self.stats.released += 1

    async def _leave(self) -> None:
        """Remove our consumer, if its name was made for this process and it has nothing pending."""
        member = self.member
        if not self._own_name or self._unfinished or not self._reader_line.connects:
            return  # where nobody ever got through there is no consumer to remove
        failpoints.reach("before_forget")
        try:
            async with asyncio.timeout(_GOODBYE):
                rows = await member.line.call("XPENDING", member.stream, member.group, "-", "+", 1, member.consumer)
                if not rows:
                    await member.line.call("XGROUP", "DELCONSUMER", member.stream, member.group, member.consumer)
        except (Disconnected, ResponseError, TimeoutError) as error:
            log.info("%s: consumer %s was not removed: %s", member.stream, member.consumer, error)


def totals(loops: Iterable[SubscriberLoop]) -> dict[str, dict[str, int]]:
    """The counters of several subscribers by name."""
    return {loop.subscription.name: loop.stats.as_dict() for loop in loops}
