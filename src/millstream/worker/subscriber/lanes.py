"""The lanes of a subscriber: as many tasks as handlers may run at once; each runs one entry after the other.

Right before a run, a lane checks that the entry is still owned, and whether it was delivered before. If it was,
:func:`millstream.worker.model.retry.run_mode` decides: run like any other, in isolation, or not at all.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from millstream.client.line import Disconnected
from millstream.texts import plural
from millstream.worker.handlers.outcomes import DeliveryLimitError
from millstream.worker.model.lifecycle import State
from millstream.worker.model.retry import RunMode
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.buffer import Buffer
from millstream.worker.subscriber.isolation import IsolatedRuns
from millstream.worker.subscriber.parts import Common, SubscriberPart

log = logging.getLogger("millstream.worker")

#: Number of successive runs after which a lane yields, so that handlers that never wait do not block other tasks.
_YIELD_EVERY = 128
#: Seconds after which a lane gives its place to another waiting loop. A change for each entry would cost more than a
#: quick handler.
_TURN = 0.001
#: Seconds for the clean-up of a cancelled handler.
_AFTER_CANCEL = 3.0
#: Largest number of cancelled entries in the log line.
_NAMED = 5


class Runs(Protocol):
    """Interface of runs: for one entry (SingleRuns), or for a batch that begins with it (BatchRuns)."""

    call: Any

    async def start(self, held: Held) -> None:
        """Run an entry to its end; then it is settled, or left to the handler."""


class Lanes(SubscriberPart):
    """The tasks that run the entries of the buffer."""

    def __init__(
        self, common: Common, buffer: Buffer, start: Callable[[Held], Coroutine[Any, Any, None]], isolated: IsolatedRuns
    ) -> None:
        super().__init__(common)
        self._buffer = buffer
        self._start = start
        self._isolated = isolated
        self._gate = isolated.gate
        #: Lanes, and the task that runs isolated entries
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the tasks."""
        work = [self._lane() for _ in range(self._subscription.concurrency)]
        self.tasks = [asyncio.create_task(lane) for lane in (*work, self._isolated.run())]

    async def end(self, grace: float) -> int:
        """Let runs finish; return the number of handlers that go on although they were cancelled."""
        self._buffer.release_lanes()
        if not self.tasks:
            return 0
        _, late = await asyncio.wait(self.tasks, timeout=grace)
        self._name_late(grace)
        try:
            return await self._cancel(late)
        finally:
            self._buffer.places.decline()

    def _name_late(self, grace: float) -> None:
        """Log the entries whose runs outlast the grace time."""
        late = [held.id.decode() for held in self._member.held.values() if held.state is State.RUNNING]
        if late:
            log.warning(
                "%s: cancelled at the end of the grace time of %g s: %s%s of %s",
                self._subscription.name,
                grace,
                ", ".join(late[:_NAMED]),
                f" and {len(late) - _NAMED} more entries" if len(late) > _NAMED else "",
                self._member.stream,
            )

    async def _cancel(self, late: Iterable[asyncio.Task[None]]) -> int:
        """Cancel runs that outlast the grace time; return the number of handlers that go on nevertheless."""
        for lane in late:
            lane.cancel()  # reaches the handler at its next await
        ended, stubborn = await asyncio.wait(self.tasks, timeout=_AFTER_CANCEL)
        await asyncio.gather(*ended, return_exceptions=True)
        if stubborn:
            log.error(
                "%s: %d handlers go on %g s after they were cancelled; their entries stay pending",
                self._member.stream,
                len(stubborn),
                _AFTER_CANCEL,
            )
        return len(stubborn)

    async def _lane(self) -> None:
        """Run entries until the buffer is closed; start a new task after a handler has changed the task's context."""
        while not await self._apart.run(self._work()):
            pass

    async def _work(self) -> bool:
        """Run one entry after the other; return True at the end, False once a handler has set a context variable."""
        task, buffer = asyncio.current_task(), self._buffer
        # Looked up only once, since the loop below runs for each entry
        assert task is not None
        entries, places = buffer.entries, buffer.places
        begin = self.begin if buffer.by_key is None else buffer.by_key.run
        waiting, is_changed, each = places.waiting, self._apart.is_changed, self._subscription.ack == "each"
        cancelling = task.cancelling
        count = 0
        while True:
            while not entries or not places.take():
                if not entries and buffer.closed.is_set():
                    places.decline()
                    return True
                await buffer.arrival()
                count = 0  # the wait let other tasks run
            until = time.monotonic() + _TURN
            try:
                while True:
                    await begin(buffer.take())
                    count += 1
                    if count % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
                    # A cancelled lane continues with the next entry, but only after its cancellation was undone
                    if cancelling():
                        await self._apart.calm()
                    # A context variable set by a handler would be visible in the next run, but a new task has a fresh
                    # context
                    if is_changed():
                        return False
                    # With ``ack="each"`` an entry that has run keeps its place until it is acknowledged
                    if not entries or (each and places.free < 0) or (waiting and time.monotonic() >= until):
                        break
            finally:
                places.give()

    def begin(self, held: Held) -> Coroutine[Any, Any, None]:
        """Return the run of one entry, by a shortcut for nearly all entries."""
        return self._start(held) if self._fresh(held) else self.run(held)

    def _fresh(self, held: Held) -> bool:
        """Report whether an entry is new, owned for certain, and no entry is about to run in isolation."""
        return (
            held.deliveries == 1
            and held.state is State.BUFFERED
            and not self._gate.wanted
            and not self._member.stale(held)
        )

    async def run(self, held: Held) -> None:
        """Run one entry, unless it is no longer owned or must not run now."""
        # It was released or lost while it was in the buffer
        if held.state is not State.BUFFERED:
            return
        # Before the run, since another consumer may be running the entry by now
        if self._member.stale(held) and not await self._still_ours(held):
            return
        if held.deliveries == 1 and not self._gate.wanted:
            await self._start(held)
        else:
            await self._run_again(held)

    async def _run_again(self, held: Held) -> None:
        """Decide about an entry that was delivered before, or that comes while another is about to run in isolation."""
        mode = self._failures.run_mode(held)
        if mode is RunMode.DEAD:
            limit = self._subscription.retry.limit
            # In most cases the limit decides; an entry that ends a process even when it runs alone gets fewer attempts
            reason = f"{limit} tries are allowed"
            if self._failures.died_alone(held):
                reason = "the last one ended a process that ran it alone"
            if (most := self._subscription.hard_limit) is not None:
                reason += f" (hard_limit={most:g} s ends the process of a longer run)"
            self._outcomes.failed(
                held, DeliveryLimitError(f"delivered {plural(held.deliveries, 'time')} without an outcome: {reason}")
            )
        elif mode is RunMode.ALONE:
            # This process claimed it again while it waited, which charged it
            try:
                await self._failures.uncharge(held)
            except Disconnected:
                self._member.lose(held)  # it stays pending, and is claimed after its idle time
            self._isolated.add(held)
        elif self._gate.wanted and not self._member.no_ack:
            self._buffer.give_back(held)  # uncharged, since it never began
        else:
            while self._gate.wanted:  # without a record on the server it can only wait
                await self._gate.opened()
            await self._start(held)

    async def _still_ours(self, held: Held) -> bool:
        """Renew the lease of an entry that may have waited too long; return False if it is lost or unknown."""
        with contextlib.suppress(Disconnected):
            await self._leases.renew([held])
        if held.state is State.BUFFERED and self._member.stale(held):
            # The server was unreachable; the entry stays pending and will be claimed
            self._member.lose(held)
        return held.state is State.BUFFERED
