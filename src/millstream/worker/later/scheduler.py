"""The scheduler: a task of each app that plans the next firing of each recurring schedule.

To place a firing is to store it as a scheduled entry that waits for its time; the mover adds that entry when it is due.
"""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from redis.exceptions import ResponseError

from millstream.client.later import recurring
from millstream.client.later.recurring import KEY, SILENT_MS, Placing, Recurring
from millstream.client.later.schedule import CONTROL, FLAG, INDEX
from millstream.client.line import Disconnected, Line, passes
from millstream.clock import Clock
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

_DECLARE = 60.0  # seconds between two declarations of the schedules in code

_SEARCH = 5.0  # seconds between two searches for schedules that were added on the server

_LONGEST = 60.0


class Scheduler:
    """Places firings of recurring schedules, over a shared connection."""

    def __init__(
        self,
        line: Callable[[], Line],
        declared: Iterable[Recurring],
        scheduled: Callable[[str], None],
        any_known: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._line = line
        self._scheduled = scheduled
        self._any_known = any_known  # Reports whether any stream has schedules
        self._clock = clock
        #: Milliseconds by which the server's clock is ahead of this process's clock, as far as known
        self.ahead_ms = 0
        self._declared = {one.name: one for one in declared}
        self._stored: dict[str, Recurring] = {}
        self._followed: dict[str, tuple[Recurring, asyncio.Task[None]]] = {}
        self._overruled: dict[str, int] = {}  # Schedule -> the server's milliseconds when another declaration was found
        self._logged: set[str] = set()
        self._started: int | None = None  # The server's milliseconds at the first declaration
        self._declare_at = 0.0
        self._task: asyncio.Task[None] | None = None
        #: Number of missed firings by schedule
        self.missed: Counter[str] = Counter()

    def start(self) -> None:
        """Start the task in the background."""
        self._task = asyncio.create_task(self.run(), name="millstream-scheduler")

    async def stop(self) -> None:
        """Cancel all tasks."""
        tasks = (self._task, *(task for _, task in self._followed.values()))
        self._task, self._followed = None, {}
        await cancel_all(tasks)

    async def run(self) -> None:
        """Declare, search and place until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._declared and loop.time() >= self._declare_at:
                self._declare_at = loop.time() + _DECLARE
                await self.declare()
            if self._any_known():
                await self.search()
            self._follow_all()
            await asyncio.sleep(_SEARCH)

    def _follow_all(self) -> None:
        """Run one task for each schedule, so that a failing node or schedule does not delay the other schedules."""
        wanted = {one.name: one for one in self._all()}
        for name, (one, task) in list(self._followed.items()):
            if wanted.get(name) != one:
                task.cancel()
                del self._followed[name]
        for name, one in wanted.items():
            if name not in self._followed:
                self._followed[name] = one, asyncio.create_task(self._follow(one), name=f"millstream-schedule-{name}")

    async def _follow(self, one: Recurring) -> None:
        failures = 0
        while True:
            try:
                pause = await self.step(one)
                failures = 0
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                failures += 1
                pause = min(0.2 * 2**failures, _LONGEST)
                self._failed(f"schedule {one.name!r} is not placed by this process", error)
            await asyncio.sleep(max(pause, 0.01))

    async def turn(self) -> None:
        """Place every firing that is ready to be placed now, for tests that control the clock."""
        if self._declared:
            await self.declare()
        if self._any_known():
            await self.search()
        for one in self._all():
            while await self.step(one) <= 0:
                pass

    def _all(self) -> list[Recurring]:
        return [*(one for name, one in self._declared.items() if name not in self._overruled), *self._stored.values()]

    async def declare(self) -> None:
        """Write the schedules that code declares to the server.

        If two processes declare the same name differently, the process that started later decides. Once no process has
        renewed its declaration for ``SILENT_MS``, the next one that declares the name decides.
        """
        for name, one in self._declared.items():
            try:
                now = await self._now(one)
                if await self._declare(one, now):
                    self._overruled.pop(name, None)
                    continue
                if name not in self._overruled:
                    log.warning("schedule %r: a worker that started later declares it otherwise, and decides", name)
                self._overruled.setdefault(name, now)
            except Exception as error:  # noqa: BLE001 - the next declaration may succeed
                self._failed(f"schedule {name!r} is not declared", error)

    async def _now(self, one: Recurring) -> int:
        time = await self._line().near(one.stream).call("TIME")
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        self.ahead_ms = now - self._clock.wall_time()
        return now

    async def _declare(self, one: Recurring, now: int) -> bool:
        line = self._line()
        self._started = self._started or now  # the server's clock, since the clocks of workers differ
        try:
            known, error = await recurring.get(line, one.name), None
        except ResponseError as refused:
            known, error = None, refused
        started = self._started
        # Also by our own wait, since another program may have damaged the record that shows the last renewal
        renewed = (0 if known is None else known.seen_ms, self._overruled.get(one.name, now))
        # A schedule that a person or program put on the server has no worker that renews it
        lapsed = (known is None or known.in_code) and all(abs(now - at) > SILENT_MS for at in renewed)
        if known is not None and known.in_code:
            if known.stream != one.stream and known.started_ms > started and not lapsed:
                return False
            if known.fingerprint == one.fingerprint:
                started = max(started, known.started_ms)
        if not await recurring.define(line, one, started, lapsed=lapsed):
            return False
        if known is not None and known.stream != one.stream:
            await recurring.forget(line, known)
        await line.call("SADD", INDEX, one.stream)
        await line.call("HSET", CONTROL, FLAG, 1)
        self._scheduled(one.stream)
        if error is not None:
            raise error  # the schedule is placed nevertheless
        await line.call("HSET", KEY, one.name, dataclasses.replace(one, started_ms=started, seen_ms=now).to_json())
        return True

    async def search(self) -> None:
        """Read the schedules stored on the server, and note those that were added, changed or removed."""
        try:
            listed = await recurring.listed(self._line())
        except Exception as error:  # noqa: BLE001 - the next search may succeed
            self._failed(f"{KEY} is not read", error)
            return
        found = {one.name: one for one in listed if not one.in_code and one.name not in self._declared}
        for name, one in found.items():
            if self._stored.get(name) != one:
                self._scheduled(one.stream)
        self._stored = found

    async def step(self, one: Recurring) -> float:
        """Place the next firing of a schedule if it is time; return the seconds until the next step."""
        line = self._line().near(one.stream)
        state = await recurring.place(line, one)
        to_place = (
            None if state.paused or state.overruled else recurring.placing(one.table, state.last_ms, state.now_ms)
        )
        if to_place is not None:
            state = await recurring.place(line, one, to_place)
            if state.mine:
                self._tell(one, to_place)
        if state.overruled and one.in_code:
            self._declare_at = 0.0  # declare again at once, since the server may have lost its data
        if state.paused or state.overruled or state.last_ms is None:
            return _SEARCH
        return min((state.last_ms - state.now_ms) / 1000 + 0.001, _LONGEST) if state.last_ms > state.now_ms else 0.0

    def _failed(self, text: str, error: Exception) -> None:
        """Log an error once, unless it is a passing one such as a lost connection."""
        if isinstance(error, Disconnected) or (isinstance(error, ResponseError) and passes(error)):
            return
        text = f"{text}: {error}"
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s", text)

    def _tell(self, one: Recurring, placed: Placing) -> None:
        if not placed.missed:
            return
        self.missed[one.name] += len(placed.missed)
        first, last = (
            datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (placed.missed[0], placed.missed[-1])
        )
        log.warning(
            "schedule %r: %d%s firings were missed while no worker ran, from %s to %s; catch_up is %s",
            one.name,
            len(placed.missed),
            " or more" if placed.more else "",
            first,
            last,
            one.table.catch_up,
        )
