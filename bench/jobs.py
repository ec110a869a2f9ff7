"""Jobs and partitions: the cost of a limit, request and reply, keyed handling, and the fairness of a limit by key.

    python bench/jobs.py [--entries 20000] [--rounds 3] [--server redis|millstream]
                         [--only limit|keyed|reply|fair|nodes]

limit and keyed: the clock starts once the workers own their streams, and stops when the last entry is acknowledged. The
first figure is the processor time of all workers, the second that of the server.

limit: the worker without a limit, and with a limit by handler that refuses nothing. The goal is a ratio of 0.9.

keyed: a plain stream, the same with ``key=`` in one process, and 16 partitions in one process and in four. The goal is
0.85 of the first for partitions in one process.

reply: ``app.request`` one after the other, with the worker in the same process. The goal is a median below 3 ms.

fair: a tenant's 40 entries under ``Limit("10/s", key=)``, alone and then while ``--flood`` entries of another tenant
wait for their turn. The time may be at most 1.2 of that alone; a larger ratio ends the program with exit code 1.
Entries behind the flood in the stream wait until the flood is read; this time is printed as well.

nodes: a Redis Cluster of three nodes, with one stream, 16 and 64 partitions. The figures are the processor time of the
busiest node for an entry added, and for an entry read and acknowledged. The ratio of both to one stream is the room:
how many times the entries fit before a node is full. The goal is 2.
"""

import argparse
import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import redis
from pairs import SERVERS, Processor, Taken, at_least_one, compare, free_port, private_server, ratio, running, table

from millstream import App, Limit, StreamSub
from millstream.client.partitions.lease import owner_key

KEYS, PARTS, BOUND = 500, 16, 1.2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limit": {"limit": Limit("1000000/s")},
    "key": {"key": "customer"},
    "partitions": {},
}


def app_of(url: str, case: str) -> App:
    """Return an app whose handler only lets other tasks run."""
    app = App(url, registry=False)

    # Workers stand still while entries are published, and are to own their partitions afterwards
    @app.subscriber(StreamSub("orders", group="g", min_idle_time=600_000), concurrency=32, **OPTIONS[case])
    async def handle(customer: str, n: int) -> None: ...

    return app


async def publish(url: str, entries: int, stream: str = "orders") -> None:
    """Add the entries."""
    async with App(url, registry=False) as app:
        for start in range(0, entries, 1_000):
            rows = [{"customer": f"c{n % KEYS}", "n": n} for n in range(start, min(start + 1_000, entries))]
            await app.publish_batch(stream, rows)


async def empty(url: str, case: str) -> None:
    """Prepare an emptied server with one entry in each stream."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
    async with App(url, registry=False) as app:
        if case == "partitions":
            await app.partition("orders", PARTS, by="customer")
    await publish(url, KEYS)


def are_done(client: Any, keys: list[str], entries: int) -> bool:
    """Return True once each entry is acknowledged, by one round trip for all streams."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.xinfo_groups(key)
        try:
            rows = [row for found in pipe.execute() for row in found]
        except redis.ResponseError:  # No worker has made the stream yet
            return False
    return sum(row["entries-read"] or 0 for row in rows) == entries and not any(row["pending"] for row in rows)


