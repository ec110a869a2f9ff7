"""Workers and the server are killed and frozen at work: nothing is lost, and each repetition is explained.

A run writes a line into a file before it has its effect by ``once``. So the file has every run with its process and its
time. The storm records the process and time of each kill and freeze. The effects on the server must be exactly the
entries. If a run's effect fails on a connection that a server crash had cut, the run writes that down too.
"""

import asyncio
import itertools
import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App, Message, Retry, StreamSub, once
from support import campaign
from support.groups import consumers, pending
from support.resident import memory
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually, eventually, pace

APP = """
import asyncio, os, time
from millstream import App, Message, Retry, StreamSub, once
from redis.exceptions import ConnectionError

app = App()
runs = os.open("runs.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
cut = os.open("cut.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

@app.subscriber(
    StreamSub("jobs", group="g", min_idle_time={min_idle}),
    retry=Retry(max_deliveries=5, base=0.05, backoff="constant"),
    concurrency=8,
)
async def work(x: int, msg: Message) -> None:
    os.write(runs, f"{{x}} {{msg.delivery_count}} {{os.getpid()}} {{time.time_ns()}}\\n".encode())
    await asyncio.sleep(0.001 * (x % 5))
    try:
        await once(msg, ("HINCRBY", "effects", x, 1))
    except ConnectionError:
        os.write(cut, f"{{x}} {{msg.delivery_count}} {{os.getpid()}} {{time.time_ns()}}\\n".encode())
        raise
    if x % 100 == 7:
        raise ValueError("always fails, after its effect")
    if x % 50 == 3 and msg.delivery_count == 1:
        raise ValueError("fails once, after its effect")
"""

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """One line of the file."""

    x: int
    delivery: int
    pid: int
    at: int


