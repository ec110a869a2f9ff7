"""Limits while workers are killed and frozen: rate, burst and slots hold, and no wait is charged."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support import campaign
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually
from worker.conftest import Tasks
from worker.limits.test_limits import passed

WORKERS = 6
LANES = 4
RATED, BURST = 60, 10  # A second
TENANT, TENANT_BURST = 10, 2
SLOTS, SLOTS_OF_KEY = 5, 2
FLOOD = 3_000
LEASE_MS = 6_000
#: Milliseconds after a freeze in which a process goes on with permits of the time before it.
THAW = 1_500
#: Milliseconds between a permit and the log of its run, on a loaded machine.
LATE = 1_000
APP = f"""
import asyncio, os
from redis.asyncio import Redis
from millstream import App, Limit, Message, Retry, StreamSub
from millstream.worker.limits import asking, limiter
asking.LEASE_MS, limiter._RENEW = {LEASE_MS}, 1.0
app, log, me = App(registry=False), Redis.from_url(os.environ["MILLSTREAM_URL"]), os.getpid()
common = {{"retry": Retry(max_deliveries=1000), "concurrency": {LANES}}}

def sub(stream):
    return StreamSub(stream, group="g", min_idle_time="3s", polling_interval=200)

async def note(what, kind, key, msg):
    await log.xadd("log", {{"what": what, "kind": kind, "key": key, "pid": me, "id": msg.id, "n": msg.delivery_count}})

@app.subscriber(sub("rated"), limit=Limit("{RATED}/s", burst={BURST}), **common)
async def rated(k: str, msg: Message) -> None:
    await note("run", "rated", k, msg)

@app.subscriber(sub("tenants"), limit=Limit("{TENANT}/s", burst={TENANT_BURST}, key="k"), **common)
async def tenants(k: str, msg: Message) -> None:
    await note("run", "tenants", k, msg)

many, few = Limit(running={SLOTS}, name="all"), Limit(running={SLOTS_OF_KEY}, key="k", name="each")

@app.subscriber(sub("slots"), limit=[many, few], **common)
async def slots(k: str, msg: Message) -> None:
    await note("run", "slots", k, msg)
    await asyncio.sleep(0.05)
    await note("end", "slots", k, msg)
