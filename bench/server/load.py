"""What sends the commands: redis-benchmark for one command again and again, ``load.c`` for all else.

Both are C programs, so the client is not what is measured. What counts is the server's processor time between the
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
"""Seconds after which a load that has not ended is given up, and counts as far as it came."""


@dataclass(frozen=True)
class Measured:
    """What one run came to.

    Attributes:
        rate: commands a second.
        micros: microseconds of the server's processor a command.
        p50: of the time until a reply, in microseconds, of the client's own count; 0 where nobody counted.
        p99: the same.
        p999: the same.
        whole: every reply came in time.
    """

    rate: float
    micros: float
    p50: float = 0
    p99: float = 0
    p999: float = 0
    whole: bool = True

    def record(self) -> dict[str, Any]:
        """For the results, with as many digits as mean something."""
        return {name: value if name == "whole" else float(f"{value:.4g}") for name, value in asdict(self).items()}


def pack(*words: Word) -> bytes:
    """A command as bytes."""
    packed: bytes = hiredis.pack_command(words)
    return packed


@cache
def _folder() -> Path:
    """Where the generator and its files are kept while this process lives."""
    made = tempfile.TemporaryDirectory(prefix="bench-")
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _generator() -> str:
    """``load.c``, compiled."""
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
    """Have the generator send commands, and wait for all replies.

    Args:
        server: to whom.
        commands: packed; each client has an equal part of its own and sends it in order.
        total: how many are sent, going over the commands again where they are fewer; 0 for each once.
        clients: how many connections.
        pipeline: how many commands a client sends before it waits for their replies.
        rate: commands a second that are due whether or not there were replies; 0 for as many as can be.
        patience: seconds after which no more is waited for.

    Raises:
        RuntimeError: a command was refused, or the connection broke.
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
    """Have redis-benchmark send one command again and again.

    Args:
        server: to whom.
        words: the command.
        total: how often.
        clients: how many connections.
        pipeline: how many a client sends before it waits.

    Raises:
        RuntimeError: the program is not there, or a command was refused.
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
