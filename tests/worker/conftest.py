"""Worker tests run on a real redis-server (emulated commands) and on a Millstream server (native commands)."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millstream import failpoints
from millstream.testing import millstream_clock, millstream_url, millstream_worker  # noqa: F401 - fixtures for users
from support import needs
from support.servers import ServerProcess, millstream_server, redis_server

SERVERS = ["redis", "millstream"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a server on both kinds, or on the kinds in its module's ``SERVERS``."""
    for fixture in {"server", "own_server"} & set(metafunc.fixturenames):
        metafunc.parametrize(fixture, getattr(metafunc.module, "SERVERS", SERVERS), indirect=True)


@pytest.fixture(scope="session")
def millstream_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Millstream server in memory, shared by the whole test run."""
    with millstream_server(tmp_path_factory.mktemp("millstream"), "--memory") as server:
        yield server


@pytest.fixture(scope="session")
def valkey_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Valkey server shared by the whole test run, if Valkey is installed."""
    with redis_server(tmp_path_factory.mktemp("valkey"), path=needs.other("valkey")) as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """An emptied server, once for each kind."""
    found: ServerProcess = request.getfixturevalue(f"{request.param}_process")
    return found.as_new()


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for one test alone. It keeps its data across a stop and a start."""
    if request.param == "millstream":
        made = millstream_server(tmp_path)
    else:
        path = "" if request.param == "redis" else needs.other(request.param)
        made = redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always", path=path)
    with made as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A redis-py client that decodes replies to text."""
    with server.client(decode_responses=True) as found:
        yield found


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    """Remove every hook that a test has registered."""
    yield
    failpoints.clear()


class Tasks:
    """Processes started by a test. All of them are ended with the test.

    Args:
        folder: working directory of the processes.
        output: file for their output; by default a pipe to the test.
    """

    def __init__(self, folder: Path, output: Path | None = None) -> None:
        self.folder = folder
        self.output = output
        self.started: list[subprocess.Popen[str]] = []

    def app(self, text: str, name: str = "jobs") -> str:
        """Write a module with an app and return its target ``module:app``."""
        (self.folder / f"{name}.py").write_text(text)
        return f"{name}:app"

    def worker(self, target: str, url: str, **environment: str) -> "subprocess.Popen[str]":
        """Start one worker process without a supervisor."""
        return self._start([sys.executable, "-m", "millstream.worker.child", target], url, environment)

    def run(self, target: str, url: str, *options: str, **environment: str) -> "subprocess.Popen[str]":
        """Start ``millstream run``."""
        program = str(Path(sys.executable).with_name("millstream"))
        return self._start([program, "run", target, *options], url, environment)

    def program(self, name: str, url: str, *options: str) -> "subprocess.Popen[str]":
        """Start a user's own Python program."""
        return self._start([sys.executable, name, *options], url, {})

    def _start(self, words: list[str], url: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
        with contextlib.nullcontext(subprocess.PIPE) if self.output is None else self.output.open("a") as output:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                # Unbuffered, a print is several writes, and lines of processes that share the output can mix
                env={**os.environ, "PYTHONUNBUFFERED": "", "MILLSTREAM_URL": url, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def stop(self) -> str:
        """Stop the last started process gracefully and return its output."""
        self.started[-1].terminate()
        return self.started[-1].communicate(timeout=30)[0]

    def end(self) -> None:
        for process in self.started:
            # A worker in its own session that is still starting would take an entry of the next test
            for pid in (process.pid, *children(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            process.communicate(timeout=30)


def children(pid: int) -> list[int]:
    """Return the child processes of a process, or none if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    """The starter of worker processes."""
    found = Tasks(tmp_path)
    yield found
    found.end()
