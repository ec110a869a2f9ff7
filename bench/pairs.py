"""Timing cases side by side: each round runs every case once, and ratios are taken within a round.

These machines are shared and noisy; only ratios of one run mean anything.
"""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from millstream.demo.ports import free_port


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    """A server process for the length of the block; yields its URL."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    client = redis.Redis(port=port, socket_timeout=5)
    try:
        for _ in range(200):
            with contextlib.suppress(redis.RedisError):
                client.ping()
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                raise RuntimeError(f"{command[0]} ended at once: {process.stderr.read().decode()}")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        client.close()
        process.kill()
        process.wait()
        process.stderr.close()


@contextlib.contextmanager
def redis_server(*, fsync: bool = False) -> Iterator[str]:
    """A private redis-server that keeps nothing, or everything with an fsync before each reply."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("this bench compares with redis-server, which is not installed: apt-get install redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--save", "", "--dir", folder, "--appendonly", "yes" if fsync else "no"]
        options += ["--appendfsync", "always"]
        with running([program, *options], port) as url:
            yield url


@contextlib.contextmanager
def millstream_server(*, fsync: bool = False) -> Iterator[str]:
    """A private ``millstream serve`` that keeps nothing, or everything with an fsync before each reply."""
    port = free_port()
    program = str(Path(sys.executable).parent / "millstream")
    with tempfile.TemporaryDirectory() as folder:
        keep = ["--dir", folder, "--fsync", "always"] if fsync else ["--memory"]
        with running([program, "serve", "--port", str(port), *keep], port) as url:
            yield url


def compare(cases: dict[str, Callable[[], float]], rounds: int, unit: str) -> dict[str, list[float]]:
    """Run every case once a round; print each one's rate and its ratio to the first case of its round.

    Args:
        cases: name to function; a function returns a rate (more is better).
        rounds: how often.
        unit: what the rate counts.
    """
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            rates[name].append(case())
            print(f"round {number + 1}/{rounds}: {name}: {rates[name][-1]:,.0f} {unit}", file=sys.stderr)
    first = next(iter(rates.values()))
    for name, found in rates.items():
        ratios = [mine / base for mine, base in zip(found, first, strict=True)]
        print(
            json.dumps(
                {
                    "case": name,
                    "unit": unit,
                    "median": _short(statistics.median(found)),
                    "least": _short(min(found)),
                    "most": _short(max(found)),
                    "ratio": round(statistics.median(ratios), 3),
                    "ratio_least": round(min(ratios), 3),
                    "ratio_most": round(max(ratios), 3),
                }
            )
        )
    return rates


def _short(rate: float) -> float:
    """As many digits as mean something."""
    return round(rate) if rate >= 100 else round(rate, 2)
