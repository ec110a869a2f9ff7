"""Timing of cases side by side: each round runs every case once, and ratios are taken within a round.

The machines are shared and noisy, so only ratios of one run are meaningful.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1 that Linux gives to no client."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def at_least_one(word: str) -> int:
    """Parse a number of entries or rounds, which must be at least one."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is none: at least 1")
    return number


@contextlib.contextmanager
def running(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """Run a server process within a ``with`` block; yield its URL and its process.

    Args:
        command: Command to start.
        port: Port that it will listen on.
        environment: Additional environment variables.

    Raises:
        RuntimeError: It ended at once.
    """
    inherited = os.environ | (environment or {})
    process = subprocess.Popen(command, env=inherited, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    client = redis.Redis(port=port, socket_timeout=5)
    try:
        for _ in range(200):
            with contextlib.suppress(redis.RedisError):
                client.ping()
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                raise RuntimeError(f"{command[0]} ended at once: {process.stderr.read().decode()}")
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        client.close()
        process.kill()
        process.wait()
        process.stderr.close()


SERVERS = ("redis", "millstream")


@contextlib.contextmanager
def private_server(kind: str = "redis") -> Iterator[str]:
    """Run a server of :data:`SERVERS` that keeps nothing on disk; yield its URL."""
    port = free_port()
    program = shutil.which("redis-server") if kind == "redis" else str(Path(sys.executable).parent / "millstream")
    if program is None:
        sys.exit("this bench needs redis-server, which is not installed: apt-get install redis-server")
    redis_words = ["--port", str(port), "--save", "", "--appendonly", "no"]
    words = redis_words if kind == "redis" else ["serve", "--port", str(port), "--memory"]
    with running([program, *words], port) as (url, _):
        yield url


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """The cost of one run of a case.

    Attributes:
        rate: Number per second; more is better.
        client: Microseconds of this process's processor per counted item; 0 if not measured.
        server: Microseconds of its child processes' processor per counted item; 0 if not measured.
    """

    rate: float
    client: float = 0.0
    server: float = 0.0


class Stopwatch:
    """Wall clock and processor time from its creation on."""

    def __init__(self) -> None:
        self._others = Processor()
        self._own = time.process_time()
        self._started = time.perf_counter()

    def stop(self, count: int) -> Taken:
        """Return the cost of so many items."""
        seconds, own = time.perf_counter() - self._started, time.process_time() - self._own
        return Taken(count / seconds, own / count * 1e6, sum(self._others.since(count).values()))


def compare(cases: dict[str, Callable[[], Taken]], rounds: int, unit: str) -> None:
    """Run every case once a round; print each one's rate and processor time, and the ratios to the round's first case.

    Args:
        cases: Functions by name.
        rounds: Number of rounds.
        unit: Unit that the rate counts.
    """
    runs: dict[str, list[Taken]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            runs[name].append(case())
            print(f"round {number + 1}/{rounds}: {name}: {runs[name][-1].rate:,.0f} {unit}", file=sys.stderr)
    first = next(iter(runs.values()))
    costly = all(one.client or one.server for one in first)
    head = ["us of processor, client", "server", "ratio by processor"] if costly else []
    rows = []
    for name, found in runs.items():
        row = [
            name,
            middle([one.rate for one in found]),
            ratio([one.rate for one in found], [one.rate for one in first]),
        ]
        if costly:
            row += [f"{statistics.median(one.client for one in found):.1f}"]
            row += [f"{statistics.median(one.server for one in found):.1f}"]
            row += [ratio([one.client + one.server for one in first], [one.client + one.server for one in found])]
        rows.append(row)
    table(["case", unit, "ratio", *head], rows)


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |", flush=True)


def middle(found: list[float], form: str = ",.0f") -> str:
    """Return the median with the minimum and maximum."""
    return f"{statistics.median(found):{form}} ({min(found):{form}} to {max(found):{form}})"


def ratio(found: list[float], base: list[float]) -> str:
    """Return the median of the rounds' ratios with the minimum and maximum."""
    ratios = [one / other for one, other in zip(found, base, strict=True)]
    return middle(ratios, ".2f")


class Processor:
    """Processor time of this process's descendants by program, from ``/proc`` (Linux)."""

    PROGRAMS = ("java", "python", "redis-server", "millstream")

    def __init__(self) -> None:
        self._begun = self._spent()

    def since(self, rows: int) -> dict[str, float]:
        """Return the microseconds per row since the creation, by program."""
        now = self._spent()
        return {name: (now[name] - self._begun[name]) / rows * 1e6 for name in self.PROGRAMS}

    def _spent(self) -> dict[str, float]:
        ticks = os.sysconf("SC_CLK_TCK")
        parents, spent, names = {}, {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                words = rest.split()
                pid = int(folder.name)
                parents[pid], names[pid] = int(words[1]), name
                # With its ended children, which are no longer listed; this process's own are those of other benches.
                spent[pid] = sum(map(int, words[11:13] if name == "java" else words[11:15])) / ticks
        found = dict.fromkeys(self.PROGRAMS, 0.0)
        for pid, name in names.items():
            if pid != os.getpid() and _descends(pid, parents):
                program = next((each for each in self.PROGRAMS if name.startswith(each)), "python")
                found[program] += spent[pid]
        return found


def _descends(pid: int, parents: dict[int, int]) -> bool:
    """Return True if a process descends from this one."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def processor_table(costs: dict[str, list[dict[str, float]]]) -> None:
    """Print the processor time of each case by program, and that of the round's first case beside it.

    Args:
        costs: Results of :meth:`Processor.since` for a case's rounds.
    """
    totals = {name: [sum(one.values()) for one in found] for name, found in costs.items()}
    first = next(iter(totals.values()))
    print("\nMicroseconds of processor a row, the middle one of the rounds:\n")
    table(
        ["case", *Processor.PROGRAMS, "all", "the first to it"],
        [
            [
                name,
                *(f"{statistics.median(one[each] for one in found):.2f}" for each in Processor.PROGRAMS),
                f"{statistics.median(totals[name]):.2f}",
                ratio(first, totals[name]),
            ]
            for name, found in costs.items()
        ],
    )
