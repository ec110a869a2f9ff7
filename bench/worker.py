"""Worker throughput, entries a second until nothing is pending, beside what a user would pick instead.

    python bench/worker.py [--entries 50000] [--rounds 3]

Every case reads small JSON entries from the same private redis-server, counts them in the handler and acknowledges each
on success; the clock stops when the group has nothing pending and nothing left to read. The first case is a redis-py
loop written for the occasion. FastStream gets a tenth of the entries, or it would take all the time.
"""

import argparse
import asyncio
import json
import time

from pairs import compare, redis_server
from redis.asyncio import Redis

from millstream import App, StreamSub


def payload(number: int) -> bytes:
    """About 85 bytes of JSON."""
    return json.dumps(
        {"id": number, "user": f"user-{number}", "action": "click", "ts": 1700000000, "amount": 12.5}
    ).encode()


async def prepare(url: str, entries: int, field: bytes = b"data") -> None:
    """A fresh stream with a group at its beginning."""
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


async def raw(url: str, entries: int) -> float:
    """A hand-written loop."""
    await prepare(url, entries)
    client = Redis.from_url(url, socket_timeout=None)
    done = 0
    started = time.perf_counter()
    while done < entries:
        for _, rows in await client.xreadgroup("g", "c", {"orders": ">"}, count=100):
            for _, fields in rows:
                json.loads(fields[b"data"])
                done += 1
            await client.xack("orders", "g", *[entry for entry, _ in rows])
    took = time.perf_counter() - started
    await client.aclose()
    return entries / took


async def ours(url: str, entries: int, ack: str) -> float:
    """A subscriber of ours."""
    await prepare(url, entries)
    app = App(url)
    count = [0]

    @app.subscriber(StreamSub("orders", group="g"), ack=ack, concurrency=32)
    async def handle(order: dict) -> None:  # noqa: ARG001 - decoding is what is measured
        count[0] += 1

    client = Redis.from_url(url, socket_timeout=None)
    started = time.perf_counter()
    async with app.running():
        await settled(client, entries, count)
        took = time.perf_counter() - started
    await client.aclose()
    return entries / took


async def faststream(url: str, entries: int) -> float:
    """FastStream without its logger, which is its faster half."""
    from faststream.redis import RedisBroker
    from faststream.redis import StreamSub as FastStreamSub

    await prepare(url, entries)
    broker = RedisBroker(url, logger=None)
    count = [0]

    @broker.subscriber(stream=FastStreamSub("orders", group="g", consumer="c", max_records=100))
    async def handle(order: dict) -> None:  # noqa: ARG001 - decoding is what is measured
        count[0] += 1

    client = Redis.from_url(url, socket_timeout=None)
    started = time.perf_counter()
    await broker.start()
    await settled(client, entries, count)
    took = time.perf_counter() - started
    await broker.stop()
    await client.aclose()
    return entries / took


def main() -> None:
    """Run the cases in turn and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with redis_server() as url:
        compare(
            {
                "raw redis-py, COUNT 100, one XACK per 100": lambda: asyncio.run(raw(url, options.entries)),
                "millstream, ack=auto": lambda: asyncio.run(ours(url, options.entries, "auto")),
                "millstream, ack=each": lambda: asyncio.run(ours(url, options.entries, "each")),
                "FastStream, no logger": lambda: asyncio.run(faststream(url, max(options.entries // 10, 1000))),
            },
            options.rounds,
            "entries/s",
        )


if __name__ == "__main__":
    main()
