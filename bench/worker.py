"""The worker beside its alternatives: throughput, recovery, idleness, and the stop.

    python bench/worker.py [--entries 50000] [--rounds 3] [--only throughput|recovery|idle|stop]
                           [--server redis|millstream]

throughput: every case reads small JSON entries from the same private server, counts them in the handler and
acknowledges each on success; the clock stops when the group has nothing pending and nothing left to read. The first
case is a plain redis-py loop. The next two send the worker's commands with ack=auto and, of 32 lanes, with ack=each:
they show the cost of its promises without its code. FastStream gets a tenth of the entries, to limit its time.

recovery: 5,000 entries that a dead consumer left; the clock stops when none is pending.

idle: commands per second that the server counts while a worker with one subscriber has nothing to do.

stop: milliseconds from SIGTERM to a worker process until another consumer has an entry that it had read and not begun.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from pairs import SERVERS, Stopwatch, Taken, at_least_one, compare, private_server
from redis.asyncio import Redis

from millstream import App, StreamSub
from millstream.worker.settlement.fence_scripts import MOVE, MOVE_SHA

if TYPE_CHECKING:
    from collections.abc import Callable


def payload(number: int) -> bytes:
    """Return about 85 bytes of JSON."""
    return json.dumps(
        {"id": number, "user": f"user-{number}", "action": "click", "ts": 1700000000, "amount": 12.5}
    ).encode()


async def prepare(url: str, entries: int, field: bytes = b"data") -> None:
    """Create a fresh stream with a group at its beginning."""
    client = Redis.from_url(url, socket_timeout=None)
    await client.flushall()
    await client.xgroup_create("orders", "g", "0", mkstream=True)
    for start in range(0, entries, 1000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 1000, entries)):
            pipe.xadd("orders", {field: payload(number)})
        await pipe.execute()
    await client.aclose()


async def settled(client: "Redis", entries: int, count: list[int]) -> None:
    """Wait until every entry was handled and none is pending."""
    while count[0] < entries or (await client.xpending("orders", "g"))["pending"]:  # noqa: ASYNC110 - it happens elsewhere
        await asyncio.sleep(0.002)


async def raw(url: str, entries: int) -> Taken:
    """Measure a hand-written loop."""
    await prepare(url, entries)
    client = Redis.from_url(url, socket_timeout=None)
    done = 0
    watch = Stopwatch()
    while done < entries:
        for _, rows in await client.xreadgroup("g", "c", {"orders": ">"}, count=100):
            for _, fields in rows:
                json.loads(fields[b"data"])
                done += 1
            await client.xack("orders", "g", *[entry for entry, _ in rows])
    taken = watch.stop(entries)
    await client.aclose()
    return taken


async def fenced(url: str, entries: int, number: int) -> Taken:
    """Measure the same loop with the worker's commands: so many entries per read, and an ack that checks the owner."""
    await prepare(url, entries)
    client = Redis.from_url(url, socket_timeout=None)
    await client.script_load(MOVE)
    done = 0
    watch = Stopwatch()
    while done < entries:
        for _, rows in await client.xreadgroup("g", "c", {"orders": ">"}, count=number):
            for _, fields in rows:
                json.loads(fields[b"data"])
                done += 1
            ids = [entry for entry, _ in rows]
            words = ("g", "c", 1, ids[0], ids[-1], "", 0, 2, "XACK", "g", 0, len(ids), *ids)
            await client.evalsha(MOVE_SHA, 1, "orders", *words)
    taken = watch.stop(entries)
    await client.aclose()
    return taken


async def ours(url: str, entries: int, ack: str) -> Taken:
    """Measure a Millstream subscriber."""
    await prepare(url, entries)
    return await _until_settled(url, entries, ack)


async def _until_settled(url: str, entries: int, ack: str) -> Taken:
    app = App(url)
    count = [0]

    @app.subscriber(StreamSub("orders", group="g"), ack=ack, concurrency=32)
    async def handle(order: dict) -> None:  # noqa: ARG001 - decoding is what is measured
        count[0] += 1

    client = Redis.from_url(url, socket_timeout=None)
    watch = Stopwatch()
    async with app.running():
        await settled(client, entries, count)
        taken = watch.stop(entries)
    await client.aclose()
    return taken


async def faststream(url: str, entries: int) -> Taken:
    """Measure FastStream without its logger, which makes it twice as fast."""
    from faststream.redis import StreamSub as FastStreamSub

    await prepare(url, entries)
    return await _faststream(url, entries, FastStreamSub("orders", group="g", consumer="c", max_records=100))


async def _faststream(url: str, entries: int, sub: Any) -> Taken:
    from faststream.redis import RedisBroker

    broker = RedisBroker(url, logger=None)
    count = [0]

    @broker.subscriber(stream=sub)
    async def handle(order: dict) -> None:  # noqa: ARG001 - decoding is what is measured
        count[0] += 1

    client = Redis.from_url(url, socket_timeout=None)
    watch = Stopwatch()
    await broker.start()
    await settled(client, entries, count)
    taken = watch.stop(entries)
    await broker.stop()
    await client.aclose()
    return taken


