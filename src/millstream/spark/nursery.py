"""A process that has imported what Spark's Python processes import, and makes them by forking.

A first read and a first stream start five of Spark's Python daemons one after another, and Java waits while each
imports PySpark and redis-py: half a second, where a fork takes milliseconds. So ``local.session`` starts a nursery,
which imports while Java starts. ``handover`` brings what Spark asks for.

Only speed may depend on it. It makes a process only where an ordinary start would give the same one: same folder, same
environment but for what Spark sets for each, PySpark's own daemon. It never has a second thread when it forks: so it
leaves pyarrow and numpy to the processes, and does not serve if anything it imported has started one. It ends with the
process that started it.
"""

import contextlib
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from millstream.spark.handover import READY, SOCKET, TAKEN, unpacked

DAEMON = "pyspark.daemon"

_EARLY = (
    DAEMON,
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.conversion",
    "redis",
    "pyspark_millstream",
    "millstream.spark.nodes",
    "millstream.spark.asking",
    "millstream.spark.bulk",
)
"""Whatever of those processes' modules needs neither pyarrow nor numpy."""

_SPARKS = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "MILLSTREAM_")
_SHELLS = {"_", "PS1", "SHLVL", "PWD", "OLDPWD", "OMP_NUM_THREADS"}
"""Variables that Spark and shells set for each process; PySpark and numpy look at them after the start."""

_THREADS = Path("/proc/self/task")

_PATIENCE = 5.0
"""Seconds for a caller to say what it wants."""


def available() -> bool:
    """Whether this system can have a nursery: descriptors through sockets, and a way to count threads."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and _THREADS.is_dir()


class Nursery:
    """The nursery of this process, seen from outside.

    Attributes:
        path: of its socket.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="millstream-")  # nobody else may connect: its folder is ours alone
        self.path = str(Path(folder, "nursery"))
        environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "YES"}  # as Spark starts its own
        with socket.socket(socket.AF_UNIX) as listener:  # here already, so that nobody can come too early
            listener.bind(self.path)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millstream.spark.nursery", self.path, str(listener.fileno())],
                stdin=subprocess.PIPE,  # its end is the nursery's
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[listener.fileno()],
            )

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """What is started inside the block, Java, can find it."""
        os.environ[SOCKET] = self.path
        try:
            yield
        finally:
            del os.environ[SOCKET]

    def close(self) -> None:
        """End it; the processes that it made go on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def same(born: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Whether a Python started with one environment would be as one started with the other."""
    return _lasting(born) == _lasting(asked)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if not name.startswith(_SPARKS) and name not in _SHELLS}
    folders = kept.pop("PYTHONPATH", "").split(os.pathsep)
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(folders)))}


def serve(path: str, listener: socket.socket) -> None:
    """Make processes until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Java's processes have it so too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    born, folder = dict(os.environ), str(Path.cwd())
    try:
        for name in _EARLY:
            with contextlib.suppress(ImportError):  # another PySpark: its processes find it themselves
                importlib.import_module(name)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(listener, select.POLLIN)
        while len(list(_THREADS.iterdir())) == 1:
            ready = {number for number, _ in poll.poll()}
            if 0 in ready:
                break
            line, _ = listener.accept()
            with line, contextlib.suppress(OSError, ValueError):  # a caller that is gone, or broke off
                _answer(line, listener, born, folder)
    finally:
        listener.close()
        shutil.rmtree(Path(path).parent, ignore_errors=True)


def _answer(line: socket.socket, listener: socket.socket, born: Mapping[str, str], folder: str) -> None:
    """Make the process that a caller asks for, if it can be made here."""
    line.settimeout(_PATIENCE)
    line.send(READY)
    body, pipes = _received(line)
    try:
        there, environment, argv = unpacked(body)
        fits = len(pipes) == 3 and argv[:2] == ["-m", DAEMON] and there == folder
        if not fits or not same(born, environment):
            return
        line.send(TAKEN)
        line.settimeout(None)
        if os.fork() == 0:
            try:
                listener.close()
                _become(pipes, environment, argv)
            finally:
                os._exit(1)
    finally:
        for pipe in pipes:
            os.close(pipe)


def _received(line: socket.socket) -> tuple[bytes, list[int]]:
    body, pipes, _, _ = socket.recv_fds(line, 1 << 16, 3)
    whole = 4 + int.from_bytes(body[:4], "big")
    while len(body) < whole:
        more = line.recv(1 << 16)
        if not more:
            break
        body += more
    return body[4:], list(pipes)


def _become(pipes: list[int], environment: Mapping[str, str], argv: list[str]) -> NoReturn:
    """Be the daemon, in a process that was forked for it."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv[1:]
    code: object = 0
    sys.modules.pop(DAEMON, None)  # runpy says on stderr that it is there
    try:
        runpy.run_module(DAEMON, run_name="__main__", alter_sys=True)
    except SystemExit as told:
        code = told.code
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    try:
        serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    finally:
        os._exit(0)  # whatever threads there are
