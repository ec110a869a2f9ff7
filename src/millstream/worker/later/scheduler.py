"""The scheduler: a task of each app that places the next firing of recurring schedules."""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from redis.exceptions import ResponseError

from millstream.client.later import recurring
from millstream.client.later.recurring import KEY, Placing, Recurring
from millstream.client.later.schedule import CONTROL, FLAG, INDEX
from millstream.client.line import Disconnected, Line, passes

log = logging.getLogger("millstream.worker")

_DECLARE = 60.0
"""Seconds between two declarations of what code declares."""

_SEARCH = 5.0
"""Seconds between two searches for schedules that were put on the server."""

_LONGEST = 60.0


class Scheduler:
    """Places firings over a line that others use as well."""

    def __init__(
        self,
        line: Callable[[], Line],
        declared: Iterable[Recurring],
        scheduled: Callable[[str], None],
        any_known: Callable[[], bool],
    ) -> None:
        self._line = line
        self._scheduled = scheduled
        self._any_known = any_known  # Some stream has schedules: a recurring one is noted there before it is put
        self._declared = {one.name: one for one in declared}
        self._stored: dict[str, Recurring] = {}
        self._next: dict[str, float] = {}
        self._overruled: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        #: firings that were not made up for, by schedule
        self.missed: Counter[str] = Counter()

    def start(self) -> None:
        """Go on in the background."""
        self._task = asyncio.create_task(self.run(), name="millstream-scheduler")

    async def stop(self) -> None:
        """Place no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def run(self) -> None:
        """Place for as long as the task runs."""
        loop = asyncio.get_running_loop()
        declare_at = search_at = 0.0
        while True:
            try:
                if self._declared and loop.time() >= declare_at:
                    await self.declare()
                    declare_at = loop.time() + _DECLARE
                if loop.time() >= search_at:
                    if self._any_known():
                        await self.search()
                    search_at = loop.time() + _SEARCH
                ready = [one for one in self._all() if self._next.get(one.name, 0.0) <= loop.time()]
                for one in ready:
                    self._next[one.name] = loop.time() + await self.step(one)
                soonest = min([search_at, *(self._next.get(one.name, 0.0) for one in self._all())])
            except (Disconnected, ResponseError) as error:
                if not isinstance(error, Disconnected) and not passes(error):
                    log.warning("schedules are not placed by this process for a minute: %s", error)
                soonest = loop.time() + (1.0 if isinstance(error, Disconnected) or passes(error) else _LONGEST)
            await asyncio.sleep(max(soonest - loop.time(), 0.01))

    async def turn(self) -> None:
        """Place all that is to be placed now; for tests that turn the clock by hand."""
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
        """Tell the server what code declares; a process that started later decides what a name means."""
        time = await self._line().call("TIME")
        now = int(time[0]) * 1000
        for name, one in self._declared.items():
            text = await self._line().call("HGET", KEY, name)
            known = None if text is None else Recurring.of_json(text)
            newer = known is not None and known.in_code and known.started_ms > one.started_ms
            if known is not None and newer and not known.declares(one):
                if name not in self._overruled:
                    log.warning("schedule %r: a worker that started later declares it otherwise, and decides", name)
                self._overruled.add(name)
                continue
            self._overruled.discard(name)
            started = max(one.started_ms, known.started_ms) if newer and known is not None else one.started_ms
            await self._line().call(
                "HSET", KEY, name, dataclasses.replace(one, started_ms=started, seen_ms=now).to_json()
            )
            await self._line().call("SADD", INDEX, one.stream)
            await self._line().call("HSET", CONTROL, FLAG, 1)
            self._scheduled(one.stream)

    async def search(self) -> None:
        """Learn of schedules that were put on the server, changed or removed."""
        found = {one.name: one for one in await recurring.listed(self._line()) if not one.in_code}
        for name, one in found.items():
            if self._stored.get(name) != one:
                self._next.pop(name, None)
                self._scheduled(one.stream)
        self._stored = {name: one for name, one in found.items() if name not in self._declared}

    async def step(self, one: Recurring) -> float:
        """Place the next firing if it is time; the seconds until it is time again."""
        line = self._line().near(one.stream)
        placed, _, now, paused = await recurring.place(line, one)
        to_place = None if paused else recurring.placing(one.table, placed, now)
        if to_place is not None:
            placed, mine, now, paused = await recurring.place(line, one, to_place)
            if mine:
                self._tell(one, to_place)
        if paused:
            return _LONGEST / 10
        return min(((placed or now) - now) / 1000 + 0.001, _LONGEST) if placed is None or placed > now else 0.0

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
