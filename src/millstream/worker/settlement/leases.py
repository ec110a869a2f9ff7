"""Keeping what we hold: entries that run or wait their turn are renewed at a third of the time others wait to claim.

A process that was frozen (a stopped container, a swapped-out host) must not go on as if nothing happened. So each
entry remembers when it was surely ours, and once that is too long ago it is renewed before it is begun: the fence
refuses to renew what is not ours any more.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client import emulate
from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import LEASED, State
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence import Fence, Step

if TYPE_CHECKING:
    from collections.abc import Callable

_HEARTBEAT_LIMIT_MS = 1_000


class Leases:
    """Renews the entries one consumer holds, and those it keeps waiting for a distant retry."""

    def __init__(self, member: Membership, fence: Fence) -> None:
        self._member = member
        self._fence = fence
        # retries further away than min_idle, and the monotonic ms when each is due
        self._parked: dict[Held, int] = {}
        self._looked_at = 0
        #: told of entries whose handler returned a while ago without an outcome; they are not renewed
        self.on_left: Callable[[Held], None] | None = None

    @property
    def period(self) -> float:
        """Seconds between two rounds."""
        return max(min(self._member.min_idle / 3, _HEARTBEAT_LIMIT_MS), 5) / 1000

    async def run(self) -> None:
        """Renew for ever; a round that cannot reach the server is left to the next."""
        while True:
            await asyncio.sleep(self.period)
            with contextlib.suppress(Disconnected):
                await self.round()

    async def round(self) -> None:
        """One round of renewals."""
        member = self._member
        now = member.clock.now().mono
        if member.no_ack:
            return
        third = member.min_idle // 3
        left = [held for held in member.held.values() if held.state is State.LEFT and now - held.leased >= third]
        if self.on_left is not None:
            for held in left:
                self.on_left(held)
        await self.renew([held for held in member.held.values() if held.state in LEASED and now - held.leased >= third])
        await self._advance_parked(now)
        await self._look_after([held for held in left if now - held.leased >= member.min_idle], now)

    async def _look_after(self, left: list[Held], now: int) -> None:
        """Forget those that others may have claimed and did, once in a ``min_idle``: nobody will say a word of them."""
        member = self._member
        if not left or now - self._looked_at < member.min_idle:
            return
        self._looked_at = now
        replies = await member.line.calls(
            [("XPENDING", member.stream, member.group, held.id, held.id, 1, member.consumer) for held in left]
        )
        for held, rows in zip(left, replies, strict=True):
            if isinstance(rows, ResponseError):
                ours = not str(rows).startswith("NOGROUP")  # or the server could not say
            else:
                ours = bool(rows) and rows[0][3] == held.deliveries
            if held.state is State.LEFT and not ours:
                member.lose(held)

    async def renew(self, entries: list[Held]) -> None:
        """Renew these; those that are not ours any more are lost, unless an outcome of theirs is on its way.

        Raises:
            Disconnected: nothing is known.
        """
        if not entries:
            return
        member = self._member
        failpoints.reach("before_renew")
        now = member.clock.now().mono
        move = emulate.renew(member.group, member.consumer)
        for answer in await self._fence.take([Step(move, entries, any_count=True)]):
            renewed: set[bytes] = set()
            if not isinstance(answer.reply, ResponseError):
                renewed = set(answer.reply or ())
            elif not str(answer.reply).startswith("NOGROUP"):
                continue
            for held in answer.step.entries:
                if held.id in renewed:
                    held.leased = now
                elif held.state in (State.BUFFERED, State.RUNNING):
                    member.lose(held)  # another has it; or trimmed or deleted from the stream, or acked by another hand

    def park(self, held: Held, due: int) -> None:
        """Keep a retry waiting that is further away than ``min_idle``: renewed until the rest fits into idle time."""
        self._parked[held] = due

    async def _advance_parked(self, now: int) -> None:
        if not self._parked:
            return
        member = self._member
        steps = []
        for held, due in list(self._parked.items()):
            left = due - now
            if left <= member.min_idle:
                del self._parked[held]
            move = emulate.delay(member.group, deliveries=held.deliveries, delay_ms=left, min_idle_ms=member.min_idle)
            steps.append(Step(move, [held], owner=emulate.WAITING))
        for answer in await self._fence.take(steps):
            for held, _, _ in answer.refused:
                self._parked.pop(held, None)  # somebody has claimed it
            for held in answer.entries:
                held.leased = now
