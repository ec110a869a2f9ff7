"""Lease renewal of a worker: entries that run or wait for a lane are renewed, so that no other consumer claims them.

:mod:`millstream.client.leases` decides the time: a third of the idle time after which others claim an entry.

A process that was frozen (a stopped container, a swapped-out host) must not continue as if nothing happened. So each
entry has the time at which its ownership was last confirmed. If that is too long ago, the entry is renewed before its
run begins. The fence refuses to renew an entry that this consumer no longer owns.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.leases import LeasePlan
from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import LEASED, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence import Fence, FenceStep


class Leases:
    """Renews the entries that one consumer holds."""

    def __init__(self, member: Membership, fence: Fence) -> None:
        self._member = member
        self._fence = fence
        self._plan = LeasePlan.known(member.min_idle)
        self._looked_at = 0  # monotonic milliseconds of the last search for entries without an outcome
        #: Called with entries whose handler returned a while ago without an outcome; they are not renewed
        self.on_left: Callable[[Held], None] | None = None

    async def run(self) -> None:
        """Renew until the task is cancelled; if a round cannot reach the server, the next one tries again."""
        while True:
            await asyncio.sleep(self._plan.period)
            with contextlib.suppress(Disconnected):
                await self.round()

    async def round(self) -> None:
        """Renew the leases that are due, once."""
        member = self._member
        now = member.clock.now().mono
        if member.no_ack:
            return
        due = [held for held in member.held.values() if self._plan.is_due(now, held.leased)]
        left = [held for held in due if held.state is State.LEFT]
        # Not renewed: a handler with manual acks has `min_idle` to acknowledge
        if self.on_left is not None:
            for held in left:
                self.on_left(held)
        await self.renew([held for held in due if held.state in LEASED])
        await self._look_after([held for held in left if now - held.leased >= member.min_idle], now)

    async def _look_after(self, left: list[Held], now: int) -> None:
        """Drop LEFT entries that others have claimed, once in a ``min_idle``; this process will not settle them."""
        member = self._member
        if not left or now - self._looked_at < member.min_idle:
            return
        self._looked_at = now
        replies = await member.line.calls(
            [("XPENDING", member.stream, member.group, held.id, held.id, 1, member.consumer) for held in left]
        )
        for held, rows in zip(left, replies, strict=True):
            if isinstance(rows, ResponseError):
                ours = not str(rows).startswith("NOGROUP")  # also if the server was unable to report it
            else:
                ours = bool(rows) and rows[0][3] == held.deliveries
            if held.state is State.LEFT and not ours:
                member.lose(held)

    async def renew(self, entries: list[Held]) -> None:
        """Renew these leases; an entry that this consumer no longer owns is lost, unless an outcome is on its way."""
        if not entries:
            return
        member = self._member
        failpoints.reach("before_renew")
        # Before the request: a lease counts from the request, since the reply may be late
        now = member.clock.now().mono
        move = emulate.renew(member.group, member.consumer)
        for answer in await self._fence.take([FenceStep(move, entries, any_count=True)]):
            renewed: set[bytes] = set()
            if not isinstance(answer.reply, ResponseError):
                renewed = set(answer.reply or ())
            # Temporarily refused: the entries keep their old lease, and the next round retries
            elif not str(answer.reply).startswith("NOGROUP"):
                continue
            for held in answer.step.entries:
                if held.id in renewed:
                    held.leased = now
                elif held.state in (State.BUFFERED, State.RUNNING):
                    member.lose(held)  # another has it; or trimmed or deleted from the stream, or acked by another hand


class OwnedLeases(Leases):
    """Renews the entries of a partition, after the lease of the partition."""

    def __init__(self, member: Membership, fence: Fence, renew: Callable[[], Awaitable[None]]) -> None:
        super().__init__(member, fence)
        self._renew = renew

    async def renew(self, entries: list[Held]) -> None:
        """Renew these leases, and first that of the partition if it may have expired."""
        if entries and self._member.stale(entries[0]):
            await self._renew()
        await super().renew(entries)
