"""Schedules while movers and the server are killed: each becomes one entry at its time, or was cancelled."""

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream import App, Disconnected
from millstream.client.later.schedule import INDEX, content_key, due_key
from support import campaign
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually
from worker.conftest import Tasks

COUNT = 2_500
STREAMS = ("s", "t{s}", "{u}v")
MOVERS = 3
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
    due: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # The times that a schedule may have had
    cancelled: set[tuple[str, str]] = field(default_factory=set)
    doubtful: set[tuple[str, str]] = field(default_factory=set)  # The reply to a cancel was lost
    movers: list[Any] = field(default_factory=list)

    async def run(self) -> int:
        """Publish, change and kill; then check every schedule."""
        self.chance = random.Random(self.seed)
        target = self.tasks.app(APP)
        self.movers = [self.tasks.worker(target, self.server.url) for _ in range(MOVERS)]
        self.target = target
        self.app = App(self.server.url, registry=False)
        killing = asyncio.create_task(self.kill())
        await asyncio.gather(*(self.publish(part) for part in range(10)))
        await killing
        await aeventually(self.empty, 120, what="every schedule was moved")
        await self.app.close()
        self.check()
        return len(self.due)

    async def publish(self, part: int) -> None:
        """Publish a tenth of the schedules, with cancellations and moves between them."""
        for n in range(part, COUNT, 10):
            stream, ident = self.chance.choice(STREAMS), f"id-{n}"
            now = self.now()
            at = now + self.chance.randint(-500, 12_000)
            await self.app.publish(stream, {"n": n}, at=at, id=ident, retry="60s")
            self.due[stream, ident] = {at}
            if self.chance.random() < 0.2:
                await self.change(*self.chance.choice(list(self.due)))

    async def change(self, stream: str, ident: str) -> None:
        """Cancel or move one of the schedules published before."""
        key = stream, ident
        with contextlib.suppress(Disconnected):
            if self.chance.random() < 0.5:
                self.doubtful.add(key)
                if await self.app.later.cancel(stream, ident):
                    self.cancelled.add(key)
                self.doubtful.discard(key)
            else:
                at = self.now() + self.chance.randint(0, 8_000)
                self.due[key].add(at)
                await self.app.later.move(stream, ident, at=at)

    @staticmethod
    def now() -> int:
        """Return milliseconds since 1970. Publisher and server share one machine."""
        return int(time.time() * 1000)

    async def kill(self) -> None:
        """Kill movers and the server at set points of the work."""
        for number in range(1, 9):
            await aeventually(lambda mark=number * 250: self.added() >= mark, 60)
            if number % 4 == 0:
                self.server.kill()
                await asyncio.to_thread(self.server.start)
            else:
                victim = self.movers.pop(self.chance.randrange(len(self.movers)))
                os.kill(victim.pid, signal.SIGKILL)
                self.movers.append(self.tasks.worker(self.target, self.server.url))

    def added(self) -> int:
        """Count the entries in all streams."""
        try:
            with self.server.client() as client:
                return sum(int(client.xlen(stream)) for stream in STREAMS)
        except Exception as error:  # noqa: BLE001 - the server may be down
            raise LookupError(error) from None

    def empty(self) -> bool:
        """Report whether no schedule is waiting."""
        with self.server.client() as client:
            return not client.exists(*(key(stream) for stream in STREAMS for key in (due_key, content_key)))

    def check(self) -> None:
        """Check that each schedule was added once or cancelled, and none before its earliest time."""
        with self.server.client(decode_responses=True) as client:
            assert client.smembers(INDEX) <= set(STREAMS)
            seen: dict[tuple[str, str], int] = {}
            for stream in STREAMS:
                rows: Any = client.xrange(stream)
                for entry, fields in rows:
                    key = stream, f"id-{fields['n']}"
                    assert key not in seen, f"{key} was added twice"
                    seen[key] = int(entry.split("-")[0])
        for key, at in self.due.items():
            if key in self.cancelled:
                assert key not in seen, f"{key} was cancelled and added"
            elif key not in seen:
                assert key in self.doubtful, f"{key} is lost"
            else:
                assert seen[key] >= min(at), f"{key} was added {min(at) - seen[key]} ms before its time"


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 2,500 schedules in three streams, with three movers, six mover kills and two server kills."""
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    server = (
        redis_server(folder, "--appendonly", "yes", "--appendfsync", "always")
        if seed % 2
        else millstream_server(folder, "--fsync", "always")
    )
    with server:
        try:
            return asyncio.run(Storm(server, tasks, seed).run())
        finally:
            tasks.end()


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_schedules_in_a_storm(tmp_path: Path) -> None:
    """Each of 200,000 schedules under kills becomes one entry or was cancelled."""
    campaign.run("later", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 81), unit="schedules")
