"""End a process when a plain handler runs longer than its hard limit: its thread cannot be ended alone.

No new run begins in this process, and other runs get the app's grace time. Then the known outcomes are stored. The
entry is charged with a crash of its own, as after a kill for a blocked event loop. The process kills itself, with the
processes that handlers have started, and its supervisor restarts it.

Without a supervisor the process would not be restarted, and it may be a web application: then it only logs the overrun.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from millstream.errors import MillstreamError
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.model.lifecycle import State
from millstream.worker.partitions.loop import Runner
from millstream.worker.registry.watchdog import PATIENCE, kill
from millstream.worker.settlement.consumer import Held
from millstream.worker.settlement.running import Work
from millstream.worker.subscriber.standstill import Standstill
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

#: Seconds between two checks for other runs.
_LOOK = 0.05

#: True if a supervisor would start this process again.
supervised = False

#: Reports to the supervisor that this process kills itself for a run beyond this limit in seconds.
announce: Callable[[float], None] = lambda _: None  # noqa: E731 - replaced by the process that has a supervisor


class Overrun:
    """Ends this process, once."""

    def __init__(self, standstill: Standstill, loops: Sequence[Runner], grace: float) -> None:
        self._standstill = standstill
        self._loops = loops
        self._grace = grace
        self._task: asyncio.Task[None] | None = None
        for loop in loops:
            if loop.subscription.hard_limit is not None:
                loop.overrun = self.end
                if not supervised:
                    log.warning(
                        "%s: hard_limit= only reports runs that take longer, since no supervisor would start this "
                        "process again. Run the app by `millstream run`.",
                        loop.subscription.name,
                    )

    def end(self, subscription: Subscription, work: Work) -> None:
        """End this process because a run exceeds its hard limit; without a supervisor, only log that."""
        entries = [work] if isinstance(work, Held) else list(work)
        about = (subscription.hard_limit, self._standstill.names(entries) if entries else subscription.name)
        if not supervised:
            log.error("a run takes longer than hard_limit=%g s (%s); this process goes on, and so does the run", *about)
        elif self._task is None:
            log.critical(
                "a run takes longer than hard_limit=%g s (%s): this process ends after its other runs, in %g s at "
                "most. It counts as a crash of that entry alone",
                *about,
                self._grace,
            )
            self._task = asyncio.create_task(
                self._end(entries, subscription.hard_limit or 0.0), name="millstream-overrun"
            )

    async def stop(self) -> None:
        """Cancel the task, since the app stops anyway."""
        await cancel_all([self._task])

    async def _end(self, entries: Sequence[Held], limit: float) -> None:
        for loop in self._loops:
            loop.quieten(True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                while self._others(entries):  # noqa: ASYNC110 - runs have no event for their common end
                    await asyncio.sleep(_LOOK)
        # A Timeout may have ended the run before, so that it has an outcome
        late = [one for one in entries if one.state is State.RUNNING]
        try:
            async with asyncio.timeout(PATIENCE):
                await self._standstill.leave(late, alone=True)
        except (MillstreamError, RedisError, OSError, TimeoutError) as error:
            log.error("entries were not handed back, others claim them after min_idle_time: %s", error)  # noqa: TRY400 - the reason is enough
        announce(limit)
        kill()

    def _others(self, entries: Sequence[Held]) -> bool:
        """Report whether any other entry runs."""
        every = [one for loop in self._loops for one in loop.entries()]
        return any(one.state is State.RUNNING and one not in entries for one in every)
