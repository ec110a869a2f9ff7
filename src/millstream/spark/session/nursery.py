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
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from millstream.spark.session.handover import READY, SOCKET, TAKEN, unpacked

DAEMON = "pyspark.daemon"

_EARLY = (
    DAEMON,
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.conversion",
    "redis",
    "pyspark_millstream",
    "millstream.spark.connection.routing",
    "millstream.spark.connection.pipeline",
    "millstream.spark.connection.bulk_reader",
)
"""Whatever of those processes' modules needs neither pyarrow nor numpy."""

_SPARKS = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "MILLSTREAM_")
_SHELLS = {"_", "PS1", "SHLVL", "PWD", "OLDPWD", "OMP_NUM_THREADS"}
"""Variables that Spark and shells set for each process; PySpark and numpy look at them after the start."""

_IMPORTED = {"PYSPARK_ENABLE_NAMEDTUPLE_PATCH"}
"""But PySpark looks at this one while it is imported."""

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
        try:
            self._process = self._started()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _started(self) -> "subprocess.Popen[bytes]":
        environment = {"PYTHONHASHSEED": "0", **os.environ, "PYTHONUNBUFFERED": "YES"}  # as Spark starts its own
        with socket.socket(socket.AF_UNIX) as listener:  # here already, so that nobody can come too early
            listener.bind(self.path)
            listener.listen(64)
            return subprocess.Popen(
                [sys.executable, "-m", "millstream.spark.session.nursery", self.path, str(listener.fileno())],
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
    kept = {
        name: value
        for name, value in environment.items()
        if name in _IMPORTED or not (name.startswith(_SPARKS) or name in _SHELLS)
    }
    folders = kept.pop("PYTHONPATH", "").split(os.pathsep)
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(folders)))}


def serve(path: str, listener: socket.socket) -> None:
    """Make processes until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Java's processes have it so too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    born = dict(os.environ)
    try:
        folder = str(Path.cwd())
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
    pipes: list[int] = []
    try:
        there, environment, argv = unpacked(_received(line, pipes))
        fits = len(pipes) == 3 and argv[:2] == ["-m", DAEMON] and there == folder
        if fits and same(born, environment) and os.fork() == 0:
            listener.close()
            _become(line, pipes, environment, argv)
    finally:
        for pipe in pipes:
            os.close(pipe)


def _received(line: socket.socket, pipes: list[int]) -> bytes:
    """What a caller says; ``pipes`` gets the descriptors that come with it, whatever else fails."""
    body, given, _, _ = socket.recv_fds(line, 1 << 16, 3)
    pipes += given
    whole = 4 + int.from_bytes(body[:4], "big")
    while len(body) < whole:
        more = line.recv(1 << 16)
        if not more:
            break
        body += more
    return body[4:]


def _become(line: socket.socket, pipes: list[int], environment: Mapping[str, str], argv: list[str]) -> NoReturn:
    """Be the daemon, in a process that was forked for it, to its end."""
    code = 1
    try:
        line.settimeout(None)
        line.send(TAKEN)  # not before the fork: where that fails, the caller starts a Python of its own
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        code = _run(environment, argv)
    except BaseException:  # noqa: BLE001 - as a Python does that ends by one
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(environment: Mapping[str, str], argv: list[str]) -> int:
    """Run the daemon's module; its exit code."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv[1:]
    sys.modules.pop(DAEMON, None)  # runpy says on stderr that it is there
    try:
        runpy.run_module(DAEMON, run_name="__main__", alter_sys=True)
    except SystemExit as told:
        if isinstance(told.code, str):
            sys.stderr.write(f"{told.code}\n")
        return told.code if isinstance(told.code, int) else int(told.code is not None)
    return 0


if __name__ == "__main__":
    try:
        serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    finally:
        os._exit(0)  # whatever threads there are