def are_divided(client: Any, keys: list[str], processes: int) -> bool:
    """Return True once each process owns its share of the partitions."""
    owners = client.mget([owner_key(key, "g") for key in keys])
    found = Counter(owner.rpartition(b":")[0] for owner in owners if owner)
    return len(found) == processes and set(found.values()) == {len(keys) // processes}


def handled(url: str, entries: int, case: str, processes: int = 1) -> Taken:
    """Return the rate and the processor time of workers that own their streams, until all is acknowledged."""
    partitioned = case == "partitions"
    keys = [f"orders{{{at}}}" for at in range(PARTS)] if partitioned else ["orders"]
    asyncio.run(empty(url, case))
    with redis.Redis.from_url(url) as client, workers(url, case, processes) as found:
        until(lambda: are_done(client, keys, KEYS))
        until(lambda: not partitioned or are_divided(client, keys, processes))
        signal_all(found, signal.SIGSTOP)
        asyncio.run(publish(url, entries))
        watch, began = Processor(), time.perf_counter()
        signal_all(found, signal.SIGCONT)
        until(lambda: are_done(client, keys, KEYS + entries))
        seconds, spent = time.perf_counter() - began, watch.since(entries)
        return Taken(entries / seconds, spent.pop("python"), sum(spent.values()))


def until(done: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not done():
        time.sleep(0.02)


def signal_all(found: list["subprocess.Popen[bytes]"], number: int) -> None:
    """Send a signal to each process."""
    for one in found:
        one.send_signal(number)


@contextlib.contextmanager
def workers(url: str, case: str, processes: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Yield workers in separate processes."""
    words = [sys.executable, __file__, "--work", url, "--case", case]
    found = [subprocess.Popen(words) for _ in range(processes)]
    try:
        yield found
    finally:
        for one in found:
            one.kill()
            one.wait()


async def serve(url: str, case: str) -> None:
    """Run one of the worker processes."""
    async with app_of(url, case).running():
        await asyncio.Event().wait()


async def replies(url: str, count: int) -> list[float]:
    """Return the milliseconds of each request."""
    app, found = App(url, registry=False), list[float]()

    @app.subscriber(StreamSub("prices", group="g"))
    async def price(sku: int) -> int:
        return sku + 1

    async with app.running():
        for sku in range(count + 20):
            began = time.perf_counter()
            assert await app.request("prices", {"sku": sku}) == sku + 1
            found.append((time.perf_counter() - began) * 1000)
    return sorted(found[20:])


async def fairness(url: str, flood: int) -> tuple[float, float, float]:
    """Return the seconds of a tenant alone, of reading another one's flood, and of a tenant while that waits."""
    app, done = App(url, registry=False), dict[str, int]()
    client: Any = redis.Redis.from_url(url)

    @app.subscriber(StreamSub("calls", group="g"), concurrency=32, limit=Limit("10/s", burst=2, key="tenant"))
    async def call(tenant: str) -> None:
        done[tenant] = done.get(tenant, 0) + 1

    async def seconds(tenant: str) -> float:
        began = time.perf_counter()
        await app.publish_batch("calls", [{"tenant": tenant}] * 40)
        while done.get(tenant, 0) < 40:  # noqa: ASYNC110 - the handler is in the same loop
            await asyncio.sleep(0.01)
        return time.perf_counter() - began

    async with app.running():
        alone = await seconds("alone")
        began = time.perf_counter()
        for _ in range(0, flood, 1_000):
            await app.publish_batch("calls", [{"tenant": "flood"}] * 1_000)
        while client.xinfo_groups("calls")[0]["lag"]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        return alone, time.perf_counter() - began, await seconds("beside")


@contextlib.contextmanager
def three_nodes() -> Iterator[list[int]]:
    """Yield the ports of an empty cluster of three nodes without files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        for port in ports:
            words = ["--port", str(port), "--cluster-port", str(free_port()), "--save", "", "--dir", folder]
            words += ["--cluster-enabled", "yes", "--cluster-config-file", f"{port}.conf"]
            stack.enter_context(running(["redis-server", *words], port))
        create = ["redis-cli", "--cluster", "create", *(f"127.0.0.1:{port}" for port in ports), "--cluster-yes"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        yield ports


def spent(ports: list[int]) -> list[float]:
    """Return the seconds of processor time of each node."""
    found = []
    for port in ports:
        with redis.Redis(port=port) as client:
            cpu = client.info("cpu")
            found.append(cpu["used_cpu_user"] + cpu["used_cpu_sys"])
    return found


async def busiest(ports: list[int], stream: str, parts: int, entries: int) -> tuple[float, float]:
    """Return the busiest node's microseconds for an entry added, and for one read and acknowledged.

    A run with few entries is taken off, since a process that starts and ends takes and gives up its partitions.
    """
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    app, left = App(url, registry=False), 0

    @app.subscriber(StreamSub(stream, group="g"), concurrency=32)
    async def handle() -> None:
        nonlocal left
        left -= 1

    async def taken(number: int) -> list[list[float]]:
        nonlocal left
        left, times = number, [spent(ports)]
        await publish(url, number, stream)
        times.append(spent(ports))
        async with app.running():
            while left > 0:  # noqa: ASYNC110 - the handler is in the same loop
                await asyncio.sleep(0.02)
        times.append(spent(ports))
        return [[b - a for a, b in zip(*two, strict=True)] for two in (times[:2], times[1:])]

    if parts > 1:
        await app.partition(stream, parts, by="customer")
    await taken(KEYS)
    few, many = await taken(KEYS), await taken(KEYS + entries)
    added, read = (max(b - a for a, b in zip(*two, strict=True)) / entries * 1e6 for two in zip(few, many, strict=True))
    return added, read


def nodes(rounds: int, entries: int) -> None:
    """Print the busiest node's processor time for each case."""
    cases = {"one stream": 1, "16 partitions": 16, "64 partitions": 64}
    runs: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    with three_nodes() as ports:
        for number in range(rounds):
            for case, parts in cases.items():
                stream = f"{{one{number}}}" if parts == 1 else f"of{parts}-{number}"
                runs[case].append(asyncio.run(busiest(ports, stream, parts, entries)))
    rows, first = [], [sum(one) for one in runs["one stream"]]
    for case, found in runs.items():
        figures = [f"{statistics.median(column):.2f}" for column in zip(*found, strict=True)]
        rows.append([case, *figures, ratio(first, [sum(one) for one in found])])
    table(["case", "us to add", "us to read and acknowledge", "room"], rows)


def main() -> None:
    """Run the chosen measurements."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--entries", type=at_least_one, default=20_000)
    options.add_argument("--rounds", type=at_least_one, default=3)
    options.add_argument("--flood", type=at_least_one, default=100_000)
    options.add_argument("--only", choices=("limit", "keyed", "reply", "fair", "nodes"))
    options.add_argument("--server", choices=SERVERS, default="redis")
    options.add_argument("--work", help=argparse.SUPPRESS)
    options.add_argument("--case", choices=OPTIONS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.work:
        asyncio.run(serve(given.work, given.case))
        return
    if given.only == "nodes":
        nodes(given.rounds, given.entries)
        return
    wanted = [given.only] if given.only else ["limit", "keyed", "reply", "fair"]
    cases: dict[str, dict[str, Callable[[str], Taken]]] = {
        "limit": {
            "no limit": lambda url: handled(url, given.entries, "plain"),
            "a limit that refuses nothing": lambda url: handled(url, given.entries, "limit"),
        },
        "keyed": {
            "plain stream": lambda url: handled(url, given.entries, "plain"),
            "key=, one process": lambda url: handled(url, given.entries, "key"),
            "16 partitions, one process": lambda url: handled(url, given.entries, "partitions"),
            "16 partitions, four processes": lambda url: handled(url, given.entries, "partitions", 4),
        },
    }
    with private_server(given.server) as url:
        for name in wanted:
            if name in cases:
                bound = {case: (lambda run=run: run(url)) for case, run in cases[name].items()}
                compare(bound, given.rounds, "entries a second")
            elif name == "reply":
                found = asyncio.run(replies(url, 500))
                print(f"request and reply: p50 {statistics.median(found):.2f} ms, p99 {found[-5]:.2f} ms")
            else:
                alone, read, beside = asyncio.run(fairness(url, given.flood))
                slowed = beside / alone
                print(f"the flood was published and read in {read:.1f} s")
                print(f"a tenant took {alone:.2f} s alone and {beside:.2f} s while it waits: {slowed:.2f}")
                if slowed > BOUND:
                    sys.exit(f"A flood slows another tenant down: {slowed:.2f} is above {BOUND}.")


if __name__ == "__main__":
    main()
