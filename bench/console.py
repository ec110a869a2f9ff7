"""Cost of the shell and the console: a cold command, a whole server, a million pending entries.

    python bench/console.py start [--rounds 15]
    python bench/console.py overview [--streams 1000] [--groups 10] [--server redis]
    python bench/console.py pending [--entries 1000000] [--server redis]
    python bench/console.py page [--streams 1000] [--groups 10] [--delayed 100] [--server redis]
    python bench/console.py history [--streams 1000] [--groups 10] [--seconds 330] [--server redis]

``start`` runs commands and ``python -c "import redis"`` in turn, each in a separate process, and shows the median of
their processor time and of the time above the import. ``overview`` and ``pending`` read one server repeatedly: round
trips, processor time of the server (Linux), time until the reply, and the peak memory of the reading process.
``page`` opens the overview in the console: the times of its first and last byte, its round trips, and the server's
processor time. With ``--delayed``, the oldest entry of so many groups is delayed.
``history`` compares the server's processor time without and with the writer of the console's history.
The server is Millstream in memory, or redis-server.
"""

import argparse
import asyncio
import contextlib
import http.client
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.ops.findings import reading as case
from millstream.ops.history import model
from millstream.ops.history.keeping import keeping
from millstream.ops.pending import reading as pending
from millstream.ops.pending.status import PendingChoice
from millstream.ops.streams import reading as streams

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests"))

from support.console import ConsoleThread  # noqa: E402 - behind the path
from support.servers import ServerProcess, millstream_server, redis_server  # noqa: E402 - behind the path

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
COMMANDS = {
    'python -c "import redis"': [sys.executable, "-c", "import redis"],
    "millstream --help": [MILLSTREAM, "--help"],
    "millstream stream ls": [MILLSTREAM, "stream", "ls"],
    "millstream stream ls -o json": [MILLSTREAM, "stream", "ls", "-o", "json"],
    "millstream group show orders-0 billing": [MILLSTREAM, "group", "show", "orders-0", "billing"],
    "millstream pending ls orders-0 billing": [MILLSTREAM, "pending", "ls", "orders-0", "billing"],
    "millstream check": [MILLSTREAM, "check", "--behind", "off", "--pending-age", "off", "--lag", "1000"],
}


@contextmanager
def serving(kind: str) -> Iterator[ServerProcess]:
    """Yield an empty server."""
    with tempfile.TemporaryDirectory() as folder:
        made = redis_server(Path(folder)) if kind == "redis" else millstream_server(Path(folder), "--memory")
        with made as server:
            yield server


def fill(client: redis.Redis, count: int, groups: int) -> None:
    """Add streams of five entries, each with groups that have two of them pending."""
    names = ["billing", *(f"group-{number}" for number in range(1, groups))]
    for number in range(count):
        key = f"orders-{number}"
        with client.pipeline(transaction=False) as pipe:
            for entry in range(5):
                pipe.xadd(key, {"n": entry, "payload": "x" * 100})
            for name in names:
                pipe.xgroup_create(key, name, id="0")
                pipe.xreadgroup(name, "c1", {key: ">"}, count=2)
            pipe.execute()


def delay(client: redis.Redis, delayed: int, count: int) -> None:
    """Give the oldest pending entry of so many groups a due time in an hour, one group of each stream first."""
    due_ms = SystemClock().wall_time() + 3_600_000
    for number in range(delayed):
        key, group = f"orders-{number % count}", number // count
        name = f"group-{group}" if group else "billing"
        client.zadd(due.key(key, name), {client.xpending(key, name)["min"]: due_ms})


def start(rounds: int) -> None:
    """Measure the processor time of cold commands."""
    with serving("millstream") as server, server.client() as client:
        fill(client, 20, 2)
        found: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, words in COMMANDS.items():
                found[name].append(_processor_time(words, server.url))
    base = statistics.median(found['python -c "import redis"'])
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"{name:42} {middle * 1000:6.0f} ms   {(middle - base) * 1000:+5.0f} ms above the import")


