"""Keeping what we hold: entries that run or wait their turn are renewed at a third of the time others wait to claim.

A process that was frozen (a stopped container, a swapped-out host) must not go on as if nothing happened. So each
entry remembers when it was surely ours, and once that is too long ago the server is asked before anything is done with
it. Owner and delivery count together are the proof: a claim by anybody, ourselves included, changes the count.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from millstream.client import emulate
from millstream.client.line import Command, Disconnected
from millstream.worker import hooks
from millstream.worker.membership import Held, Membership
from millstream.worker.settle import LEASED, State

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 200
_HEARTBEAT_LIMIT_MS = 1_000


class Leases:
    """Renews the entries one consumer holds, and those it keeps waiting for a distant retry."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        # id -> (monotonic ms when it is due, delivery count): retries further away than min_idle
        self._parked: dict[bytes, tuple[int, int]] = {}
        member.ticked = member.clock.now().mono
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
        gap, member.ticked = now - member.ticked, now
        if member.no_ack:
            return
        third = member.min_idle // 3
        if self.on_left is not None:
            for held in [held for held in member.held.values() if held.state is State.LEFT]:
                if now - held.leased >= third:
                    self.on_left(held)
        due = [held for held in member.held.values() if held.state in LEASED and now - held.leased >= third]
        doubtful = member.stale_among(due)
        if doubtful:
            await self.verify(doubtful)
        due = [held for held in due if held.state in LEASED]
        for start in range(0, len(due), _CHUNK):
            await self._renew(due[start : start + _CHUNK], now)
        await self._advance_parked(now, gap)

    async def verify(self, doubtful: list[Held]) -> None:
        """Ask the server which of these we still own; those we do not are lost."""
        member = self._member
        now = member.clock.now().mono
        replies = await member.line.calls(
            [("XPENDING", member.stream, member.group, held.id, held.id, 1) for held in doubtful]
        )
        owner = member.consumer.encode()
        for held, rows in zip(doubtful, replies, strict=True):
            if isinstance(rows, ResponseError) and not str(rows).startswith("NOGROUP"):
                continue  # the server could not say; it will be asked again before anything is done
            ours = isinstance(rows, list) and rows and rows[0][1] == owner and rows[0][3] == held.deliveries
            # it may have been idle for longer than min_idle, so that anybody can claim it this instant; to claim it
            # ourselves would charge a delivery, so it is renewed at once
            if ours:
                held.leased = now
            elif held.state in LEASED or held.state is State.LEFT:
                member.lose(held)
        kept = [held for held in doubtful if held.state in LEASED]
        if kept:
            await self._renew(kept, now)

    def park(self, entry: bytes, due: int, deliveries: int) -> None:
        """Keep a retry waiting that is further away than ``min_idle``: renewed until the rest fits into idle time."""
        self._parked[entry] = (due, deliveries)

    async def _renew(self, entries: list[Held], now: int) -> None:
        member = self._member
        hooks.reach("before_renew")
        command = emulate.renew(member.stream, member.group, member.consumer, [held.id for held in entries])
        reply = (await member.line.calls((command,)))[0]
        if isinstance(reply, ResponseError):
            if str(reply).startswith("NOGROUP"):
                reply = []
            else:
                return
        renewed = set(reply)
        for held in entries:
            if held.id in renewed:
                held.leased = now
            elif held.state in (State.BUFFERED, State.RUNNING):
                member.lose(held)  # trimmed or deleted from the stream, or acked by another hand

    async def _advance_parked(self, now: int, gap: int) -> None:
        if not self._parked:
            return
        member = self._member
        if gap > member.min_idle * 3 // 4:
            self._parked.clear()  # we slept; others may have claimed them, and soon will
            return
        commands: list[Command] = []
        for entry, (due, deliveries) in list(self._parked.items()):
            left = due - now
            if left <= member.min_idle:
                del self._parked[entry]
            commands.append(
                emulate.delay(
                    member.stream,
                    member.group,
                    entry,
                    deliveries=deliveries,
                    delay_ms=left,
                    min_idle_ms=member.min_idle,
                )
            )
        await member.line.calls(commands)
