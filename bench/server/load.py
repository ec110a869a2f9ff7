"""The clients that send commands: redis-benchmark for one repeated command, ``load.c`` for all others.

Both are C programs, so that the client is not measured. The measure is the server's processor time between the
first command and the last reply.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hiredis
from bench.server.servers import Server

Word = bytes | str | int
PATIENCE = 60.0
"""Seconds until an unfinished load is given up and its result so far counts."""


@dataclass(frozen=True)
class Measured:
    """Result of one run.

    Attributes:
        rate: Commands per second.
        micros: Microseconds of the server's processor per command.
        p50: Median time until a reply in microseconds, as the client counts; 0 if not counted.
        p99: 99th percentile of that time.
        p999: 99.9th percentile of that time.
        whole: True if every reply came in time.
    """

    rate: float
    micros: float
    p50: float = 0
    p99: float = 0
    p999: float = 0
    whole: bool = True

    def record(self) -> dict[str, Any]:
        """Return the result for the file, with its significant digits."""
        return {name: value if name == "whole" else float(f"{value:.4g}") for name, value in asdict(self).items()}


def pack(*words: Word) -> bytes:
    """Encode a command."""
    packed: bytes = hiredis.pack_command(words)
    return packed


@cache
def _folder() -> Path:
    """Return the folder of the generator and its files for the life of this process."""
    made = tempfile.TemporaryDirectory(prefix="bench-")
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _generator() -> str:
    """Return ``load.c``, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("this bench needs a C compiler for its client: apt-get install gcc libc6-dev")
    made = str(_folder() / "load")
    subprocess.run([compiler, "-O2", "-o", made, str(Path(__file__).with_name("load.c"))], check=True)
    return made


def send(
    server: Server,
    commands: Iterable[bytes],
    *,
    total: int = 0,
    clients: int = 1,
    pipeline: int = 100,
    rate: float = 0,
    patience: float = PATIENCE,
) -> Measured:
    """Let the generator send commands, and wait for all replies.

    Args:
        server: Target.
        commands: Packed commands; each client sends an equal part of them in order.
        total: Number of sent commands, repeated if there are fewer; 0 for each once.
        clients: Number of connections.
        pipeline: Number of commands that a client sends before it waits for their replies.
        rate: Commands per second that are due regardless of replies; 0 for the maximum.
        patience: Seconds until the wait is given up.

    Raises:
        RuntimeError: A command was refused, or the connection broke.
    """
    file = _folder() / "commands"
    found = list(commands)
    file.write_bytes(b"".join(found))
    numbers = (server.port, clients, pipeline, rate, total or len(found), patience)
    words = [_generator(), *map(str, numbers), str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"the load generator found no way to {server.name}")
        before = server.clock()
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        spent = server.clock() - before
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if not line:
        raise RuntimeError(f"{server.name} closed a connection")
    told = json.loads(line)
    if told["errors"]:
        raise RuntimeError(f"{server.name} refused {told['errors']} commands: {told['first_error']}")
    replies = max(told["replies"], 1)
    whole = told["replies"] == (total or len(found))
    times = (told["p50"], told["p99"], told["p999"])
    return Measured(replies / told["seconds"], spent / replies * 1e6, *times, whole=whole)


def benchmark(server: Server, words: tuple[Word, ...], *, total: int, clients: int, pipeline: int) -> Measured:
    """Let redis-benchmark send one command repeatedly.

    Args:
        server: Target.
        words: The command.
        total: Number of commands.
        clients: Number of connections.
        pipeline: Number of commands that a client sends before it waits.

    Raises:
        RuntimeError: The program is missing, or a command was refused.
    """
    program = shutil.which("redis-benchmark")
    if program is None:
        raise RuntimeError("redis-benchmark is not installed: apt-get install redis-tools")
    options = {"-p": server.port, "-n": total, "-c": clients, "-P": pipeline}
    flat = [str(word) for pair in options.items() for word in pair]
    before, began = server.clock(), time.perf_counter()
    done = subprocess.run(
        [program, *flat, "--csv", *(str(word) for word in words)], capture_output=True, text=True, check=False
    )
    spent, took = server.clock() - before, time.perf_counter() - began
    if done.returncode or "Error" in done.stdout:
        raise RuntimeError(f"redis-benchmark on {server.name}: {done.stdout[-300:]} {done.stderr[-300:]}")
    # "XADD s ...","51546.39","0.485",...: the command may hold commas, the figures do not
    figures = done.stdout.strip().splitlines()[-1].rsplit('","', 7)
    rate = float(figures[1]) if len(figures) == 8 else total / took
    return Measured(rate, spent / total * 1e6)
