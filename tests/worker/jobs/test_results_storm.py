"""Requests while workers and the server are killed: each has one lasting result of an actual run."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream import App, Disconnected, JobCancelledError, JobDeadError
from millstream.client.jobs import record
from support import campaign
from support.groups import pending
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually
from worker.conftest import Tasks

COUNT = 500
FIRST = 100  # Jobs that are published, and some of them cancelled, before a worker runs
WORKERS = 3
SHORT_MS = 2_000
APP = """
import asyncio, os, secrets
from millstream import App, Retry, StreamSub
app = App(registry=False)
runs = os.open("runs.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

@app.subscriber(StreamSub("{s}jobs", group="g", min_idle_time=1500), concurrency=4, retry=Retry(6, base=0.05))
async def handle(n: int) -> str:
    os.write(runs, f"{n} begun\\n".encode())
    await asyncio.sleep(0.002 * (n % 7))
    if n % 50 == 13:
        raise ValueError("thirteen")
    value = secrets.token_hex(8)
    os.write(runs, f"{n} {value}\\n".encode())
    return value
"""


@dataclass
class Storm:
    """One piece of the campaign."""

    server: ServerProcess
    tasks: Tasks
    seed: int
    answers: dict[int, str] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    up: asyncio.Event = field(default_factory=asyncio.Event)  # Cleared while the server is down

    async def run(self) -> int:
        """Publish, wait and kill; then check every result."""
        self.chance = random.Random(self.seed)
        self.up.set()
        self.app = App(self.server.url, registry=False)
        for n in range(FIRST):
            await self.publish(n)
            if n % 4 == 0 and await self.app.job("{s}jobs", self.jobs[n], group="g").cancel():
                self.cancelled.add(n)
        target = self.tasks.app(APP)
        self.workers = [self.tasks.worker(target, self.server.url) for _ in range(WORKERS)]
        killing = asyncio.create_task(self.kill(target))
        await asyncio.gather(*(self.requests(part) for part in range(20)))
        await killing
        await aeventually(self.calm, 60, what="nothing is pending")
        await self.check()
        await self.app.close()
        return COUNT

    async def publish(self, n: int) -> None:
        """Publish a job once, despite interruptions."""
        keep = SHORT_MS / 1000 if n % 10 == 5 else "1h"
        self.jobs[n] = (await self.app.publish("{s}jobs", {"n": n}, result=keep, retry="60s")).id

    async def requests(self, part: int) -> None:
        """Wait for every twentieth job, one after the other."""
        for n in range(part, COUNT, 20):
            if n not in self.jobs:
                await self.publish(n)
            job = self.app.job("{s}jobs", self.jobs[n], group="g")
            while n not in self.ends:
                await self.up.wait()
                try:
                    self.answers[n] = await job.result("20s" if n % 10 != 5 else "2s")
                    self.ends[n] = "done"
                except Disconnected:
                    continue
                except (JobDeadError, JobCancelledError, TimeoutError) as error:
                    self.ends[n] = type(error).__name__

    async def kill(self, target: str) -> None:
        """Kill or freeze a worker, or kill the server, at set points of the work."""
        for number in range(1, 13):
            await aeventually(lambda mark=number * COUNT // 14: len(self.ends) >= mark, 120)
            victim = self.workers.pop(self.chance.randrange(len(self.workers)))
            if number % 6 == 0:
                self.up.clear()
                self.server.kill()
                await asyncio.to_thread(self.server.start)
                self.up.set()
                self.workers.append(victim)
            elif number % 3 == 0:
                # Another worker claims its entries, and it continues runs that it no longer owns
                os.kill(victim.pid, signal.SIGSTOP)
                seen = len(self.ends)
                await aeventually(lambda seen=seen: len(self.ends) >= min(seen + 30, COUNT - 20), 120)
                os.kill(victim.pid, signal.SIGCONT)
                self.workers.append(victim)
            else:
                os.kill(victim.pid, signal.SIGKILL)
                self.workers.append(self.tasks.worker(target, self.server.url))

    def calm(self) -> bool:
        """Report whether every entry has its outcome."""
        with self.server.client() as client:
            last: Any = client.xinfo_groups("{s}jobs")
            return not pending(client, "{s}jobs", "g") and last[0]["lag"] in (0, None)

    async def check(self) -> None:
        """Check that each result came from a run and is unchanged, and that no key outlives its time."""
        returned = defaultdict(set)
        for line in (self.tasks.folder / "runs.txt").read_text().splitlines():
            n, what = line.split()
            returned[int(n)].add(what)
        for n in self.cancelled:
            assert n not in returned, f"job {n} began after it was cancelled"
        for n, value in self.answers.items():
            assert value in returned[n], f"job {n} was answered by no run"
            if n % 10 != 5:
                assert await self.app.job("{s}jobs", self.jobs[n]).result(10) == value, f"job {n} has two results"
        for n, end in self.ends.items():
            assert (end == "JobDeadError") <= (n % 50 == 13), f"job {n} is dead"
            assert (end == "JobCancelledError") <= (n in self.cancelled), f"job {n} was cancelled by nobody"
            assert n % 10 == 5 or end != "done" or (n % 50 != 13 and n not in self.cancelled), f"job {n} is done"
        counts = Counter(self.ends.values())
        assert counts.total() == COUNT
        assert counts["TimeoutError"] <= COUNT // 10, counts
        with self.server.client(decode_responses=True) as client:
            short = {record.result_key("{s}jobs", self.jobs[n]) for n in range(5, COUNT, 10)}
            await aeventually(lambda: not client.exists(*short), what="results end with their time")
            for key in client.scan_iter("millstream:*"):
                assert ":result:" not in key or 0 < client.pttl(key) <= 3_600_000, key
            # A killed worker leaves the cancellation of an ended job until it expires
            left: Any = client.pttl(record.cancelled_key("{s}jobs", "g"))
            assert left == -2 or 0 < left <= record.CANCELLED_MS
        campaign.show("results", f"seed {self.seed}: {dict(counts)}")


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 500 requests and three workers, with eight worker kills, two freezes and two server kills."""
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
def test_requests_in_a_storm(tmp_path: Path) -> None:
    """Each of 50,000 requests under kills has the result of an acknowledged run or times out."""
    campaign.run("results", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 101), unit="requests")
