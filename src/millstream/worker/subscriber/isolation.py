"""Entries that run alone: they wait here, uncharged, and are run one by one with nothing beside them.

While a suspect waits, its delivery is taken back on the server (:meth:`FailureLog.look_up`), so that a crash of
whatever runs meanwhile is not charged to it. It is charged again, and that is confirmed, right before its own run.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.failure_log import FailureLog
from millstream.worker.subscriber.isolation_run import Solitude

log = logging.getLogger("millstream.worker")

#: Seconds suspects run in a row before others get a turn as long, so that many of them do not starve new entries.
SLICE = 0.1


class Suspects:
    """The suspects of one subscriber.

    Args:
        member: whose entries.
        ledger: drained before and after each run.
        records: where charges and marks are stored.
        solitude: the gate.
        start: runs an entry.
    """

    def __init__(
        self,
        member: Membership,
        ledger: PendingAcks,
        records: FailureLog,
        solitude: Solitude,
        start: Callable[[Held], Awaitable[None]],
    ) -> None:
        self._member = member
        self._ledger = ledger
        self._records = records
        self._solitude = solitude
        self._start = start
        self._queue: deque[Held] = deque()
        self._changed = asyncio.Event()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, held: Held) -> None:
        """Run it alone when its turn comes."""
        self._queue.append(held)
        self._changed.set()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping = True
        self._changed.set()
        self.hand_back()

    def hand_back(self) -> None:
        """What waits is anybody's, uncharged as it is."""
        while self._queue:
            held = self._queue.popleft()
            if held.state is State.BUFFERED:
                self._ledger.give_back(held)
                self._member.stats.released += 1

    async def run(self) -> None:
        """Run suspects as they come, until the stop."""
        while not self._stopping:
            if not self._queue:
                self._changed.clear()
                await self._changed.wait()
            elif self._solitude.wanted:
                await self._solitude.opened()
            else:
                await self._session()
                if self._queue:
                    with contextlib.suppress(TimeoutError):
                        self._changed.clear()
                        await asyncio.wait_for(self._changed.wait(), SLICE)

    async def _session(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._solitude.alone() as alone:
            end = loop.time() + SLICE
            await self._ledger.drain(1.0)
            while self._queue and not self._stopping:
                held = self._queue.popleft()
                try:
                    await self._run(held, alone=alone)
                except asyncio.CancelledError:
                    if held.state is State.BUFFERED:
                        self._ledger.give_back(held)
                    raise
                if loop.time() > end:
                    break

    async def _run(self, held: Held, *, alone: bool) -> None:
        if held.state is not State.BUFFERED:
            return
        try:
            ours = await self._records.charge(held, alone=alone)
        except Disconnected:
            ours = False
        if not ours:
            self._member.lose(held)  # or nobody could be asked: it stays pending, and is claimed when its time is up
            return
        log.warning(
            "%s %s: delivered %d times, and a process died of it or beside it; running it alone",
            self._member.stream,
            held.id.decode(),
            held.deliveries,
            extra=self._member.about(held),
        )
        await self._start(held)
        await self._ledger.drain(1.0)
