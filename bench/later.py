"""Scheduling an entry for later, compared with other libraries, each on a separate empty redis-server.

``python bench/later.py --only millstream,arq,taskiq`` schedules 4,000 one after the other in one process. It prints the
number per second, the server's processor time and the bytes of each. Libraries that are not installed are left out:
run it with the Python of another environment for those (``--only docket,bullmq``).
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

Schedule = Callable[[int], Awaitable[object]]
TEXT = "x" * 100


@contextlib.asynccontextmanager
async def millstream(url: str) -> AsyncIterator[Schedule]:
    """Schedule by ``app.publish(delay=)``."""
    from millstream import App

    async with App(url, registry=False) as app:
        yield lambda n: app.publish("jobs", {"n": n, "text": TEXT}, delay=3600)


@contextlib.asynccontextmanager
async def arq(url: str) -> AsyncIterator[Schedule]:
    """Schedule by ``enqueue_job(_defer_by=)``."""
    from arq import create_pool
    from arq.connections import RedisSettings

    pool = await create_pool(RedisSettings.from_dsn(url))
    yield lambda n: pool.enqueue_job("work", n, TEXT, _defer_by=3600)
    await pool.aclose()


@contextlib.asynccontextmanager
async def taskiq(url: str) -> AsyncIterator[Schedule]:
    """Schedule by ``schedule_by_time`` with the list source."""
    from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

    broker, source = RedisStreamBroker(url), ListRedisScheduleSource(url)

    @broker.task
    async def work(n: int, text: str) -> None: ...

    await source.startup()
    at = datetime.now(UTC) + timedelta(hours=1)
    yield lambda n: work.schedule_by_time(source, at, n, TEXT)
    await source.shutdown()


@contextlib.asynccontextmanager
async def docket(url: str) -> AsyncIterator[Schedule]:
    """Schedule by ``docket.add(when=)``."""
    from docket import Docket

    async def work(n: int, text: str) -> None: ...

    async with Docket(name="bench", url=url) as found:
        when = datetime.now(UTC) + timedelta(hours=1)
        yield lambda n: found.add(work, when=when)(n, TEXT)


@contextlib.asynccontextmanager
async def bullmq(url: str) -> AsyncIterator[Schedule]:
    """Schedule by ``queue.add(delay=)``."""
    from bullmq import Queue

    queue = Queue("bench", {"connection": url})
    yield lambda n: queue.add("work", {"n": n, "text": TEXT}, {"delay": 3_600_000})
    await queue.close()


PEERS: dict[str, Any] = {one.__name__: one for one in (millstream, arq, taskiq, docket, bullmq)}


@contextlib.contextmanager
def server() -> Any:
    """Yield the URL and a client of an empty redis-server."""
    port = 20_000 + os.getpid() % 10_000
    program = shutil.which("redis-server") or "redis-server"
    with subprocess.Popen([program, "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL) as process:
        client: Any = redis.Redis(port=port)
        while True:
            with contextlib.suppress(redis.ConnectionError):
                client.ping()
                break
            time.sleep(0.05)  # a server does not report that it listens
        try:
            yield f"redis://127.0.0.1:{port}/0", client
        finally:
            process.terminate()
            client.close()


def used(client: Any) -> tuple[float, int]:
    """Return the server's processor time in seconds and its memory in bytes."""
    cpu, memory = client.info("cpu"), client.info("memory")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"], memory["used_memory"]


async def measure(name: str, count: int) -> tuple[float, float, float]:
    """Return the number scheduled per second, the server's microseconds and the bytes of each."""
    with server() as (url, client):
        async with PEERS[name](url) as schedule:
            for n in range(100):
                await schedule(n)
            before, began = used(client), time.perf_counter()
            for n in range(count):
                await schedule(n)
            seconds, after = time.perf_counter() - began, used(client)
    return count / seconds, (after[0] - before[0]) / count * 1e6, (after[1] - before[1]) / count


def main() -> None:
    """Measure in turns and print the median of each figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default=",".join(PEERS))
    options.add_argument("--count", type=int, default=4_000)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(given.rounds):
        for name in given.only.split(","):
            try:
                found.setdefault(name, []).append(asyncio.run(measure(name, given.count)))
            except ImportError as error:
                print(f"{name} is left out: {error}")
    print("| library | scheduled a second | us of the server | bytes |\n|---|---|---|---|")
    for name, rows in found.items():
        if rows:
            rate, cpu, size = (sorted(column)[len(rows) // 2] for column in zip(*rows, strict=True))
            print(f"| {name} | {rate:,.0f} | {cpu:.0f} | {size:.0f} |")


if __name__ == "__main__":
    main()
