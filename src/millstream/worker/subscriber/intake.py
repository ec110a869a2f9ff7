"""The intake of a subscriber: the task that reads new and stale entries into the buffer while there is room for them.

It waits while the buffer is full, while the subscriber is paused, and while an entry runs in isolation. It handles the
server's errors: it tries the read again, with growing pauses, and creates a missing group again. Only a server that
will never allow the read ends the subscriber.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import ResponseError

from millstream.client.dead_letter.letter import meant_for
from millstream.client.line import AccessDenied, Disconnected, Reply, passes
from millstream.worker.limits.limiter import Limiter
from millstream.worker.model.errors import FatalError, LeaseLost, refused_read
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.settlement.consumer import Held, Trailed
from millstream.worker.subscriber.buffer import Buffer
from millstream.worker.subscriber.fetch import Fetcher, GroupMissing
from millstream.worker.subscriber.group_setup import GroupSetup
from millstream.worker.subscriber.isolation import IsolatedRuns
from millstream.worker.subscriber.parts import Common, SubscriberPart
from millstream.worker.tasks import set_within

log = logging.getLogger("millstream.worker")

#: Milliseconds beyond the polling interval. Without a reply the server then counts as unreachable, without even an
#: attempt the intake counts as stuck. The second is longer than any attempt.
_SILENT_MS = 10_000
_STUCK_MS = 75_000

_GONE = "the group is gone"

#: Permits of limits are requested for this multiple of the entries expected to start soon: a request costs more.
_PERMITS_AHEAD = 2


class Intake(SubscriberPart):
    """The reader of one subscriber."""

    def __init__(
        self,
        common: Common,
        group: GroupSetup,
        fetcher: Fetcher,
        buffer: Buffer,
        isolated: IsolatedRuns,
        received: Callable[[list[Held], int], None] | None = None,
    ) -> None:
        super().__init__(common)
        self._line = fetcher.line
        self._group = group
        self._fetcher = fetcher
        self._buffer = buffer
        self._isolated = isolated
        self._gate = isolated.gate  # closed to reads while an entry runs in isolation
        self.limiter: Limiter | None = None  # Grants permits before each read
        self._received = received  # hook of the middlewares: entries of a read, and its start in nanoseconds
        self._nudges: set[asyncio.Future[None]] = set()  # keeps them, since the loop holds tasks only weakly
        self._waiting = True  # the reader waits for room
        self._answered_at = self._turned_at = self._member.clock.now().mono
        self.task: asyncio.Task[None] | None = None  # The reader; None before the start
        self.held_up = False  # True while nothing is read because the subscriber or its process is paused

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def idle_ms(self) -> int:
        """Milliseconds since the server last replied to a read; at most the polling interval if all is well."""
        return self._member.clock.now().mono - self._answered_at

    @property
    def doing(self) -> str:
        """The activity: ``full``, ``paused``, ``stuck``, ``reading`` or ``unreachable``."""
        polling = self._subscription.polling_interval
        if self._waiting:
            if self.held_up:  # a pause also waits for room, so check it first
                return "paused"
            # Runs may wait for the same server, and nothing is read meanwhile
            return "full" if self._member.line.silent * 1000 <= _SILENT_MS else "unreachable"
        if self._member.clock.now().mono - self._turned_at > polling + _STUCK_MS:
            return "stuck"
        return "reading" if self.idle_ms <= polling + _SILENT_MS else "unreachable"

    # -- start, pause, end ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the reader's task."""
        self.task = asyncio.create_task(self._run())

    def hold_up(self, held_up: bool) -> None:
        """Stop reading, and release entries that have not begun; with False, continue."""
        self.held_up = held_up
        self._buffer.room.set()  # wakes the reader, which also waits there while it is held up
        if held_up and self.task is not None:
            self._hand_back()
            self._isolated.hand_back()
            self._unblock()

    def make_way(self) -> None:
        """Release waiting entries and end a blocking read, since an entry is about to run in isolation."""
        self._hand_back()
        self._buffer.room.set()
        self._unblock()  # entries that it may still return are released, or wait

    def _hand_back(self) -> None:
        """Release waiting entries; without a record on the server they can only be run, so they stay."""
        if not self._member.no_ack:
            self._buffer.hand_back()

    def go_on(self) -> None:
        """Read again after an isolated run, and look for the entries released before it."""
        self._fetcher.sweep_soon()
        self._buffer.room.set()

    def expect(self, due: int) -> None:
        """End a blocking read when a retry of this process is due (monotonic ms)."""
        # Measured by the member's clock, which may be a test's; only the timer is the event loop's
        wait = (due - self._member.clock.now().mono) / 1000
        asyncio.get_running_loop().call_later(max(wait, 0), self._nudge, due)

    async def end(self) -> None:
        """End a blocking read by CLIENT UNBLOCK, so that nothing is delivered to a connection that is being closed."""
        if self.task is None:
            return
        # One CLIENT UNBLOCK is not enough: it has no effect if it arrives before the read
        while not self.task.done():
            reachable = False
            with contextlib.suppress(Disconnected, TimeoutError):
                await asyncio.wait_for(self._unblock(), 1.0)
                reachable = True
            await asyncio.wait([self.task], timeout=0.02)
            # A closed connection cannot deliver anything, so this loses nothing
            if not reachable and not self.task.done():
                self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def _nudge(self, due: int) -> None:
        self._buffer.room.set()
        until = self._fetcher.blocked_until
        # A read that ends before the retry is due needs no help, since the next one considers the retry
        if until > due:
            self._nudges.add(nudge := asyncio.ensure_future(self._end_read(until)))
            nudge.add_done_callback(self._nudges.discard)

    async def _end_read(self, until: int) -> None:
        """End the read that blocks until then; repeat a command that arrives before the read."""
        with contextlib.suppress(Disconnected):
            while self._fetcher.blocked_until == until:
                (reply,) = await self._unblock()
                if reply != 0:  # the read has ended, or the server refuses the command
                    return
                await asyncio.sleep(0.002)  # the command came before the read: repeat it, but do not flood the server

    def _unblock(self) -> Awaitable[list[Reply]]:
        """End a blocking read, as if its time were up; if the server refuses, the read ends by its timeout."""
        # The greeting contains the connection's id, by which another connection ends its read
        greeting = self._line.greeting
        number = greeting[0] if greeting and isinstance(greeting[0], int) else 0
        return self._member.line.calls((("CLIENT", "UNBLOCK", number),))

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while not self._buffer.closed.is_set():
            self._waiting = True
            room = await self._wait_for_room()
            # From here until the next turn the loop counts as busy: `doing` measures it from `_turned_at`
            self._waiting = False
            self._turned_at = self._member.clock.now().mono
            if room is None:
                break
            try:
                found = await self._read(room)
                if self._line.connects > 1 and failures:  # the first connect is not a reconnect
                    log.info("%s: reading again", self._member.stream)
                failures = 0
                # Also after an empty reply: only a silent server is unreachable
                self._answered_at = self._member.clock.now().mono
                # Unlike a read of new entries, a claim does not block: without this pause the loop would spin
                if not found and not self._fetcher.blocks:
                    await self._sleep(self._fetcher.wait_ms() / 1000)
            except LeaseLost:
                break
            except GroupMissing:
                failures = await self._recover(failures, _GONE)
            except Disconnected as error:
                failures = await self._recover(failures, str(error))
            # Waiting does not help with a wrong password or a missing right
            except AccessDenied as error:
                raise FatalError(f"{self._member.stream}: {error}") from error
            except ResponseError as error:
                if not passes(error):
                    raise refused_read(self._member.stream, self._member.group, error) from error
                failures = await self._recover(failures, str(error))

    async def _wait_for_room(self) -> int | None:
        """Return the number of entries to read now, after any pause and any isolated runs; None when stopping.

        It is 0 if the buffer is full of entries that wait for a failed entry of their key: then only that one is
        claimed.
        """
        buffer = self._buffer
        while not buffer.closed.is_set():
            if not self.held_up and not self._gate.wanted:
                if free := buffer.free:
                    if self.limiter is None:
                        return free
                    # Entries that wait for a failed one use up the lanes for which more could be read
                    if self._fetcher.must_look and buffer.ahead >= buffer.places.free:
                        return 0
                    if permitted := await self._permitted(self.limiter, free):
                        return permitted
                    continue
                if self._fetcher.must_look:
                    return 0
            # Cleared before the wait, without an await in between, so that no wake-up is missed
            buffer.room.clear()
            await set_within(buffer.room, self._fetcher.look_in)
        return None

    async def _permitted(self, limiter: Limiter, free: int) -> int:
        """Return the number of entries that limits allow to read; 0 after a wait for them.

        It is at most the number of idle lanes, or of entries that begin soon. A permit is for a run that begins at
        once.
        """
        buffer, soon = self._buffer, 0
        # The lane that freed a place may have taken it again, but it leaves the next one to this read
        idle = max(buffer.places.free, int(buffer.called or 0))
        buffer.called = None
        buffer.room.clear()
        if not self._subscription.batch:
            soon = limiter.soon(buffer.places.taken)
            idle = max(idle, soon) - buffer.ahead
        # A batch runs in one lane, so one idle lane suffices for a full batch
        room = free if self._subscription.batch and idle > 0 else min(free, idle)
        limiter.short = room <= 0
        number, wait = await limiter.before_read(room, _PERMITS_AHEAD * soon) if room > 0 else (0, 1.0)
        if not number:
            if room <= 0 and buffer.places.free < 1:
                buffer.called = False
                buffer.places.wait()
            await set_within(buffer.room, wait)
        # A pause may have begun during the request's round trip
        elif self.held_up or self._gate.wanted or buffer.closed.is_set():
            await limiter.unread()
            number = 0
        return number

    async def _read(self, room: int) -> list[Held]:
        """Read entries and put them into the buffer, or into the queue of isolated runs; return them."""
        # An isolated run waits until this read has ended, since its entries could be held at the same time
        self._gate.began()
        try:
            began_ns = time.time_ns() if self._received is not None else 0
            returns = self._fetcher.returns
            found = self._pass_over(await self._fetcher.read(room))
            # Before the hook and the buffer get them: a lane must not start an entry that must run alone
            if self._failures.alone:
                found = self._isolate(found, began_ns)
            # Without entries that killed a process alone, since the hook may have been the cause
            shown = [held for held in found if not self._failures.died_alone(held)] if self._received else []
            if shown and self._received is not None:
                self._received(shown, began_ns)
            if self.limiter is not None:
                await self.limiter.after_read(found)
            self._store(found, overtaking=returns != self._fetcher.returns)
        finally:
            self._gate.ended()
        return found

    def _pass_over(self, found: list[Held]) -> list[Held]:
        """Acknowledge, without a run, dead letters put back for another group of the stream; return the others."""
        stream, mine = self._member.stream, (None, self._member.group)
        others = [held for held in found if isinstance(held, Trailed) and meant_for(held.history, stream) not in mine]
        for held in others:
            log.info("%s %s: put back for another group; not run in %s", stream, held.id.decode(), mine[1])
            held.step(Event.START)
            if self._member.no_ack:
                self._member.drop(held)
            else:
                self._acks.ack(held)  # also with manual ack, since the handler never gets it
        return [held for held in found if held not in others] if others else found

    def _isolate(self, found: list[Held], began_ns: int) -> list[Held]:
        """Queue entries that must run alone for isolation; return the other entries."""
        # Some were lost meanwhile: the fence refused to take their delivery back
        alone, self._failures.alone = {one for one in self._failures.alone if one.state is State.BUFFERED}, []
        for held in alone:
            if self._buffer.by_key is not None:
                self._buffer.by_key.expect(held)
            self._isolated.add(held, began_ns)
        if self.held_up:
            self._isolated.hand_back()
        return [held for held in found if held not in alone]

    def _store(self, found: list[Held], *, overtaking: bool) -> None:
        """Put the entries of a read into the buffer, or release them if they may not run now and can be released."""
        if not found:
            return
        # The read was running when the pause, the isolated run or the stop was requested. Earlier entries with its keys
        # may already be released.
        late = self.held_up or self._gate.wanted or self._buffer.closed.is_set()
        if (late or overtaking) and not self._member.no_ack:
            for held in found:
                self._buffer.give_back(held)
        else:
            self._buffer.put(found)

    async def _recover(self, failures: int, reason: str) -> int:
        """Wait, then find out the server's capabilities and create a missing group; return the failures so far."""
        if self._buffer.closed.is_set():
            return failures
        if failures == 0:
            log.warning("%s: %s; trying again", self._member.stream, reason)
            # A missing group is not a lost connection
            self._member.stats.reconnects += reason != _GONE
        failures += 1
        # A missing group is created again at once; wait only if that fails
        if reason != _GONE or failures > 1:
            await self._sleep(self._member.pause(failures))
        self._turned_at = self._member.clock.now().mono
        with contextlib.suppress(Disconnected):  # the next read also fails, and comes back here
            await self._group.restore()
        return failures

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the time is over or the subscriber stops."""
        await set_within(self._buffer.closed, seconds)