"""


@dataclass
class Storm:
    """One piece of the campaign."""

    server: ServerProcess
    tasks: Tasks
    seed: int
    workers: list[Any] = field(default_factory=list)
    harmed: int = 0  # Processes that were killed or frozen while they had entries

    async def run(self) -> int:
        """Publish to three streams, one of them flooded by a tenant; kill and freeze workers; then check the log."""
        self.chance = random.Random(self.seed)
        self.client = self.server.client(decode_responses=True)
        self.target = self.tasks.app(APP)
        self.workers = [self.worker() for _ in range(WORKERS)]
        self.add("tenants", ["first"])
        await aeventually(lambda: len(self.runs("tenants", "first")) == 1, 60)
        alone = await self.tenant_ms("alone", 60)
        self.add("tenants", ["flood"] * FLOOD)
        # Workers read in order, so its entries begin once the flood was read, which takes a busy machine a minute. The
        # flood itself takes 300 s at its rate
        beside = await self.tenant_ms("beside", 240)
        assert len(self.runs("tenants", "flood")) < FLOOD
        # Measured but not promised: returned entries wait for a scan of the pending list
        campaign.show("limits", f"seed {self.seed}: a tenant took {alone} ms alone, {beside} ms beside a flood")
        self.add("rated", ["r"] * 900)
        self.add("slots", [f"k{n % 4}" for n in range(600)])
        for number in range(6):
            await self.harm(number)
        for kind, count in (("rated", 900), ("slots", 600)):
            await aeventually(lambda kind=kind, count=count: self.ran(kind) == count, 120, what=f"{kind} all ran")
        return self.check()

    async def tenant_ms(self, name: str, within: float) -> int:
        """Return the duration of 40 runs of a tenant in milliseconds, which must end in time."""
        before = self.now()
        self.add("tenants", [name] * 40)
        await aeventually(lambda: len(self.runs("tenants", name)) >= 40, within, what=name)
        return max(row["at"] for row in self.runs("tenants", name)) - before

    def add(self, stream: str, keys: list[str]) -> None:
        """Add entries of the given keys."""
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.xadd(stream, {"k": key})
            pipe.execute()

    def worker(self) -> Any:
        """Start a worker process."""
        return self.tasks.worker(self.target, self.server.url)

    async def harm(self, number: int) -> None:
        """Kill a process, or freeze it for a moment or for longer than its slots last."""
        await self.pass_ms(1_500)
        victim = self.workers.pop(self.chance.randrange(len(self.workers)))
        self.harmed += 1
        if number % 2:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.client.xadd("log", {"what": "kill", "pid": victim.pid})
            self.workers.append(self.worker())
            return
        os.kill(victim.pid, signal.SIGSTOP)
        self.client.xadd("log", {"what": "stop", "pid": victim.pid})
        await self.pass_ms(self.chance.choice((1_000, LEASE_MS + 2_000)))
        self.client.xadd("log", {"what": "go", "pid": victim.pid})
        os.kill(victim.pid, signal.SIGCONT)
        self.workers.append(victim)

    async def pass_ms(self, length: int) -> None:
        """Wait for a time by the server's clock."""
        begin = self.now()
        await aeventually(lambda: self.now() > begin + length, 60)

    def now(self) -> int:
        """Return the server's time."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def log(self) -> list[dict[str, Any]]:
        """Return the log with the server's time of each row."""
        rows: Any = self.client.xrange("log")
        return [{**fields, "at": int(entry.split("-")[0])} for entry, fields in rows]

    def runs(self, kind: str, key: str | None = None) -> list[dict[str, Any]]:
        """Return the log rows of begun runs."""
        return [
            row
            for row in self.log()
            if row["what"] == "run" and row["kind"] == kind and (key is None or row["key"] == key)
        ]

    def ran(self, kind: str) -> int:
        """Return the entries that ran at least once."""
        return len({row["id"] for row in self.runs(kind)})

    def check(self) -> int:
        """Check rates, slots and delivery counts; return the number of runs."""
        rows, frozen = self.log(), self.frozen()
        times: dict[tuple[str, str], list[int]] = defaultdict(list)
        at_work: dict[tuple[str, str], tuple[str, str]] = {}  # Process and entry -> kind and key
        still: set[str] = set()
        counted: Counter[str] = Counter()
        charged: dict[tuple[str, str], int] = {}
        for row in rows:
            pid = row["pid"]
            if row["what"] == "stop":
                still.add(pid)
            elif row["what"] == "go":
                still.discard(pid)
            if row["what"] in ("kill", "stop"):
                at_work = {one: what for one, what in at_work.items() if one[0] != pid}
            elif row["what"] == "end":
                at_work.pop((pid, row["id"]), None)
            if row["what"] != "run":
                continue
            place = row["kind"], row["id"]
            charged[place] = max(charged.get(place, 1), int(row["n"]))
            if any(begin <= row["at"] <= end for begin, end in frozen.get(pid, ())):
                counted["frozen"] += 1
                continue
            counted[row["kind"]] += 1
            if row["kind"] == "slots":
                at_work[pid, row["id"]] = row["kind"], row["key"]
                assert len(at_work) <= SLOTS, f"{len(at_work)} ran at once at {row['at']}"
                of_key = sum(key == row["key"] for _, key in at_work.values())
                assert of_key <= SLOTS_OF_KEY, f"{of_key} of {row['key']} ran at once at {row['at']}"
            else:
                times[row["kind"], row["key"]].append(row["at"])
        for (kind, key), found in times.items():
            rate, burst = (RATED, BURST) if kind == "rated" else (TENANT, TENANT_BURST)
            over = passed(found, rate / 1000, burst, LATE)
            assert not over, f"{kind} {key}: {over[:3]}"
        more = self.check_charges(charged)
        campaign.show("limits", f"seed {self.seed}: runs {dict(counted)}, deliveries charged {more}")
        return counted.total()

    def check_charges(self, charged: dict[tuple[str, str], int]) -> int:
        """Check that only a killed or frozen process charged its entries, and that a refused permit charged none."""
        for kind in ("rated", "tenants", "slots"):
            waiting: Any = self.client.xpending_range(kind, "g", "-", "+", 10_000)
            for row in waiting:
                charged[kind, row["message_id"]] = row["times_delivered"]
            assert self.client.xlen(f"{kind}:dead") == 0
        more = sum(max(count - 1, 0) for count in charged.values())
        assert more <= self.harmed * 3 * 2 * LANES, f"{more} deliveries were charged, {self.harmed} processes harmed"
        return more

    def frozen(self) -> dict[str, list[tuple[int, int]]]:
        """Return the periods in which each process was frozen, or had just been."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        began: dict[str, int] = {}
        for row in self.log():
            if row["what"] == "stop":
                began[row["pid"]] = row["at"]
            elif row["what"] == "go":
                found[row["pid"]].append((began[row["pid"]], row["at"] + THAW))
        return found


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 4,600 entries in three streams and six workers, with three kills and three freezes."""
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    server = redis_server(folder) if seed % 2 else millstream_server(folder, "--memory")
    with server:
        try:
            return asyncio.run(Storm(server, tasks, seed).run())
        finally:
            tasks.end()


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_limits_in_a_storm(tmp_path: Path) -> None:
    """In forty pieces with kills and freezes, no rate, slot count or delivery count is exceeded."""
    campaign.run("limits", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 41), unit="runs")
