"""Recurring schedules under kills, pauses and outages of all workers: the timetable fires, and no time fires twice."""

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream import App
from support import campaign
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually
from worker.conftest import Tasks

EVERY_MS = 3_000
GRACE_MS = 2_000
WORKERS = 4
EACH = 5  # Schedules of each kind of catching up
APP = """
from millstream import App, StreamSub
app = App(registry=False)

@app.subscriber(StreamSub("unrelated", group="g"))
async def handle() -> None: ...
"""


@dataclass
class Storm:
    """One piece of the campaign."""

    server: ServerProcess
    tasks: Tasks
    seed: int
    down: list[tuple[int, int]] = field(default_factory=list)  # Server's milliseconds in which no worker ran

    async def run(self) -> int:
        """Put schedules, kill some workers and then all, pause and resume; then check each firing."""
        self.chance = random.Random(self.seed)
        self.target = self.tasks.app(APP)
        self.app = App(self.server.url, registry=False)
        self.names = [f"{kind}-{n}" for kind in ("latest", "none", "all") for n in range(EACH)]
        self.workers = [self.worker() for _ in range(WORKERS)]
        for name in self.names:
            await self.app.schedules.put(
                name,
                every=EVERY_MS / 1000,
                offset=self.chance.randrange(EVERY_MS) / 1000,
                stream=f"schedule:{name}",
                content={"n": name},
                catch_up=name.partition("-")[0],  # type: ignore[arg-type] # one of the three
                grace=GRACE_MS / 1000,
            )
        await self.firings(2)
        for _ in range(3):
            self.kill(1)
            await self.firings(1)
        paused = [name for name in self.names if name.startswith("all")][:2]
        for name in paused:
            assert await self.app.schedules.pause(name)
        begin = self.now()
        self.kill(WORKERS)
        await aeventually(lambda: self.now() > begin + self.chance.choice((7_000, 11_000)), 60)
        self.workers = [self.worker() for _ in range(WORKERS)]
        end = self.now()
        self.down.append((begin, end))
        for name in paused:
            assert await self.app.schedules.resume(name)
        await self.firings(3)
        await aeventually(lambda: all(max(self.times(name)) > end for name in self.names), 90)
        checked = sum(self.check(name) for name in self.names)
        await self.app.close()
        return checked

    def worker(self) -> Any:
        """Start a worker process."""
        return self.tasks.worker(self.target, self.server.url)

    def kill(self, count: int) -> None:
        """Kill workers, and replace a single one."""
        for _ in range(count):
            victim = self.workers.pop(self.chance.randrange(len(self.workers)))
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            if count == 1:
                self.workers.append(self.worker())

    def now(self) -> int:
        """Return the server's time."""
        with self.server.client() as client:
            seconds, micros = client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def entries(self, name: str) -> list[tuple[int, int]]:
        """Return the scheduled time and the time of adding of each firing."""
        with self.server.client(decode_responses=True) as client:
            rows: Any = client.xrange(f"schedule:{name}")
        return [(int(fields["scheduled"]), int(entry.split("-")[0])) for entry, fields in rows]

    def times(self, name: str) -> list[int]:
        """Return the times that fired."""
        return [at for at, _ in self.entries(name)] or [0]

    async def firings(self, more: int) -> None:
        """Wait for a number of firings of a schedule."""
        first = len(self.times("all-4"))
        await aeventually(lambda: len(self.times("all-4")) >= first + more, 90)

    def check(self, name: str) -> int:
        """Check that no time fired twice or early, and that ``catch_up`` explains each missing time."""
        fired = self.entries(name)
        times = [at for at, _ in fired]
        assert len(set(times)) == len(times), f"{name}: a time fired twice"
        assert all(added >= at for at, added in fired), f"{name}: before its time"
        assert len({at % EVERY_MS for at in times}) == 1
        missing = set(range(min(times), max(times), EVERY_MS)) - set(times)
        kind = name.partition("-")[0]
        if kind == "all":
            assert not missing, f"{name}: {len(missing)} are missing"
        if kind == "none":
            late = [added - at for at, added in fired if added - at > GRACE_MS]
            assert not late, f"{name}: {late} ms late"
        ((begin, end),) = self.down
        if kind == "latest":
            within = [at for at in times if begin < at < end - EVERY_MS]
            assert len(within) <= 1, f"{name}: {len(within)} firings for one outage"
        assert kind == "all" or any(begin - EVERY_MS < at < end for at in missing), f"{name}: none was left out"
        return len(times)


def storm_of(folder: Path, seed: int) -> int:
    """A piece of fifteen schedules and four workers, with three single kills and one outage of all."""
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    server = redis_server(folder) if seed % 2 else millstream_server(folder)
    with server:
        try:
            return asyncio.run(Storm(server, tasks, seed).run())
        finally:
            tasks.end()


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_recurring_schedules_in_a_storm(tmp_path: Path) -> None:
    """With 300 schedules under kills, no time fires twice, and only ``catch_up`` leaves times out."""
    campaign.run("schedules", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 21), unit="firings")
