"""The heartbeat of a worker process: every few seconds it writes its state to the registry and reads its orders.

The heartbeat never harms the work: if a server refuses the keys, that is logged once, and no more beats are sent. Each
beat looks up the running jobs, so that a run has no overhead. The start of a job is known to the length of a beat. The
keys and their values are in :mod:`millstream.worker.registry.protocol`.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from millstream._version import __version__
from millstream.client.line import Disconnected, Line
from millstream.clock import Clock
from millstream.texts import plural
from millstream.worker.limits.limiter import asked, facts_of, learn
from millstream.worker.model.histogram import BOUNDS, RecentRuns
from millstream.worker.model.pause import HandlerPause
from millstream.worker.partitions.loop import PartitionedLoop, Runner
from millstream.worker.registry import protocol
from millstream.worker.registry.protocol import Order
from millstream.worker.registry.reaper import ReapError, reap
from millstream.worker.registry.watchdog import StoppedLoop, Watchdog
from millstream.worker.settlement.running import RunningSince
from millstream.worker.subscriber.loop import SubscriberLoop
from millstream.worker.subscriber.standstill import Standstill
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

#: Number of jobs shown for each subscriber, longest-running first.
JOBS_SHOWN = 20
_HELD_SHOWN = 10

_REFUSALS = ("WRONGTYPE", "unknown command", "ERR unknown command")


class Heartbeat:
    """Registers one process and obeys the control channel."""

    def __init__(
        self,
        line: Line,
        loops: Sequence[Runner],
        clock: Clock,
        *,
        listed: bool = True,
        reap_after: float | None = None,
        url: str = "",
        version: str | None = None,
        blocked_after: float | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._line = line
        self._loops = loops
        self._clock = clock
        self._listed = listed  # False after the registry refused this process
        self._reap_after = reap_after
        self._version = version or __version__
        self._watchdog: Watchdog | None = None
        self._renewed_ms: int | None = None  # Time at which the expiry of the index was last extended
        if standstill is not None and Watchdog.is_wanted(blocked_after):
            self._watchdog = Watchdog(
                url, self.id, after=blocked_after, facts=self._facts_of_blocked, standstill=standstill
            )
        self._started = clock.now().wall  # wall milliseconds
        self._running = [RunningSince() for _ in loops]  # one for each loop, in the same order
        self._recent = [RecentRuns() for _ in loops]  # see above
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.scheduled = not listed  # True if some stream on the server has schedules, or if that is unknown
        self.order: Order | None = None
        #: Set when this process was ordered to end; after an order to drain, when it holds no entries
        self.dismissed = asyncio.Event()

    # -- life -------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Send the first beat before anything is read, so that a paused handler does not start."""
        if self._listed:
            with contextlib.suppress(Disconnected):
                await self._beat()

    def start(self) -> None:
        """Start the tasks in the background."""
        if self._watchdog is not None:
            self._watchdog.start()
        if self._listed:
            self._tasks.append(asyncio.create_task(self._run(), name="millstream-registry"))
        if self._reap_after is not None:
            self._tasks.append(asyncio.create_task(self._reap(self._reap_after), name="millstream-reaper"))

    async def stopping(self) -> None:
        """Report to the registry that this process is about to end."""
        # Before the beat below, which reports this state
        self._stopping = True
        await cancel_all(self._tasks)
        if self._listed:
            with contextlib.suppress(Disconnected, TimeoutError):
                await asyncio.wait_for(self._beat(), 1.0)

    async def end(self) -> None:
        """Remove this process from the registry."""
        if self._watchdog is not None:
            await asyncio.to_thread(self._watchdog.stop)
        if self._listed:
            with contextlib.suppress(Disconnected, TimeoutError):
                subs = [loop.subscription for loop in self._loops]
                handlers = [(one.name, one.sub.stream, one.group) for one in subs]
                last = protocol.sign_off(self.id, self._clock.now().wall, self.order, handlers)
                await asyncio.wait_for(self._line.calls(last), 1.0)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(protocol.BEAT if self.order != "drain" else protocol.BEAT / 10)
            if self.order == "drain" and not any(loop.busy for loop in self._loops):
                self.dismissed.set()
            with contextlib.suppress(Disconnected):
                # The registry contains this process's state from before the order
                if await self._beat():
                    await self._beat()  # so that the sender of the order sees at once that it is obeyed
            if not self._listed:
                return

    # -- one beat ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> bool:
        """Send one beat and apply the reply; return True if that changed what this process does."""
        now, mono = self._clock.now()
        for loop, recent in zip(self._loops, self._recent, strict=True):
            recent.note(mono, loop.durations(), loop.stats)
        pairs = [(loop.subscription.sub.stream, loop.subscription.group) for loop in self._loops]
        fields = [protocol.order_field(self.id), *(protocol.pause_field(*pair) for pair in pairs)]
        renews = self._renewed_ms is None or not 0 <= now - self._renewed_ms < protocol.RENEWAL_MS
        limiters = [limiter for loop in self._loops for limiter in loop.limiters]
        rates = asked(limiters)
        beat = protocol.beat(self.id, self.facts(), now, fields, renews=renews)
        replies = await self._line.calls((*beat, *rates))
        if rates:
            learn(limiters, replies.pop())
        if renews:
            self._renewed_ms = now
        refused = [reply for reply in replies if isinstance(reply, ResponseError)]
        if refused:
            # Other refusals are temporary, such as a full disk or a loading server
            if isinstance(refused[0], NoPermissionError) or str(refused[0]).startswith(_REFUSALS):
                self._listed, self.scheduled = False, True
                log.warning(
                    "not in the registry of workers: %s (allow ~%s*, or disable it: App(registry=False))",
                    refused[0],
                    protocol.PREFIX,
                )
            return False
        flag, order, *pauses = replies[-1]
        self.scheduled = flag is not None
        changed = self._obey(protocol.parse_order(order))
        for loop, (stream, group), value in zip(self._loops, pairs, pauses, strict=True):
            changed |= self._pause(loop, protocol.parse_pause(stream, group, value))
        return changed

    def _obey(self, order: Order | None) -> bool:
        # A late order must not revoke a running stop
        if order == self.order or self._stopping:
            return False
        log.warning("ordered to %s", order or "go on")
        self.order = order
        for loop in self._loops:
            loop.quieten(order is not None)
        if order == "stop":
            self.dismissed.set()
        return True

    def _pause(self, loop: Runner, pause: HandlerPause | None) -> bool:
        if pause == loop.paused:
            return False
        if pause is not None:
            log.warning("%s: paused by %s: %s", loop.subscription.name, pause.by or "somebody", pause.reason)
        else:
            log.warning("%s: resumed", loop.subscription.name)
        loop.pause(pause)
        return True

    # -- its record -------------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> "StoppedLoop | None":
        """The line at which the event loop is blocked, for callers in another thread; None while the loop runs."""
        return None if self._watchdog is None else self._watchdog.blocked

    def leave(self) -> None:
        """Settle the entries before this process ends with a blocked event loop."""
        if self._watchdog is not None:
            self._watchdog.leave()

    @property
    def state(self) -> str:
        """The state of this process: running, quiet, draining or stopping."""
        if self._stopping or self.order == "stop":
            return "stopping"
        return {"quiet": "quiet", "drain": "draining"}.get(self.order or "", "running")

    def facts(self) -> dict[str, Any]:
        """Return the facts about this process for the registry."""
        now, mono = self._clock.now()
        errors = [loop.last_error for loop in self._loops if loop.last_error is not None]
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": self._version,
            "state": self.state,
            "started_ms": self._started,
            "beat_ms": now,
            "bounds_ms": [1000 * bound for bound in BOUNDS],
            "subscribers": [
                self._subscriber(loop, running.look(loop.entries(), now))
                | {"recent": recent.facts(mono, loop.durations(), loop.stats)}
                for loop, running, recent in zip(self._loops, self._running, self._recent, strict=True)
            ],
            "last_error": max(errors, key=lambda error: error["at_ms"], default=None),
        }

    def _facts_of_blocked(self) -> dict[str, Any] | None:
        """Return the facts for the watchdog's thread, while the event loop is blocked; None if not registered."""
        return self.facts() if self._listed else None

    @staticmethod
    def _subscriber(loop: Runner, running: list[tuple[int, bytes, int]]) -> dict[str, Any]:
        subscription, stats = loop.subscription, loop.stats
        partitions = {"partitions": loop.partitions} if isinstance(loop, PartitionedLoop) else {}
        return {
            "handler": subscription.name,
            "stream": subscription.sub.stream,
            "group": subscription.group,
            "consumer": loop.member.consumer,
            **partitions,
            "slots": subscription.concurrency,
            "running": len(running),
            "buffered": loop.buffered,
            "handled": stats.handled,
            "failed": stats.failed,
            "retried": stats.retried,
            "dead": stats.dead,
            "paused": loop.paused.reason if loop.paused is not None else None,
            **({"limits": facts_of(loop.limiters)} if subscription.limits else {}),
            **({"held_up": loop.held_up[:_HELD_SHOWN]} if isinstance(loop, PartitionedLoop) else {}),
            "jobs": [
                {"id": entry.decode(), "since_ms": since, "deliveries": deliveries}
                for since, entry, deliveries in running[:JOBS_SHOWN]
            ],
        }

    # -- dead consumers ---------------------------------------------------------------------------------------------

    async def _reap(self, after: float) -> None:
        """Remove dead consumers of this app's groups from time to time."""
        chance = self._loops[0].member.chance
        pause = min(max(after / 6, 1.0), 600.0)
        willing = list(self._loops)
        while willing:
            with contextlib.suppress(Disconnected):
                alive = await self._alive()
                for loop in list(willing):
                    try:
                        for part in loop.parts:
                            await self._reap_group(part, after, alive)
                    except ReapError as error:
                        log.info("dead consumers are not removed: %s", error)
                        if "NOGROUP" not in str(error):
                            # Waiting does not help if a right or script is missing
                            willing.remove(loop)
            await asyncio.sleep(pause * (0.8 + 0.4 * chance.random()))

    async def _alive(self) -> list[str]:
        """Return the names of the consumers of living workers: this process's own, and those in the registry."""
        names = {loop.member.consumer for loop in self._loops}
        if self._listed:
            with contextlib.suppress(protocol.RegistryError):
                for worker in await protocol.workers(self._line):
                    names.update(subscriber["consumer"] for subscriber in worker["subscribers"])
        return sorted(names)

    async def _reap_group(self, loop: SubscriberLoop, after: float, alive: list[str]) -> None:
        stream, group = loop.subscription.sub.stream, loop.subscription.group
        removed = await reap(self._line, stream, group, idle_ms=round(after * 1000), alive=alive)
        loop.stats.reaped += len(removed)
        if removed:
            log.info(
                "%s: removed %s of group %s: %s",
                stream,
                plural(len(removed), "dead consumer"),
                group,
                ", ".join(removed),
            )
