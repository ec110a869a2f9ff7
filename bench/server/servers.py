"""The compared servers: redis-server, Millstream with its native core, Millstream in plain Python.

Each is a separate process with a separate data directory; nothing is pinned to a core. Its processor clock is read
from the system, so other work on the machine does not count.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from bench.pairs import free_port, running

REDIS, NATIVE, PYTHON = "redis-server", "native core", "plain Python"
MEMORY, SETTINGS = "memory", ("memory", "always", "everysec", "no")
"""Settings: ``memory`` keeps no log; the others keep a log with Redis's ``appendfsync`` of that name."""
MOST_CLIENTS = 12_000


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        name: :data:`REDIS`, :data:`NATIVE` or :data:`PYTHON`.
        port: Port on 127.0.0.1.
        pid: Process id.
        client: Client for preparation and figures.
    """

    name: str
    port: int
    pid: int
    client: redis.Redis

    @property
    def url(self) -> str:
        """Return the URL for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    def clock(self) -> float:
        """Return the processor time in seconds of all its threads, including ended ones (Linux)."""
        return time.clock_gettime((~self.pid << 3) | 2)  # what clock_getcpuclockid() gives for a process

    def memory(self) -> int:
        """Return its main memory in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def names() -> list[str]:
    """Return the available servers: only one Millstream without a compiled core."""
    told = "import importlib.util as u, sys; sys.exit(u.find_spec('millstream._native') is None)"
    native = subprocess.run([sys.executable, "-c", told], check=False).returncode == 0
    return [REDIS, NATIVE, PYTHON] if native else [REDIS, PYTHON]


@contextlib.contextmanager
def started(name: str, setting: str = MEMORY) -> Iterator[Server]:
    """Run a server within a ``with`` block.

    Args:
        name: Name of the server.
        setting: One of :data:`SETTINGS`.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        make = _redis if name == REDIS else _millstream
        environment = {"MILLSTREAM_CORE": "python" if name == PYTHON else "native"} if name != REDIS else {}
        with (
            running(make(port, folder, setting), port, environment) as (url, pid),
            redis.Redis.from_url(url, socket_timeout=None) as client,
        ):
            client.config_set("auto-aof-rewrite-percentage", 0)  # it would run in one round and not in another
            yield Server(name, port, pid, client)


@contextlib.contextmanager
def all_started(setting: str = MEMORY) -> Iterator[list[Server]]:
    """Run all servers side by side."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started(name, setting)) for name in names()]


def _redis(port: int, folder: str, setting: str) -> list[str]:
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("this bench compares with redis-server, which is not installed: apt-get install redis-server")
    keep = ["no"] if setting == MEMORY else ["yes", "--appendfsync", setting]
    plain = ["--save", "", "--maxclients", str(MOST_CLIENTS), "--unixsocket", f"{folder}/redis.sock"]
    return [program, "--port", str(port), "--dir", folder, *plain, "--appendonly", *keep]


def _millstream(port: int, folder: str, setting: str) -> list[str]:
    program = str(Path(sys.executable).parent / "millstream")
    keep = ["--memory"] if setting == MEMORY else ["--dir", folder, "--fsync", setting]
    return [program, "serve", "--port", str(port), "--maxclients", str(MOST_CLIENTS), *keep]


def load_average() -> float:
    """Return the number of processes that were ready to run in the last minute."""
    return round(os.getloadavg()[0], 1)


def machine(before: float, took: float) -> dict[str, Any]:
    """Return the facts about the machine and a run that began with a load average."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cores": os.cpu_count(),
        "processor": cpu.partition(": ")[2],
        "python": platform.python_version(),
        "commit": asked.stdout.strip(),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": sorted([before, load_average()]),
        "took": round(took),
    }