def _processor_time(words: list[str], url: str) -> float:
    """Return the user and system time of one process in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "MILLSTREAM_URL": url}
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def _measure(name: str, line: Line, pid: int, work: Callable[[], Awaitable[Any]], times: int) -> None:
    """Print the average cost of one reading.

    Args:
        name: Name of the reading.
        line: Connection that it uses.
        pid: Process id of the server.
        work: Function that reads once.
        times: Number of readings.
    """
    trips, server, own, began = line.trips, _used(pid), time.process_time(), time.perf_counter()
    for _ in range(times):
        await work()
    wall, own = time.perf_counter() - began, time.process_time() - own
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:34} {(line.trips - trips) / times:6.0f} trips, server {(_used(pid) - server) / times * 1000:4.0f} ms,",
        f"here {own / times * 1000:5.0f} ms, answer in {wall / times * 1000:5.0f} ms, {memory:4.0f} MB",
        flush=True,
    )


def _used(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def overview(kind: str, count: int, groups: int) -> None:
    """Measure the reading of all streams of a server with all their groups."""

    async def main(url: str, pid: int) -> None:
        line = Line(url, joint=True)
        await line.call("PING")
        name = f"{count} streams x {groups} groups"
        await _measure(name, line, pid, lambda: streams.overview(line), 10)
        await line.close()

    with serving(kind) as server, server.client() as client:
        fill(client, count, groups)
        assert server.process is not None
        asyncio.run(main(server.url, server.process.pid))


def page(kind: str, count: int, groups: int, delayed: int) -> None:
    """Measure the overview as a browser opens it: the first time, and just after the console has read the server."""
    with serving(kind) as server, server.client() as client:
        fill(client, count, groups)
        delay(client, delayed, count)
        assert server.process is not None
        with ConsoleThread(server.url) as console:
            for name in ("first", "again", "again", "read anew"):
                if name == "read anew":
                    console.forget()
                _open(name, console, server.process.pid)


def _open(name: str, console: ConsoleThread, pid: int) -> None:
    """Print the cost of one opening.

    Args:
        name: Name of the opening.
        console: The console, which shows one server.
        pid: Process id of the server.
    """
    line = console.process.watches[0].line
    before, trips, began = _used(pid), line.trips, time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", console.port)
    connection.request("GET", "/")
    answer = connection.getresponse()
    size = len(answer.read1(1 << 20))
    first = time.perf_counter() - began
    size += len(answer.read())
    whole = time.perf_counter() - began
    connection.close()
    print(
        f"{name:10} begins in {first * 1000:5.0f} ms, whole in {whole * 1000:5.0f} ms ({size / 1024:.0f} KiB),",
        f"{line.trips - trips} trips, server {(_used(pid) - before) * 1000:4.0f} ms",
        flush=True,
    )


def history(kind: str, count: int, groups: int, seconds: float) -> None:
    """Measure the server's processor time without and with the writer of the history, with one entry added a second."""

    async def main(server: ServerProcess, client: redis.Redis, *, writes: bool) -> None:
        assert server.process is not None
        before = _used(server.process.pid)
        async with keeping(server.url) if writes else contextlib.nullcontext():
            for number in range(round(seconds)):
                await asyncio.sleep(1)
                client.xadd(f"orders-{number % count}", {"n": number})
        share = (_used(server.process.pid) - before) / seconds * 100
        print(f"{'with' if writes else 'without':8} the writer: {share:.3f} % of a processor", flush=True)

    with serving(kind) as server, server.client() as client:
        fill(client, count, groups)
        for writes in (False, True):
            asyncio.run(main(server, client, writes=writes))
        used = sum(client.memory_usage(key) or 0 for key in model.BYTES)
        print(f"memory of the history: {used} bytes in {client.xlen(model.TEN)} and {client.xlen(model.FIVE)} entries")


def pages(kind: str, entries: int) -> None:
    """Measure pages of a group with so many pending entries."""

    async def main(url: str, pid: int) -> None:
        line = Line(url, joint=True)
        await line.call("PING")
        where = (line, "orders", "billing")
        old = PendingChoice(idle_ms=10**12)
        readings: dict[str, Callable[[], Awaitable[Any]]] = {
            "first page": lambda: pending.read_page(*where),
            "first page with payload": lambda: pending.read_page(*where, payload=True),
            "page in the middle": lambda: pending.read_page(*where, start=f"({entries // 2}-0"),
            "of one consumer": lambda: pending.read_page(*where, choice=PendingChoice(consumer="c3")),
            "idle for long, none fits": lambda: pending.read_page(*where, choice=old),
            "the worst of 10,000": lambda: pending.read_page(*where, by="deliveries"),
            "group with advice": lambda: case.read_case(*where),
        }
        for name, work in readings.items():
            await _measure(name, line, pid, work, 5)
        await _measure("the worst of all", line, pid, lambda: pending.read_page(*where, by="idle", scan=entries), 1)
        await line.close()

    with serving(kind) as server, server.client() as client:
        for first in range(1, entries + 1, 5000):
            with client.pipeline(transaction=False) as pipe:
                for number in range(first, min(first + 5000, entries + 1)):
                    pipe.xadd("orders", {"n": number}, id=f"{number}-0")
                pipe.execute()
        client.xgroup_create("orders", "billing", id="0")
        for number in range(0, entries, 5000):
            client.xreadgroup("billing", f"c{number // 5000 % 4}", {"orders": ">"}, count=5000)
        assert server.process is not None
        asyncio.run(main(server.url, server.process.pid))


def main() -> None:
    """Run the chosen measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("start", "overview", "pending", "page", "history"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--delayed", type=int, default=0)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--server", choices=("millstream", "redis"), default="millstream")
    given = parser.parse_args()
    if given.what == "start":
        start(given.rounds)
    elif given.what == "overview":
        overview(given.server, given.streams, given.groups)
    elif given.what == "page":
        page(given.server, given.streams, given.groups, given.delayed)
    elif given.what == "history":
        history(given.server, given.streams, given.groups, given.seconds)
    else:
        pages(given.server, given.entries)


if __name__ == "__main__":
    main()
