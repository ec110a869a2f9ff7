"""Partition owners under kills, freezes, cuts, node deaths and slot moves: keys in order, no partition left alone."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App
from support import campaign
from support.clusters import Three
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually
from worker.conftest import Tasks

PARTS, WORKERS, KEYS, COUNT = 16, 5, 40, 3_000
WORKERS_ALONE = 60  # Pieces whose nodes are never hurt
LEASE = 2.0
BEAT = LEASE / 6
#: Seconds that this machine may take to run what is due, with everything else that runs on it
SLOW = 1.5
APP = """
import asyncio, random
from millstream import App, Message, Nack, Retry, StreamSub, once
app = App(reap_after=None, blocked_after=None)

@app.subscriber(StreamSub("orders", group="g", min_idle_time="2s"), hold=HOLD, concurrency=16,
                retry=Retry(max_deliveries=0, base=0.05))
async def handle(key: str, n: int, msg: Message) -> None:
    await asyncio.sleep(random.uniform(0, 0.02))
    await once(msg, ("RPUSH", f"effects{{{msg.partition}}}", f"{key} {n} {msg.fence}"))
    if random.random() < 0.01:
        raise Nack("again", delay=random.choice([None, 0.05]))
"""


async def pause(seconds: float) -> None:
    """Let the workers run for a time."""
    end = time.monotonic() + seconds
    await aeventually(lambda: time.monotonic() >= end)


@dataclass
class Storm:
    """One piece of the campaign."""

    url: str
    nodes: list[ServerProcess]
    tasks: Tasks
    seed: int
    hold: bool
    three: Three | None = None  # The cluster, if its nodes die and its slots move
    workers: list[Any] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0  # Seconds that a partition had no owner

    async def run(self) -> int:
        """Publish while workers suffer faults; then check every effect."""
        self.chance = random.Random(self.seed)
        self.target = self.tasks.app(APP.replace("HOLD", str(self.hold)))
        self.app = App(self.url, registry=False)
        await self.app.partition("orders", PARTS, by="key")
        self.workers = [self.tasks.worker(self.target, self.url) for _ in range(WORKERS)]
        self.over = False
        others = [asyncio.create_task(work()) for work in (self.hurt, self.watch)]
        for n in range(0, COUNT, 20):
            # Entries of a key are never in one part, so that a repetition changes no order
            part = [{"key": f"k{m % KEYS}", "n": m} for m in range(n, n + 20)]
            await asyncio.gather(*(self.app.publish("orders", one, retry="60s") for one in part))
            await pause(0.1)
        self.over = True
        await asyncio.gather(*others)
        await aeventually(self.is_done, 120, what="every entry is handled")
        await self.app.close()
        self.check()
        return self.faults.total()

    async def hurt(self) -> None:
        """Inject one fault after another, on at most two workers at a time."""
        await aeventually(lambda: len(self.owners()) == PARTS, 60)
        while not self.over:
            await pause(self.chance.uniform(0.2, 1.0))
            kind = self.chance.choice(["kill", "freeze", "freeze", "cut", "term"])
            if self.three is not None and self.chance.random() < 0.5:
                kind = self.chance.choice(["death", "move", "move"])
            self.faults[kind] += 1
            at = self.chance.randrange(len(self.workers))
            worker = self.workers[at]
            if kind in ("kill", "term"):
                os.kill(worker.pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                self.workers[at] = self.tasks.worker(self.target, self.url)
                await pause(self.chance.uniform(0.5, 2.0))
            elif kind == "freeze":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGSTOP)
                    await pause(self.chance.uniform(0.3, 1.8) * LEASE)
                    os.kill(worker.pid, signal.SIGCONT)
            elif kind == "death":
                node = self.chance.choice(self.nodes)
                node.kill()
                # The cluster notices a longer death, and its other nodes refuse all commands then
                await pause(self.chance.choice((0.2, 1.0, 4.0)))
                await asyncio.to_thread(node.start)
                assert self.three is not None
                await asyncio.to_thread(self.three.settle)
            elif kind == "move":
                assert self.three is not None
                await asyncio.to_thread(self.three.move, f"orders{{{self.chance.randrange(PARTS)}}}")
            else:
                for client in self.clients():
                    with contextlib.suppress(redis.RedisError):
                        for one in self.chance.sample(found := client.client_list(), min(len(found), 10)):
                            client.client_kill_filter(_id=one["id"], skipme=True)

    def clients(self) -> list[redis.Redis]:
        """Return a client for each node."""
        return [node.client(decode_responses=True) for node in self.nodes]

    def ask(self, *words: Any) -> dict[int, Any]:
        """Return the reply for each partition from its node."""
        found: dict[int, Any] = {}
        for client in self.clients():
            with client, contextlib.suppress(redis.RedisError):
                client.ping()
                for at in range(PARTS):
                    with contextlib.suppress(redis.RedisError):
                        found[at] = client.execute_command(*(str(word).replace("#", str(at)) for word in words))
        return found

    def looked_up(self) -> dict[int, str | None]:
        """Return the owner or None for each partition that can be reached; nothing if its members cannot be counted.

        A partition without an owner waits while the node with the list of members does not reply.
        """
        owners = self.ask("GET", "millstream:{#}:owner:orders{#}:g")
        for client in self.clients():
            with client, contextlib.suppress(redis.RedisError):
                client.exists("millstream:{orders}:members:g")
                return owners
        return {}

    def owners(self) -> dict[int, str]:
        """Return the current owners."""
        return {at: owner for at, owner in self.looked_up().items() if owner}

    async def watch(self) -> None:
        """Measure the time that a partition has no owner while its node and that of the members reply."""
        await aeventually(lambda: len(self.owners()) == PARTS, 60)
        free: dict[int, float] = {}  # Seconds without an owner; time in which a node is away is left out
        before = time.monotonic()
        while not self.over:
            owners, now = await asyncio.to_thread(self.looked_up), time.monotonic()
            for at, owner in owners.items():
                if owner:
                    free.pop(at, None)
                else:
                    free[at] = free[at] + now - before if at in free else 0.0
                    self.longest = max(self.longest, free[at])
            before = now
            await pause(0.05)

    def is_done(self) -> bool:
        """Report whether every entry has its effect and none is pending."""
        effects = sum(int(number or 0) for number in self.ask("LLEN", "effects{#}").values())
        pending = sum(row["pending"] for row in self.ask("XPENDING", "orders{#}", "g").values())
        return effects == COUNT and pending == 0

    def check(self) -> None:
        """Check single effects, growing fences, key order, and that no partition stays without an owner."""
        effects: Any = self.ask("LRANGE", "effects{#}", 0, -1)
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for rows in effects.values():
            fences = [int(row.split()[2]) for row in rows]
            assert fences == sorted(fences), "an older owner acted behind a newer one"
            for row in rows:
                key, n, _ = row.split()
                by_key[key].append(int(n))
        for key, numbers in by_key.items():
            assert sorted(numbers) == list(range(int(key[1:]), COUNT, KEYS)), f"{key} is not whole"
            assert not self.hold or numbers == sorted(numbers), f"{key} is out of order: {numbers}"
        figures = f"seed {self.seed}: {dict(self.faults)}, longest without an owner {self.longest:.2f} s"
        campaign.show("partitions", figures)
        assert self.longest <= LEASE + 3 * BEAT + SLOW, f"no owner for {self.longest:.2f} s"


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 3,000 entries of 40 keys in 16 partitions, with five workers and some ten faults.

    In the last pieces, half of the faults hit the nodes of a cluster.
    """
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    hold = seed % 2 == 0
    with contextlib.ExitStack() as stack:
        stack.callback(tasks.end)
        three = stack.enter_context(Three(folder)) if seed > WORKERS_ALONE or seed % 4 == 3 else None
        if three is not None:
            url, nodes = three.url, three.nodes
        else:
            server = millstream_server(folder, "--memory") if seed % 4 == 1 else redis_server(folder)
            nodes = [stack.enter_context(server)]
            url = nodes[0].url
        hurt = three if seed > WORKERS_ALONE else None
        return asyncio.run(Storm(url, nodes, tasks, seed, hold, hurt).run())


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_partitions_in_a_storm(tmp_path: Path) -> None:
    """Under hundreds of faults each effect happens once and in key order, and every partition regains an owner."""
    campaign.run(
        "partitions", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, WORKERS_ALONE + 21), unit="faults"
    )
