"""Redis's Sentinels watch three Millstreams under load, the primary fails, and confirmed entries are handled.

A write counts once both replicas have confirmed it, since Sentinels on a busy machine also replace a slow primary.
Until the other replica follows the new primary, it confirms the writes of the former one.
"""

import asyncio
import random
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

import millstream.spark
from millstream import App, StreamSub
from millstream.client.connect import sync_client
from millstream.migrate.compare_keys import compare_servers
from support.campaign import LIMIT, run
from support.needs import program
from support.sentinels import Watched
from support.servers import ServerProcess, millstream_server
from support.waiting import aeventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

FAILOVERS = 50
FAULTS = ("killed", "stopped", "full disk")
REPLICAS = 2
AHEAD = 300
"""Number of confirmed entries not yet handled above which nothing is added."""


class Producer:
    """Adds numbers to the stream ``s``, a few at a time, until stopped.

    Args:
        url: of the Sentinels.
        is_ahead: whether workers have enough to do for now.
        waits: whether WAIT must have counted all replicas; else the reply confirms, as with ``sync-replicas``.

    Attributes:
        confirmed: numbers that all replicas have, according to the server.
        sent: the number of numbers added or tried.
        failed: how often the server refused.
    """

    def __init__(self, url: str, is_ahead: Callable[[], bool], *, waits: bool) -> None:
        self._url, self._is_ahead, self._waits = url, is_ahead, waits
        self.confirmed: set[int] = set()
        self.sent = self.failed = 0
        self._stop = threading.Event()

    def stop(self) -> None:
        """Stop."""
        self._stop.set()

    def run(self) -> None:
        """Run through errors, each time with the primary that the Sentinels name."""
        while not self._stop.is_set():
            with sync_client(self._url, socket_timeout=5) as client:
                try:
                    while not self._stop.is_set():
                        if self._is_ahead():
                            self._stop.wait(0.02)
                        else:
                            self._add(client.pipeline(transaction=False))
                except RedisError:
                    self.failed += 1

    def _add(self, pipeline: Pipeline) -> None:
        numbers = range(self.sent, self.sent + 5)
        self.sent += 5
        for number in numbers:
            pipeline.xadd("s", {"x": number})
        if self._waits:
            pipeline.execute_command("WAIT", REPLICAS, 1000)
        last = pipeline.execute()[-1]
        if last == REPLICAS or not self._waits:
            self.confirmed |= set(numbers)


class Query:
    """A streaming query of Spark over the stream ``s``, restarted from its checkpoint when it fails.

    Args:
        url: of the Sentinels.
        folder: for its checkpoints.
        may_go_back: whether the stream may lose entries already shown; then a new query reads it afresh.

    Attributes:
        restarts: the number of restarts.
    """

    def __init__(self, url: str, folder: Path, *, may_go_back: bool) -> None:
        self._url, self._folder, self._may_go_back = url, folder, may_go_back
        self._checkpoints = 0
        self._batches: dict[int, list[tuple[str, int]]] = {}  # a batch that is run again replaces what it was
        self._query: StreamingQuery | None = None
        self.restarts = 0

    def start(self) -> None:
        """Start, or continue from the checkpoint."""
        source = millstream.spark.session().readStream.format("millstream").option("url", self._url)
        rows = source.option("stream", "s").option("startingOffsets", "earliest").load()
        writer = rows.selectExpr("id", "int(fields['x']) x").writeStream.foreachBatch(self._keep)
        self._query = writer.option("checkpointLocation", str(self._folder / f"c{self._checkpoints}")).start()

    def _keep(self, rows: "DataFrame", batch: int) -> None:
        self._batches[batch] = [(row.id, row.x) for row in rows.collect()]

    def seen(self) -> set[int]:
        """Return the numbers of all batches; restart a query that has failed."""
        assert self._query is not None
        if failure := self._query.exception():
            self.restarts += 1
            if "went back" in str(failure) or "before it was" in str(failure):
                assert self._may_go_back, failure
                self._checkpoints += 1
                self._batches.clear()
            self.start()
        return {number for batch in list(self._batches.values()) for _, number in batch}

    def stop(self) -> None:
        """Stop, and check that each entry was in one batch."""
        assert self._query is not None
        self._query.stop()
        ids = [ident for batch in self._batches.values() for ident, _ in batch]
        assert len(ids) == len(set(ids)), "an entry is in two batches"