@dataclass
class Storm:
    """Random faults of random processes.

    Args:
        server: server under faults.
        tasks: starter of processes.
        min_idle: min_idle_time of the subscriber, in milliseconds.
        seed: seed of all random decisions.
    """

    server: ServerProcess
    tasks: Any
    min_idle: int
    seed: int
    workers: list["subprocess.Popen[str]"] = field(default_factory=list)
    killed: dict[int, int] = field(default_factory=dict)  # pid -> when
    frozen: list[tuple[int, int, int]] = field(default_factory=list)  # pid, from when until when
    outages: list[tuple[int, int]] = field(default_factory=list)  # from the kill until it replies again

    def begin(self, entries: int, workers: int) -> None:
        """Publish everything and start the workers."""
        self.chance = random.Random(self.seed)
        self.entries = entries
        self.target = self.tasks.app(APP.format(min_idle=self.min_idle))
        with self.server.client() as client:
            client.xgroup_create("jobs", "g", "0", mkstream=True)
            for start in range(0, entries, 1_000):
                pipe = client.pipeline(transaction=False)
                for x in range(start, min(start + 1_000, entries)):
                    pipe.xadd("jobs", {"x": x})
                pipe.execute()
        self.workers = [self.tasks.worker(self.target, self.server.url) for _ in range(workers)]

    def rage(self, events: list[str]) -> None:
        """Inject the events, spread over the work."""
        for number, event in enumerate(events):
            mark = self.entries * (number + 1) // (len(events) + 1)
            eventually(lambda mark=mark: self.done() >= mark, 600, what=f"{mark} of {self.entries} are done")
            getattr(self, event)()

    def done(self) -> int:
        """Return the entries that had their effect."""
        # redis-server 7.0 reports wrong entries-read and lag after a crash
        with self.server.client() as client:
            return client.hlen("effects")  # type: ignore[return-value] # redis-py's sync and async share a type

    def kill(self) -> None:
        """Kill a worker and start another."""
        place = self.chance.randrange(len(self.workers))
        victim = self.workers[place]
        victim.kill()
        victim.wait(timeout=30)
        self.killed[victim.pid] = time.time_ns()
        self.workers[place] = self.tasks.worker(self.target, self.server.url)

    def freeze(self) -> None:
        """Freeze a worker for longer than the idle time after which others claim, then continue it."""
        victim = self.chance.choice(self.workers)
        stopped = time.time_ns()
        victim.send_signal(signal.SIGSTOP)
        until = time.monotonic() + self.min_idle / 1000 * 1.5
        eventually(lambda: time.monotonic() > until)
        self.frozen.append((victim.pid, stopped, time.time_ns()))
        victim.send_signal(signal.SIGCONT)

    def crash(self) -> None:
        """Kill the server, and start it again with its data."""
        began = time.time_ns()
        self.server.kill()
        self.server.start()
        self.outages.append((began, time.time_ns()))

    def end(self) -> dict[str, int]:
        """Wait for the end, check every promise, and return the number of repetitions by cause."""
        eventually(self.settled, 600, what="nothing is pending")
        eventually(self.all_joined, what="the last worker that was started has begun")
        for worker in self.workers:
            worker.terminate()
        codes = [worker.wait(timeout=60) for worker in self.workers]
        with self.server.client(decode_responses=True) as client:
            effects: Any = client.hgetall("effects")
            dead: Any = client.xrange("jobs:dead")
        assert codes == [0] * len(self.workers)
        assert Counter({int(x): int(count) for x, count in effects.items()}) == Counter(range(self.entries))
        assert sorted(int(fields["x"]) for _, fields in dead) == list(range(7, self.entries, 100))
        runs = defaultdict(list)
        for run in self.read("runs.txt"):
            runs[run.x].append(run)
        cut = {(run.x, run.delivery, run.pid) for run in self.read("cut.txt")}
        assert bool(self.outages) or not cut
        assert set(runs) == set(range(self.entries))
        caught = self.caught([run for found in runs.values() for run in found])
        causes: Counter[str] = Counter()
        for found in runs.values():
            found.sort(key=lambda run: run.at)
            for run, after in itertools.pairwise(found):
                cause = self.cause(run, after) or ("frozen as it began" if after in caught else "")
                cause = cause or ("connection cut" if (run.x, run.delivery, run.pid) in cut else "")
                assert cause, f"nothing explains that {after} came after {run}"
                causes[cause] += 1
        return dict(causes)

    def read(self, name: str) -> list[Run]:
        """Return the lines of a file that the workers wrote."""
        return [Run(*map(int, line.split())) for line in (self.tasks.folder / name).read_text().splitlines()]

    def settled(self) -> bool:
        with self.server.client() as client:
            left: Any = client.xpending("jobs", "g")
        return self.done() == self.entries and not left["pending"]

    def caught(self, runs: list[Run]) -> set[Run]:
        """Return each frozen worker's first run after thawing, which may have passed every check before the freeze."""
        thawed = [[run for run in runs if run.pid == pid and run.at > until] for pid, _, until in self.frozen]
        return {min(later, key=lambda run: run.at) for later in thawed if later}

    def all_joined(self) -> bool:
        with self.server.client(decode_responses=True) as client:
            pids = {int(name.split("-")[-2]) for name in consumers(client, "jobs", "g")}
        return pids >= {worker.pid for worker in self.workers}

    def cause(self, run: Run, after: Run) -> str:
        """Return the reason why an entry ran again, or an empty text if there is none."""
        if after.delivery < run.delivery:
            return ""  # a later delivery counts as much
        if run.x % 100 == 7 or (run.x % 50 == 3 and run.delivery == 1):
            return "failed"
        if run.at <= self.killed.get(run.pid, 0) <= after.at:
            return "worker killed"
        if any(pid == run.pid and run.at <= until and since <= after.at for pid, since, until in self.frozen):
            return "worker frozen"
        if any(run.at <= ended and began <= after.at for began, ended in self.outages):
            return "server killed"
        return ""


