"""Timing cases side by side: each round runs every case once, and ratios are taken within a round.

These machines are shared and noisy; only ratios of one run mean anything.
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
    """A TCP port of 127.0.0.1 that nothing listens on, and that Linux gives to no client."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def at_least_one(word: str) -> int:
    """A number of entries or rounds: of none there is nothing to measure."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is none: at least 1")
    return number


@contextlib.contextmanager
def running(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """A server process for the length of the block; yields its URL and its process.

    Args:
        command: what is started.
        port: where it will listen.
        environment: variables beside this process's own.

    Raises:
        RuntimeError: it ended at once.
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
    """A server of :data:`SERVERS` that keeps nothing on disk; yields its URL."""
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
    """What one run of a case took.

    Attributes:
        rate: more is better.
        client: microseconds of this process's processor for each of what the rate counts; 0 if not measured.
        server: the same of the processes that it started.
    """

    rate: float
    client: float = 0.0
    server: float = 0.0


class Stopwatch:
    """Wall clock and processor time from its making on."""

    def __init__(self) -> None:
        self._others = Processor()
        self._own = time.process_time()
        self._started = time.perf_counter()

    def stop(self, count: int) -> Taken:
        """What so many took."""
        seconds, own = time.perf_counter() - self._started, time.process_time() - self._own
        return Taken(count / seconds, own / count * 1e6, sum(self._others.since(count).values()))


def compare(cases: dict[str, Callable[[], Taken]], rounds: int, unit: str) -> None:
    """Run every case once a round; print each one's rate and processor time, and the ratios to the round's first case.

    Args:
        cases: name to function.
        rounds: how often.
        unit: what the rate counts.
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
    """Print a table as Markdown has them."""
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |", flush=True)


def middle(found: list[float], form: str = ",.0f") -> str:
    """The median, and from where to where."""
    return f"{statistics.median(found):{form}} ({min(found):{form}} to {max(found):{form}})"


def ratio(found: list[float], base: list[float]) -> str:
    """The middle one of the rounds' ratios, and from where to where."""
    ratios = [one / other for one, other in zip(found, base, strict=True)]
    return middle(ratios, ".2f")


class Processor:
    """Processor time of this process's descendants by program, from ``/proc`` (Linux)."""

    PROGRAMS = ("java", "python", "redis-server", "millstream")

    def __init__(self) -> None:
        self._begun = self._spent()

    def since(self, rows: int) -> dict[str, float]:
        """Microseconds for each of so many rows since this was made."""
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
                # With its ended children, which nobody lists any more; this process's own are others' benches.
                spent[pid] = sum(map(int, words[11:13] if name == "java" else words[11:15])) / ticks
        found = dict.fromkeys(self.PROGRAMS, 0.0)
        for pid, name in names.items():
            if pid != os.getpid() and _descends(pid, parents):
                program = next((each for each in self.PROGRAMS if name.startswith(each)), "python")
                found[program] += spent[pid]
        return found


def _descends(pid: int, parents: dict[int, int]) -> bool:
    """True if a process was started by this one, by way of others or not."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def processor_table(costs: dict[str, list[dict[str, float]]]) -> None:
    """Print the processor time of each case by program, and that of the round's first case beside it.

    Args:
        costs: what :meth:`Processor.since` said of a case's rounds.
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