async def one_failover(seed: int, folder: Path) -> int:
    """Fail the primary under load and check that all confirmed entries are handled; return 1."""
    chance = random.Random(seed)
    fault, waits = FAULTS[seed % len(FAULTS)], chance.random() < 0.5

    def make(folder: Path) -> ServerProcess:
        # Not by CONFIG SET: a killed primary that comes back takes writes until Sentinels have it follow
        return millstream_server(folder, "--set", f"sync-replicas={0 if waits else REPLICAS}")

    with Watched(folder, make, replicas=REPLICAS, silence=2_000) as watched:
        app, seen = App(watched.url), set()

        # Longer than a busy machine holds up a worker: one whose entries are claimed meanwhile runs each alone
        @app.subscriber(StreamSub("s", group="g", min_idle_time=5_000))
        async def handle(x: int) -> None:
            seen.add(x)

        producer = Producer(watched.url, lambda: len(producer.confirmed) > len(seen) + AHEAD, waits=waits)
        query = Query(watched.url, folder, may_go_back=waits)
        async with app.running():
            task = asyncio.create_task(asyncio.to_thread(producer.run))
            try:
                await aeventually(lambda: len(producer.confirmed) > 50, what="entries are added")
                await asyncio.to_thread(query.start)
                await fail_and_return(watched, producer, fault, chance.randrange(50, 500))
            finally:
                producer.stop()
                await task
            lost = producer.confirmed - held(watched.url)
            assert not lost, f"{len(lost)} of {len(producer.confirmed)}: {sorted(lost)[:9]}\n{told(watched)}"
            await aeventually(lambda: producer.confirmed <= seen, 60, what="all that was confirmed is handled")
            await aeventually(lambda: pending(watched.url) == 0, 60, what="nothing is pending")
            await aeventually(lambda: producer.confirmed <= query.seen(), 90, what="Spark has all that was confirmed")
        await asyncio.to_thread(query.stop)
        await asyncio.to_thread(compare_all, watched)
    return 1


async def fail_and_return(watched: Watched, producer: Producer, fault: str, count: int) -> None:
    """Fail the primary after ``count`` more confirmed entries; wait until another leads and the failed one follows."""
    await more(producer, count)
    failed = watched.chosen()
    assert failed is not None
    begin_fault(failed, fault)
    await aeventually(lambda: watched.chosen() not in (failed, None), 60, what="another is the primary")
    await asyncio.to_thread(end_fault, failed, fault)
    await aeventually(lambda: follows(watched), 90, what="the former primary follows")
    await more(producer, 100)


async def more(producer: Producer, count: int) -> None:
    """Wait until ``count`` more entries are confirmed."""
    wanted = len(producer.confirmed) + count
    await aeventually(lambda: len(producer.confirmed) > wanted, 90, what="entries are confirmed")


def begin_fault(server: ServerProcess, fault: str) -> None:
    """Make the primary fail."""
    if fault == "stopped":
        server.send(signal.SIGSTOP)
    elif fault == "full disk":
        with server.client() as client:
            client.config_set("disk-free-floor", 2**60)
    else:
        server.kill()


def end_fault(server: ServerProcess, fault: str) -> None:
    """Repair the fault."""
    if fault == "stopped":
        server.send(signal.SIGCONT)
    elif fault == "full disk":
        with server.client() as client:
            client.config_set("disk-free-floor", 0)
    else:
        server.start()


def follows(watched: Watched) -> bool:
    """Return True if all but the chosen one follow it."""
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
    """Wait until the primary is at rest, and check that the replicas have its data."""
    chosen = watched.chosen()
    assert chosen is not None
    with chosen.client() as client:
        assert client.wait(2, 20_000) == 2
    for one in watched.servers:
        if one is not chosen:
            assert compare_servers(chosen.url, one.url, lambda *_: None).different == []


def told(watched: Watched) -> str:
    """Return the logs of Sentinels and servers."""
    logs = (server.log for server in (*watched.sentinels, *watched.servers))
    return "\n".join(f"{log}\n{log.read_text(errors='replace')[-5000:]}" for log in logs)


def held(url: str) -> set[int]:
    """Return the numbers of the entries on the primary."""
    with sync_client(url) as client:
        return {int(fields[b"x"]) for _, fields in client.xrange("s")}


def pending(url: str) -> int:
    """Return the number of pending entries of the group."""
    with sync_client(url) as client:
        return int(client.xpending("s", "g")["pending"])


def piece(seed: int) -> int:
    """Run one failover of one cluster."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(one_failover(seed, Path(folder)))


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(LIMIT)
def test_failovers_by_sentinels_lose_nothing_confirmed() -> None:
    """After a failover by Sentinels, workers handle every write that both replicas confirmed.

    The failed primary follows the new one.
    """
    program("redis-server")
    run("repl-sentinel", piece, range(FAILOVERS), version=4, processes=2, unit="failovers")
