"""Poison-message isolation: an entry that may have killed a process runs with no other entry beside it.

When a process dies, every entry in it had been delivered once more, and the cause is unknown.
:func:`millstream.worker.model.retry.run_mode` decides which of them must run in isolation. Such an entry waits in
:class:`IsolatedRuns`. When its turn comes, :class:`IsolationGate` stops everything else in the process: entries that
have not begun are released uncharged, running ones are awaited, and nothing is read. If the process dies now, this
entry is the cause; if it lives, the entry is cleared.

While an entry waits here its delivery is taken back on the server (:meth:`FailureLog.look_up`). So a crash by another
entry is not charged to it. It is charged again, and that is confirmed, right before its own run.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.parts import Common, SubscriberPart

log = logging.getLogger("millstream.worker")

#: Seconds for which an entry waits until other runs and a current read have ended; then it runs beside them.
PATIENCE = 5.0

#: Seconds of successive isolated runs before other entries get an equal turn, so that new ones do not starve.
SLICE = 0.1

#: Seconds for storing outcomes before and after an isolated run.
_STORED_WITHIN = 1.0

#: Reports the start and the end of a run alone, for which the entry is charged if the process ends.
announce: Callable[[bool], None] | None = None


class IsolationGate:
    """A gate that all subscribers of an app share: open, or closed except for one isolated entry."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._changed = asyncio.Event()
        self._running = 0
        self._members: dict[Callable[[], None], Callable[[], None]] = {}
        #: True while an entry runs in isolation or waits for that: no other entry may start or stay
        self.wanted = False

    def join(self, make_way: Callable[[], None], go_on: Callable[[], None]) -> None:
        """Add a subscriber, by its functions that stop and continue its reads."""
        self._members[make_way] = go_on

    def leave(self, make_way: Callable[[], None]) -> None:
        """Remove a subscriber."""
        self._members.pop(make_way, None)

    async def opened(self) -> None:
        """Wait until the gate is open."""
        await self._open.wait()

    def began(self) -> None:
        """Note that a run, or a read, begins."""
        self._running += 1

    def ended(self) -> None:
        """Note that a run, or a read, has ended."""
        self._running -= 1
        if self.wanted:
            self._changed.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Close the gate for this block; yield False if something did not end in time. Not while ``wanted``."""
        assert not self.wanted
        self._open.clear()
        self.wanted = True
        try:
            self._make_way()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while self._running:
                        await self._change()
                        self._make_way()
            yield not self._running
        finally:
            self.wanted = False
            self._open.set()
            for go_on in self._members.values():
                go_on()

    def _make_way(self) -> None:
        for make_way in list(self._members):
            make_way()

    async def _change(self) -> None:
        """Wait until something has ended, or a moment: a read may begin to block just after it was unblocked."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await self._changed.wait()


class IsolatedRuns(SubscriberPart):
    """The entries of one subscriber that run in isolation: they wait here, and run one by one."""

    def __init__(
        self,
        common: Common,
        gate: IsolationGate,
        start: Callable[[Held], Coroutine[Any, Any, None]],
        received: Callable[[list[Held], int], None] | None = None,
    ) -> None:
        super().__init__(common)
        self.gate = gate
        self._start = start
        self._received = received
        self._queue: deque[tuple[Held, int]] = deque()
        self._changed = asyncio.Event()
        self._stopping = False
        #: Checks the limits for an entry whose delivery is taken back; None without limits
        self.admit: Callable[[Held], Coroutine[Any, Any, bool]] | None = None

    @property
    def waiting(self) -> tuple[Held, ...]:
        """Entries that have not begun; their deliveries are taken back."""
        return tuple(held for held, _ in list(self._queue))

    def add(self, held: Held, began_ns: int = 0) -> None:
        """Queue an entry to run in isolation."""
        self._queue.append((held, began_ns))
        self._changed.set()

    def stop(self) -> None:
        """Begin no more runs, and release the waiting entries."""
        self._stopping = True
        self._changed.set()
        self.hand_back()

    def hand_back(self) -> None:
        """Release the waiting entries, uncharged."""
        while self._queue:
            held, _ = self._queue.popleft()
            if held.state is State.BUFFERED:
                self._acks.give_back(held)
                self._member.stats.released += 1

    async def run(self) -> None:
        """Run entries as they come, until the stop."""
        while not self._stopping:
            if not self._queue:
                self._changed.clear()
                await self._changed.wait()
            elif self.gate.wanted:
                await self.gate.opened()
            else:
                await self._session()
                if self._queue:
                    with contextlib.suppress(TimeoutError):
                        self._changed.clear()
                        await asyncio.wait_for(self._changed.wait(), SLICE)

    async def _session(self) -> None:
        """Close the gate and run for one slice of time."""
        loop = asyncio.get_running_loop()
        async with self.gate.alone() as alone:
            end = loop.time() + SLICE
            await self._acks.drain(_STORED_WITHIN)
            while self._queue and not self._stopping:
                held, began_ns = self._queue.popleft()
                try:
                    await self._run(held, began_ns, alone=alone)
                except asyncio.CancelledError:
                    if held.state is State.BUFFERED:
                        self._acks.give_back(held)
                    raise
                if loop.time() > end:
                    break

    async def _run(self, held: Held, began_ns: int, *, alone: bool) -> None:
        if held.state is not State.BUFFERED or (self.admit is not None and not await self.admit(held)):
            return
        try:
            ours = await self._failures.charge(held, alone=alone)
        except Disconnected:
            ours = False
        if not ours:
            self._member.lose(held)  # or the server did not reply: it stays pending, and is claimed once idle
            return
        log.warning(
            "%s %s: delivered %d times, and a process crashed while it ran; running it alone",
            self._member.stream,
            held.id.decode(),
            held.deliveries,
            extra=self._member.about(held),
        )
        report = announce if self._subscription.retry.limit else None
        if report is not None:
            report(True)
        if self._received is not None and began_ns:
            self._received([held], began_ns)
        await self._apart.run(self._start(held))
        if report is not None:
            report(False)
        await self._acks.drain(_STORED_WITHIN)