def test_nothing_is_lost_when_workers_and_server_are_killed(own_server: ServerProcess, tasks: Any) -> None:
    """With SIGKILL to two workers and the server and a freeze of one worker, each effect happens exactly once."""
    storm = Storm(own_server, tasks, min_idle=2_000, seed=1)
    storm.begin(1_500, workers=3)
    storm.rage(["kill", "crash", "freeze", "kill"])
    storm.end()


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 25,000 entries, eight workers and twelve events; returns the number of entries."""
    from worker.conftest import Tasks

    folder.mkdir()
    chance = random.Random(seed)
    events = ["kill"] * 8 + ["crash"] * 2 + ["freeze"] * 2
    chance.shuffle(events)
    tasks = Tasks(folder)
    with stormy_server(folder, seed) as server:
        storm = Storm(server, tasks, min_idle=3_000, seed=seed)
        try:
            storm.begin(25_000, workers=8)
            storm.rage(events)
            campaign.show("worker-storm", f"seed {seed}: repeated {storm.end()}")
        finally:
            tasks.end()
    return storm.entries


def stormy_server(folder: Path, seed: int) -> ServerProcess:
    """Redis and Millstream in turn, each with an fsync before every reply."""
    if seed % 2:
        return redis_server(folder, "--appendonly", "yes", "--appendfsync", "always")
    return millstream_server(folder)


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_hundreds_of_thousands_of_entries_in_a_storm(tmp_path: Path) -> None:
    """In eight pieces of 25,000 entries with kills and freezes, nothing is lost and each repetition is explained."""
    campaign.run("worker-storm", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 9), unit="entries")


async def twenty_workers(server: ServerProcess, entries: int, kills: int) -> int:
    """Kill the server under twenty workers; return the number of kills."""
    with server.client() as client:
        client.xgroup_create("s", "g", "0", mkstream=True)
        for x in range(entries):
            client.xadd("s", {"x": x})
    runs: Counter[int] = Counter()
    apps = [App(server.url) for _ in range(20)]

    async def handle(x: int, msg: Message) -> None:
        runs[x] += 1
        await pace(0.001)
        await once(msg, ("HINCRBY", "effects", x, 1))

    for app in apps:
        sub = StreamSub("s", group="g", min_idle_time=2_500, max_records=4)
        app.subscriber(sub, retry=Retry(max_deliveries=kills + 5, base=0.05), concurrency=2)(handle)
        await app.start()
    try:
        for kill in range(kills):
            await aeventually(lambda kill=kill: len(runs) > entries * (kill + 1) // (kills + 1))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await aeventually(lambda: asyncio.to_thread(empty, server, entries), 120)
    finally:
        for app in apps:
            await app.stop()
    with server.client(decode_responses=True) as client:
        effects: Any = client.hgetall("effects")
        assert not client.exists("s:dead")
    assert set(runs) == set(range(entries))
    assert effects == {str(x): "1" for x in range(entries)}
    # a server that dies takes the outcomes that were under way: of what runs, and of what waits for its gathered ack
    assert runs.total() - entries <= kills * 20 * (2 + 4 + 4)
    return kills


def empty(server: ServerProcess, entries: int) -> bool:
    with server.client() as client:
        left: Any = client.xpending("s", "g")
        return client.hlen("effects") == entries and not left["pending"]


async def test_the_server_is_killed_under_twenty_workers(own_server: ServerProcess) -> None:
    """Twenty workers reconnect after server kills: no entry is lost, and each has its effect once."""
    await twenty_workers(own_server, 600, kills=1)


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_the_server_is_killed_under_twenty_workers_again_and_again(tmp_path: Path) -> None:
    """With 4,000 entries and a hundred server kills, no entry is lost and each has its effect once."""

    def piece(seed: int) -> int:
        folder = tmp_path / str(seed)
        folder.mkdir()
        with stormy_server(folder, seed) as server:
            return asyncio.run(twenty_workers(server, 4_000, kills=10))

    campaign.run("worker-outages", piece, range(1, 11), unit="kills")


SLOW = """
import asyncio
from millstream import App, StreamSub
app = App()

@app.subscriber(StreamSub("jobs", group="g", consumer="slow"), concurrency=4)
async def work(x: int) -> None:
    await asyncio.sleep(0.2)
"""


async def test_a_slow_worker_holds_little_and_the_others_get_the_rest(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A slow worker's memory stays bounded behind a backlog of 32 MB, and a quick worker does most of the work."""
    slow = tasks.worker(tasks.app(SLOW), server.url)
    eventually(lambda: client.exists("jobs") and consumers(client, "jobs", "g") == {"slow"})
    client.xadd("jobs", {"x": 0})
    eventually(lambda: "slow" in {name for name, _ in pending(client, "jobs", "g").values()})
    before = memory(slow.pid)
    pipe = client.pipeline(transaction=False)
    for x in range(1, 8_001):
        pipe.xadd("jobs", {"x": x, "load": "*" * 4_000})
    await asyncio.to_thread(pipe.execute)
    quick, done, most = App(server.url), [], 0

    @quick.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None:
        done.append(x)

    async with quick.running():
        while len(done) < 7_800:
            held: Any = await asyncio.to_thread(client.xpending_range, "jobs", "g", "-", "+", 10_000, "slow")
            most = max(most, len(held))
        grown = memory(slow.pid) - before
    assert most <= 4 + 128  # running entries plus the read-ahead limit
    assert len(done) >= 8_000 - 200
    assert grown < 8_000_000
