"""The server beside redis-server: the same client, the same commands, one after the other in each round.

    python bench/server.py [--entries 100000] [--rounds 3]

The first cases keep nothing on disk. In those of 50 clients each client awaits its reply before it sends again; with
fsync every reply waits for the disk (``appendfsync always`` there, ``--fsync always`` here). The client is redis-py,
the same for both, and takes a good part of the time: these are ratios a user of redis-py sees, not ratios of the
servers alone.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

import redis
import redis.asyncio
from pairs import compare, millstream_server, redis_server

FIELDS = {"user": "u-12345", "action": "click", "amount": "12.50", "page": "/index", "country": "de"}


def fill(client: redis.Redis, entries: int) -> None:
    """A stream of small entries with a group at its beginning."""
    client.flushall()
    client.xgroup_create("s", "g", "0", mkstream=True)
    for start in range(0, entries, 1000):
        pipe = client.pipeline(transaction=False)
        for _ in range(start, min(start + 1000, entries)):
            pipe.xadd("s", FIELDS)
        pipe.execute()


def add_pipelined(client: redis.Redis, entries: int) -> float:
    """XADD, a hundred at a time."""
    client.flushall()
    started = time.perf_counter()
    for _ in range(entries // 100):
        pipe = client.pipeline(transaction=False)
        for _ in range(100):
            pipe.xadd("s", FIELDS)
        pipe.execute()
    return entries / (time.perf_counter() - started)


def add_singly(client: redis.Redis, entries: int) -> float:
    """XADD, each reply awaited."""
    client.flushall()
    count = entries // 10
    started = time.perf_counter()
    for _ in range(count):
        client.xadd("s", FIELDS)
    return count / (time.perf_counter() - started)


def read_range(client: redis.Redis, entries: int) -> float:
    """XRANGE COUNT 100 through the whole stream."""
    fill(client, entries)
    last, seen = "-", 0
    started = time.perf_counter()
    while rows := client.xrange("s", last, "+", count=100):
        seen += len(rows)
        last = b"(" + rows[-1][0]
    assert seen == entries, seen
    return entries / (time.perf_counter() - started)


def read_group(client: redis.Redis, entries: int) -> float:
    """XREADGROUP COUNT 500 and one XACK for each reply."""
    fill(client, entries)
    started = time.perf_counter()
    seen = 0
    while seen < entries:
        for _, rows in client.xreadgroup("g", "c", {"s": ">"}, count=500):
            client.xack("s", "g", *[row[0] for row in rows])
            seen += len(rows)
    return entries / (time.perf_counter() - started)


CLIENTS = 50


def add_from_many(client: redis.Redis, entries: int) -> float:
    """XADD by 50 asyncio clients at once, each reply awaited."""
    client.flushall()
    each = entries // 10 // CLIENTS
    took = asyncio.run(_add_from_many(client.connection_pool.connection_kwargs["port"], each))
    assert client.xlen("s") == each * CLIENTS
    return each * CLIENTS / took


async def _add_from_many(port: int, each: int) -> float:
    async def one() -> None:
        async with redis.asyncio.Redis(port=port, socket_timeout=None) as client:
            for _ in range(each):
                await client.xadd("s", FIELDS)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return time.perf_counter() - started


CASES: dict[str, Callable[[redis.Redis, int], float]] = {
    "XADD, pipelines of 100": add_pipelined,
    "XADD, one by one": add_singly,
    "XRANGE COUNT 100": read_range,
    "XREADGROUP COUNT 500 + XACK": read_group,
    "XADD, 50 clients": add_from_many,
}
DURABLE: dict[str, Callable[[redis.Redis, int], float]] = {
    "fsync always, XADD, pipelines of 100": add_pipelined,
    "fsync always, XADD, one by one": add_singly,
    "fsync always, XADD, 50 clients": add_from_many,
}


def main() -> None:
    """Run each case on both servers in turn and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for fsync, cases in ((False, CASES), (True, DURABLE)):
        with ExitStack() as stack:
            started = {"redis-server": redis_server(fsync=fsync), "millstream": millstream_server(fsync=fsync)}
            servers = {
                name: redis.Redis.from_url(stack.enter_context(server), socket_timeout=None)
                for name, server in started.items()
            }
            for name, case in cases.items():
                compare(
                    {
                        f"{name}: {server}": lambda c=client, f=case: f(c, options.entries)
                        for server, client in servers.items()
                    },
                    options.rounds,
                    "entries/s",
                )


if __name__ == "__main__":
    main()
