"""The engine in the caller's process beside redis-py and redis-server: a cycle of XADD, XREADGROUP COUNT 1 and XACK.

Each client is a separate process, ``python -m bench.server.in_process URL WAY CYCLES``, for a separate processor time;
the server's processor time is added to it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.server.servers import MEMORY, NATIVE, PYTHON, REDIS, Server, names, started
from bench.server.turns import Effort

FIELDS = {"item": "tea", "amount": "3", "city": "Oslo"}
WAYS = {"redis-py": "sync", "redis-py, asyncio": "async", "without redis-py": "direct"}
"""Ways in which a program uses the store, by their names on the page."""
STORES = {MEMORY: "memory://", "always": "file://{}"}


# ---------------------------------------------------------------------- one client


def cycle(client: Any, cycles: int) -> None:
    """Run cycles with a redis-py client."""
    for _ in range(cycles):
        client.xadd("s", FIELDS)
        ((_, rows),) = client.xreadgroup("g", "c", {"s": ">"}, count=1)
        client.xack("s", "g", rows[0][0])


async def cycle_async(client: Any, cycles: int) -> None:
    """Run cycles with a redis-py asyncio client."""
    for _ in range(cycles):
        await client.xadd("s", FIELDS)
        ((_, rows),) = await client.xreadgroup("g", "c", {"s": ">"}, count=1)
        await client.xack("s", "g", rows[0][0])


def cycle_direct(store: Any, cycles: int) -> None:
    """Run cycles with a store."""
    for _ in range(cycles):
        store.xadd("s", FIELDS)
        ((_, rows),) = store.xreadgroup("g", "c", {"s": ">"}, count=1).items()
        store.xack("s", "g", rows[0][0])


def run(url: str, way: str, cycles: int) -> dict[str, float]:
    """Return the seconds of so many cycles: of this process's processor, and of the clock.

    Args:
        url: URL of a server, or of a store in this process.
        way: One of :data:`WAYS`.
        cycles: Number of cycles.
    """
    import millstream

    if way == "async":
        return asyncio.run(run_async(url, cycles))
    work = cycle if way == "sync" else cycle_direct
    with millstream.connect(url) if way == "sync" else millstream.open_store(url) as client:
        ask = client.execute_command if way == "sync" else client.execute
        ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        work(client, cycles // 10 + 1)
        before, began = time.process_time(), time.perf_counter()
        work(client, cycles)
        return {"processor": time.process_time() - before, "clock": time.perf_counter() - began}


async def run_async(url: str, cycles: int) -> dict[str, float]:
    """Return the result of :func:`run` for an asyncio client."""
    import millstream

    async with millstream.connect_async(url) as client:
        await client.execute_command("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        await cycle_async(client, cycles // 10 + 1)
        before, began = time.process_time(), time.perf_counter()
        await cycle_async(client, cycles)
        return {"processor": time.process_time() - before, "clock": time.perf_counter() - began}


# ---------------------------------------------------------------------- all of them, in turns


def all_cases(effort: Effort) -> dict[str, Any]:
    """Return each round's microseconds per cycle, by fsync setting and case: of all processors, and of the clock."""
    found: dict[str, Any] = {}
    for setting, store in STORES.items():
        cycles = int((4000 if setting == MEMORY else 500) * effort.seconds)
        with started(REDIS, setting) as server:
            path = str(server.client.config_get("unixsocket")["unixsocket"])
            cases = {f"redis-py to {REDIS}": (server.url, "sync", NATIVE)}
            if setting == MEMORY:
                cases[f"redis-py to {REDIS}, unix socket"] = (f"unix://{path}", "sync", NATIVE)
            cases[f"redis-py, asyncio, to {REDIS}"] = (server.url, "async", NATIVE)
            for core in names()[1:]:
                cases |= {f"{told}, {core}": (store, way, core) for told, way in WAYS.items()}
            rounds: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
            for _ in range(effort.rounds):
                for case, (url, way, core) in cases.items():
                    server.client.flushall()
                    rounds[case].append(_client(server, url, way, core, cycles))
                    print(f"in process, {setting}: {case}: {rounds[case][-1]}", file=sys.stderr, flush=True)
            found[setting] = rounds
    return found


def _client(server: Server, url: str, way: str, core: str, cycles: int) -> dict[str, float]:
    environment = os.environ | {"MILLSTREAM_CORE": "python" if core == PYTHON else "native"}
    if core == NATIVE and NATIVE not in names():
        environment["MILLSTREAM_CORE"] = "python"
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "bench.server.in_process", url.format(folder + "/data"), way, str(cycles)]
        before = server.clock()
        told = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2])
        spent = (server.clock() - before) * 10 / 11  # of that a part was for the first cycles, which are not counted
    took = json.loads(told.stdout)
    processor = took["processor"] + (spent if way != "direct" and not url.startswith(("memory:", "file:")) else 0)
    return {"micros": round(processor / cycles * 1e6, 1), "clock": round(took["clock"] / cycles * 1e6, 1)}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