async def leave_behind(url: str, entries: int, field: bytes = b"data") -> None:
    """Leave entries that a consumer read an hour ago, before it died."""
    await prepare(url, entries, field)
    client = Redis.from_url(url, socket_timeout=None)
    while rows := await client.xreadgroup("g", "ghost", {"orders": ">"}, count=1000):
        ids = [entry for entry, _ in rows[0][1]]
        await client.xclaim("orders", "g", "ghost", 0, ids, idle=3_600_000, justid=True)
    await client.aclose()


async def our_recovery(url: str, entries: int, ack: str) -> Taken:
    """Measure a Millstream subscriber that claims them."""
    await leave_behind(url, entries)
    return await _until_settled(url, entries, ack)


async def faststream_recovery(url: str, entries: int) -> Taken:
    """Measure FastStream's claiming subscriber."""
    from faststream.redis import StreamSub as FastStreamSub

    await leave_behind(url, entries)
    return await _faststream(url, entries, FastStreamSub("orders", group="g", consumer="c", min_idle_time=60_000))


async def commands(url: str, seconds: float) -> float:
    """Return the commands per second, without the measuring ones."""
    client = Redis.from_url(url, socket_timeout=None)
    await asyncio.sleep(2)  # what begins is no idleness
    before = (await client.info("stats"))["total_commands_processed"]
    await asyncio.sleep(seconds)
    after = (await client.info("stats"))["total_commands_processed"]
    await client.aclose()
    return (after - before - 1) / seconds


async def our_idleness(url: str) -> float:
    """Measure one idle Millstream subscriber."""
    await prepare(url, 0)
    app = App(url)

    @app.subscriber(StreamSub("orders", group="g"))
    async def handle(order: dict) -> None: ...

    async with app.running():
        return await commands(url, 30)


async def faststream_idleness(url: str) -> float:
    """Measure one idle FastStream subscriber, as in its documentation."""
    from faststream.redis import RedisBroker
    from faststream.redis import StreamSub as FastStreamSub

    await prepare(url, 0)
    broker = RedisBroker(url, logger=None)

    @broker.subscriber(stream=FastStreamSub("orders", group="g", consumer="c"))
    async def handle(order: dict) -> None: ...

    await broker.start()
    try:
        return await commands(url, 30)
    finally:
        await broker.stop()


STOPPED = """
import asyncio
from millstream import App, StreamSub
app = App()

@app.subscriber(StreamSub("orders", group="g", max_records=100, min_idle_time=3_600_000), concurrency=1)
async def handle(order: dict) -> None:
    await asyncio.sleep(3600)
"""


def our_stop(url: str) -> float:
    """Measure the milliseconds from SIGTERM until another consumer has the entries not begun, while one still runs."""
    asyncio.run(prepare(url, 100))
    client = redis.Redis.from_url(url)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stopped.py").write_text(STOPPED)
        words = [sys.executable, "-m", "millstream.worker.child", "stopped:app"]
        environment = {**os.environ, "MILLSTREAM_URL": url, "MILLSTREAM_GRACE": "1", "MILLSTREAM_LOG_LEVEL": "ERROR"}
        worker = subprocess.Popen(words, cwd=folder, env=environment)
        while client.xpending("orders", "g")["pending"] < 50:
            time.sleep(0.02)  # until it has its hands full
        time.sleep(0.5)  # and only waits: the stop is to be measured, not its start
        began = time.perf_counter()
        worker.terminate()
        while not client.xautoclaim("orders", "g", "other", 3_000_000, count=1)[1]:
            pass
        took = time.perf_counter() - began
        worker.wait()
    client.close()
    return 1000 * took


def main() -> None:
    """Run the cases in turn and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=at_least_one, default=50_000)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--server", choices=SERVERS, default="redis", help="which server all cases use")
    parser.add_argument("--only", choices=("throughput", "recovery", "idle", "stop"))
    options = parser.parse_args()
    few = max(options.entries // 10, 1000)
    with private_server(options.server) as url:
        parts: dict[str, tuple[dict[str, Callable[[], Taken]], str]] = {
            "throughput": (
                {
                    "raw redis-py, COUNT 100, one XACK per 100": lambda: asyncio.run(raw(url, options.entries)),
                    "the same, COUNT 128, acks that look whose": lambda: asyncio.run(fenced(url, options.entries, 128)),
                    "the same, COUNT 32, acks that look whose": lambda: asyncio.run(fenced(url, options.entries, 32)),
                    "millstream, ack=auto": lambda: asyncio.run(ours(url, options.entries, "auto")),
                    "millstream, ack=each": lambda: asyncio.run(ours(url, options.entries, "each")),
                    "FastStream, no logger": lambda: asyncio.run(faststream(url, few)),
                },
                "entries/s",
            ),
            "recovery": (
                {
                    "FastStream, min_idle_time=": lambda: asyncio.run(faststream_recovery(url, 5_000)),
                    "millstream, ack=auto": lambda: asyncio.run(our_recovery(url, 5_000, "auto")),
                    "millstream, ack=each": lambda: asyncio.run(our_recovery(url, 5_000, "each")),
                },
                "entries/s",
            ),
            "idle": (
                {
                    "FastStream": lambda: Taken(asyncio.run(faststream_idleness(url))),
                    "millstream": lambda: Taken(asyncio.run(our_idleness(url))),
                },
                "commands/s",
            ),
            "stop": ({"millstream": lambda: Taken(our_stop(url))}, "ms"),
        }
        for name, (cases, unit) in parts.items():
            if options.only in (None, name):
                compare(cases, options.rounds, unit)


if __name__ == "__main__":
    main()
