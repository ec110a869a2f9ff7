"""Cancelled jobs: a job that has not begun never begins, and a running job is interrupted.

Only entries with a job are looked up: right before their run, and every second while this process holds them. A stream
without jobs costs no command. A cancellation is removed once its entry has ended.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from millstream.client.jobs.record import cancelled_key
from millstream.client.line import Disconnected
from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.consumer import Held, Membership, job_of

LOOK = 1.0
"""Seconds between two look-ups of running jobs."""


class Cancels:
    """Looks up and applies the cancellations of one consumer's entries."""

    def __init__(self, member: Membership, end: Callable[[Held], None], interrupt: Callable[[Held], None]) -> None:
        self._member = member
        self._end = end  # settles an entry that has not begun
        self._interrupt = interrupt  # cancels the run of an entry
        self._key = cancelled_key(member.stream, member.group)

    async def run(self) -> None:
        """Look up the held jobs every second, until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(Disconnected):
                await self.round()

    async def round(self) -> None:
        """Look up the held jobs once."""
        member = self._member
        over = {one for one in member.cancelled if one.id not in member.held}
        # An entry that was lost or will be retried keeps its cancellation
        ended = [one.id for one in over if one.state in (State.ACKED, State.DEAD)]
        if ended:
            await member.line.calls((("ZREM", self._key, *ended),))
        member.cancelled -= over
        jobs = [one for one in member.held.values() if one.state in (State.BUFFERED, State.RUNNING) and job_of(one)]
        for one in await self._cancelled(jobs):
            if one.state is State.BUFFERED:
                self._stop(one)
            elif one.state is State.RUNNING and one not in member.cancelled:
                member.cancelled.add(one)
                self._interrupt(one)

    async def begin(self, entries: list[Held]) -> list[Held]:
        """Return the entries that may begin; a cancelled job ends here."""
        jobs = [one for one in entries if job_of(one)]
        try:
            for one in await self._cancelled(jobs):
                if one.state is State.BUFFERED:
                    self._stop(one)
        except Disconnected:
            # The server was unreachable: the entry stays pending, and is claimed after its idle time
            for one in jobs:
                self._member.lose(one)
        return [one for one in entries if one.state is State.BUFFERED]

    def _stop(self, held: Held) -> None:
        self._member.cancelled.add(held)
        self._end(held)

    async def _cancelled(self, jobs: Sequence[Held]) -> list[Held]:
        """Return the cancelled jobs; none if the key cannot be read or has another type."""
        if not jobs:
            return []
        (scores,) = await self._member.line.calls((("ZMSCORE", self._key, *(one.id for one in jobs)),))
        if isinstance(scores, ResponseError):
            return []
        return [one for one, score in zip(jobs, scores, strict=True) if score is not None]
