"""Redis's Sentinels watch three of ours under load, the primary is killed, and what WAIT confirmed is handled."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from millstream import App, StreamSub
from millstream.client.connect import sync_client
from millstream.migrate.compare_keys import compare_servers
from support.campaign import LIMIT, run
from support.needs import program
from support.sentinels import Watched
from support.servers import millstream_server
from support.waiting import aeventually

FAILOVERS = 12


class Producer:
    """Adds numbers to the stream ``s``, a few at a time, until it is told to stop.

    Attributes:
        confirmed: numbers of which WAIT said that a replica holds them.
        sent: how many were added or tried.
        failed: how often the server did not take them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed: set[int] = set()
        self.sent = self.failed = 0
        self.stopped = False

    def run(self) -> None:
        """Go on through errors, each time by the Sentinels' word."""
        while not self.stopped:
            with sync_client(self._url, socket_timeout=5) as client:
                try:
                    while not self.stopped:
                        self._add(client.pipeline(transaction=False))
                except RedisError:
                    self.failed += 1

    def _add(self, pipeline: Pipeline) -> None:
        numbers = range(self.sent, self.sent + 5)
        self.sent += 5
        for number in numbers:
            pipeline.xadd("s", {"x": number})
        pipeline.execute_command("WAIT", 1, 1000)
        if int(pipeline.execute()[-1]) >= 1:
            self.confirmed |= set(numbers)


async def one_failover(seed: int, folder: Path) -> int:
    """Kill the primary under load; how many entries were confirmed, all of which were handled."""
    chance = random.Random(seed)
    with Watched(folder, millstream_server, replicas=2) as watched:
        app, seen = App(watched.url), set()

        @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000))
        async def handle(x: int) -> None:
            seen.add(x)

        producer = Producer(watched.url)
        async with app.running():
            task = asyncio.create_task(asyncio.to_thread(producer.run))
            try:
                await kill_and_return(watched, producer, chance.randrange(50, 500))
            finally:
                producer.stopped = True
                await task
            await aeventually(lambda: producer.confirmed <= seen, 60, what="all that was confirmed is handled")
            await aeventually(lambda: pending(watched.url) == 0, 60, what="nothing is pending")
        await asyncio.to_thread(compare_all, watched)
    return len(producer.confirmed)


async def kill_and_return(watched: Watched, producer: Producer, count: int) -> None:
    """Kill the primary once so many entries are confirmed; another leads, and the killed one follows it."""
    await aeventually(lambda: len(producer.confirmed) > count, what="entries are added")
    watched.master.kill()
    before = len(producer.confirmed)
    await aeventually(lambda: watched.chosen() in watched.servers[1:], 60, what="another is the primary")
    await aeventually(lambda: len(producer.confirmed) > before + 100, 60, what="it takes entries")
    await asyncio.to_thread(watched.master.start)
    await aeventually(lambda: follows(watched), 90, what="the former primary follows")


def follows(watched: Watched) -> bool:
    """Whether all but the chosen one follow it."""
    chosen = watched.chosen()
    for one in watched.servers:
        if one is not chosen:
            try:
                with one.client(decode_responses=True) as client:
                    found = client.info("replication")
            except RedisConnectionError:  # a Sentinel that changes a server's role cuts its clients off
                return False
            if found["role"] != "slave" or found["master_link_status"] != "up":
                return False
    return True


def compare_all(watched: Watched) -> None:
    """The replicas hold what the primary holds, once it is at rest."""
    chosen = watched.chosen()
    assert chosen is not None
    with chosen.client() as client:
        assert client.wait(2, 20_000) == 2
    for one in watched.servers:
        if one is not chosen:
            assert compare_servers(chosen.url, one.url, lambda *_: None).different == []


def pending(url: str) -> int:
    """Pending entries of the group."""
    with sync_client(url) as client:
        return int(client.xpending("s", "g")["pending"])


def piece(seed: int) -> int:
    """One cluster, one failover."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(one_failover(seed, Path(folder)))


@pytest.mark.long
@pytest.mark.process
@pytest.mark.realserver
@pytest.mark.timeout(LIMIT)
def test_failovers_by_sentinels_lose_nothing_confirmed() -> None:
    """What WAIT 1 confirmed is handled by workers that found the new primary, and the former one follows."""
    program("redis-server")
    run("repl-sentinel", piece, range(FAILOVERS), unit="confirmed entries")
