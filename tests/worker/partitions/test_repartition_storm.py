"""Repartitioning under load with kills between all steps: each key in order, nothing lost."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App
from millstream.client.partitions.layout import PartitionLayout, parse_layout
from support import campaign
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually, eventually
from worker.conftest import Tasks

LEASE_MS = 2_000
KEYS = 40
BEHIND = 600  # Entries that publishers are ahead of the workers, at most
APP = """
from millstream import App, Message, Retry, StreamSub, once
app, again = App(), Retry(0, "constant", 0.2)

@app.subscriber(StreamSub("orders", group="g", min_idle_time={lease}), concurrency=16, retry=again, {how})
async def handle(msg: Message, key: str, n: int) -> None:
    where = f"{{n}} {{msg.stream}} {{msg.id}} {{msg.delivery_count}} {{msg.consumer}} {{msg.fence}}"
    await once(msg, ("RPUSH", "effects:" + key, n), ("RPUSH", "where:" + key, where), ("INCR", "effects"))
"""
CLI = str(Path(sys.executable).with_name("millstream"))


@dataclass
class Storm:
    """One piece of the campaign."""

    server: ServerProcess
    tasks: Tasks
    seed: int
    published: Counter[str] = field(default_factory=Counter)  # Number of entries of each key
    later: int = 0  # Schedules
    foreign: int = 0  # Refusals of another program
    kills: int = 0
    over: bool = False
    workers: list[Any] = field(default_factory=list)

    async def run(self) -> int:
        """Publish, repartition and kill; then check every key."""
        self.chance = random.Random(self.seed)
        self.client = self.server.client(decode_responses=True)
        self.target = self.tasks.app(APP.format(lease=LEASE_MS, how="hold=True"))
        self.apps = [App(self.server.url, registry=False) for _ in range(2)]
        plain = self.seed % 4 < 2
        if plain:
            # A plain stream keeps its keys in order in one process only
            one = self.tasks.app(APP.format(lease=LEASE_MS, how="key='key'"), "plain")
            self.workers = [self.tasks.worker(one, self.server.url)]
        else:
            await self.apps[0].partition("orders", 4, by="key")
            self.workers = [self.tasks.worker(self.target, self.server.url) for _ in range(3)]
        publishing = [asyncio.create_task(self.publish(part)) for part in range(8)]
        await aeventually(lambda: self.done() > 500, 90)
        if plain:
            await self.change("partition", "4", "--by", "key")
            self.workers.pop().kill()
            self.workers = [self.tasks.worker(self.target, self.server.url) for _ in range(3)]
        for number in (8,) if plain else (8, 6, 16):
            mark = self.done() + 300
            await aeventually(lambda mark=mark: self.done() > mark, 90)
            await self.change("repartition", str(number))
        self.over = True
        await asyncio.gather(*publishing)
        await aeventually(self.drained, 120, what="every entry was handled")
        self.check()
        for app in self.apps:
            await app.close()
        return sum(self.published.values())

    async def publish(self, part: int) -> None:
        """Publish entries of an eighth of the keys, one after the other."""
        chance, app = random.Random(self.seed * 10 + part), self.apps[part % 2]
        while not self.over:
            key = f"k{chance.randrange(KEYS // 8) * 8 + part}"
            n = self.published[key]
            if chance.random() < 0.02:
                self.later += 1
                await app.publish("orders", {"key": f"later-{part}", "n": 0}, delay=chance.random(), retry="60s")
            if chance.random() < 0.2 and not self.seed % 2:
                await app.publish_batch("orders", [{"key": key, "n": n + at} for at in range(5)])
                self.published[key] += 5
            else:
                await app.publish("orders", {"key": key, "n": n}, retry="60s")
                self.published[key] += 1
            await aeventually(lambda: self.over or sum(self.published.values()) - self.done() < BEHIND, 120)

    async def change(self, *words: str) -> None:
        """Repartition once, killed at its first step, then its second, until it completes."""
        for step in range(1, 30):
            line = [CLI, "stream", words[0], "orders", *words[1:], "--yes", "--url", self.server.url]
            arms = {"MILLSTREAM_FAILPOINTS": f"repartition:{step}=kill"}
            ended = await asyncio.to_thread(
                subprocess.run, line, env=os.environ | arms, capture_output=True, text=True, timeout=120, check=False
            )
            if ended.returncode == 0:
                break
            assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
            self.kills += 1
            if words[0] == "repartition":
                await self.disturb(step)
        for key in self.layout().generations[-2].keys:
            with pytest.raises(redis.ResponseError, match="exhausted"):
                self.client.xadd(key, {"key": "foreign", "n": 0})
            self.foreign += 1

    async def disturb(self, step: int) -> None:
        """Kill or freeze a worker; in some pieces kill the server once."""
        victim = self.workers.pop(self.chance.randrange(len(self.workers)))
        if step % 3 == 2:
            victim.send_signal(signal.SIGSTOP)
            mark = self.done() + 50
            with contextlib.suppress(AssertionError):  # It may own all that is left
                await aeventually(lambda: self.done() > mark, 2 * LEASE_MS / 1000)
            victim.send_signal(signal.SIGCONT)
            self.workers.append(victim)
        else:
            victim.kill()
            self.workers.append(self.tasks.worker(self.target, self.server.url))
        if step == 4 and self.seed % 2:
            self.server.kill()
            await asyncio.to_thread(self.server.start)
        self.kills += 1

    def layout(self) -> PartitionLayout:
        """Return the layout on the server."""
        text: Any = self.client.get("millstream:{orders}:partitions")
        found = parse_layout("orders", text.encode())
        assert found is not None
        return found

    def done(self) -> int:
        """Return the effects that have happened."""
        try:
            found: Any = self.client.get("effects")
        except redis.RedisError as error:
            raise LookupError(error) from None
        return int(found or 0)

    def drained(self) -> bool:
        """Report whether every entry has had its effect."""
        return self.done() == sum(self.published.values()) + self.later

    def check(self) -> None:
        """Check that each key's entries had one effect each and in order, and that none is left."""
        for key, count in self.published.items():
            found: Any = self.client.lrange(f"effects:{key}", 0, -1)
            where: Any = self.client.lrange(f"where:{key}", 0, -1)
            assert found == [str(n) for n in range(count)], f"{key}: {where}"
        words = [CLI, "stream", "repartition", "orders", "--finish", "--yes", "--url", self.server.url]
        eventually(lambda: subprocess.run(words, capture_output=True, check=False).returncode == 0, 60)
        assert len(self.layout().generations) == 1
        left: Any = [self.client.xpending(key, "g") for key in self.layout().keys]
        assert sum(one["pending"] for one in left) == 0
        campaign.show("repartition", f"{self.kills} kills, {self.foreign} refusals, {self.later} schedules")


def storm_of(folder: Path, seed: int) -> int:
    """A piece with 4 to 8 to 6 to 16 partitions, or from a plain stream to 4 and 8, under load."""
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    server = (
        redis_server(folder, "--appendonly", "yes", "--appendfsync", "always")
        if seed % 3
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
def test_repartitions_in_a_storm(tmp_path: Path) -> None:
    """Repartitioning under load with kills between all steps keeps each key in order and loses nothing."""
    campaign.run("repartition", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 13), unit="entries")
