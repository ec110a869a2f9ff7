"""The nursery makes the Python daemons that Spark starts; where it does not, an ordinary start does."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.spark.session import handover, nursery
from millstream.spark.session.local import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAEMON = ["-m", "pyspark.daemon", "pyspark.worker"]

# A nursery counts its threads in /proc and is not begun without: every process is started the ordinary way then.
pytestmark = pytest.mark.skipif(not nursery.available(), reason="a nursery needs Linux")


@pytest.fixture
def open_nursery() -> Iterator[Callable[[], nursery.Nursery]]:
    """``open_nursery()``: one with the environment of this moment; pytest sets a variable between setup and call."""
    made: list[nursery.Nursery] = []

    def start() -> nursery.Nursery:
        made.append(nursery.Nursery())
        return made[-1]

    yield start
    for each in made:
        each.close()


def asked_of(path: str, **more: str) -> dict[str, str]:
    """The environment of a process that Spark starts while there is a nursery."""
    return os.environ | {handover.SOCKET: path, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"} | more


@pytest.fixture
def begin() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """``begin(environment)``: a daemon as Spark starts it, through the wrapper."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(environment: Mapping[str, str], folder: Path | None = None) -> "subprocess.Popen[bytes]":
        words = [worker_python(), *DAEMON]
        process = subprocess.Popen(words, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(autouse=True)
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper of this source, in a cache of its own."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def serves(process: "subprocess.Popen[bytes]") -> None:
    """A daemon says its port, which is how Spark knows that it is there."""
    assert process.stdout is not None
    assert 0 < int.from_bytes(process.stdout.read(4), "big") < 1 << 16


def was_made(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the nursery made it and another process stands in its place; either ends when Spark closes its pipe."""
    command = Path(f"/proc/{process.pid}/cmdline").read_text()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)
    return "handover.py" in command


def test_a_daemon_is_made_and_ends_when_it_is_told_to(
    open_nursery: Callable[[], nursery.Nursery], begin: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """Spark's pipes are the new process's own: its port comes by them, and their end is its end."""
    nurse = open_nursery()
    for _ in range(2):
        process = begin(asked_of(nurse.path))
        serves(process)
        assert was_made(process)


@pytest.mark.parametrize(
    "more",
    [
        {"COLOUR": "red"},
        {"PYTHONHASHSEED": "7"},
        {"PYTHONPATH": "/elsewhere"},
        {"PYTHONOPTIMIZE": "1"},
        {"PYSPARK_ENABLE_NAMEDTUPLE_PATCH": "1"},
    ],
)
def test_another_environment_is_started_the_ordinary_way(
    open_nursery: Callable[[], nursery.Nursery], begin: Callable[..., "subprocess.Popen[bytes]"], more: dict[str, str]
) -> None:
    """What a variable does to a Python from its start, or to a library when it is imported, cannot be made up for."""
    nurse = open_nursery()
    process = begin(asked_of(nurse.path, **more))
    serves(process)
    assert not was_made(process)


def test_another_folder_is_started_the_ordinary_way(
    open_nursery: Callable[[], nursery.Nursery], begin: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    """It is the first place that Python imports from."""
    nurse = open_nursery()
    process = begin(asked_of(nurse.path), tmp_path)
    serves(process)
    assert not was_made(process)


def test_a_nursery_that_is_gone_is_not_missed(
    open_nursery: Callable[[], nursery.Nursery], begin: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    """Neither one that ended, nor one that died and left its socket; what it made goes on without it."""
    ended = open_nursery()
    process = begin(asked_of(ended.path))
    serves(process)
    ended.close()
    assert not Path(ended.path).parent.exists()
    assert process.poll() is None
    assert was_made(process)

    dead = tmp_path / "s"
    killed = subprocess.Popen(
        [sys.executable, "-c", f"import socket; socket.socket(socket.AF_UNIX).bind({str(dead)!r})"]
    )
    killed.wait()
    for path in (ended.path, str(dead)):
        process = begin(asked_of(path))
        serves(process)
        assert not was_made(process)


def test_a_nursery_with_a_thread_serves_nobody(
    open_nursery: Callable[[], nursery.Nursery],
    begin: Callable[..., "subprocess.Popen[bytes]"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork copies one thread and the locks of all: what hangs in the child would hang Spark."""
    (tmp_path / "redis.py").write_text("import threading\nthreading.Thread(target=threading.Event().wait).start()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    nurse = open_nursery()
    process = begin(asked_of(nurse.path))
    serves(process)
    assert not was_made(process)


@pytest.mark.parametrize("nursed", [False, True])
def test_a_daemon_that_fails_says_why(open_nursery: Callable[[], nursery.Nursery], *, nursed: bool) -> None:
    """On the standard error that Spark logs, as one does that was started the ordinary way."""
    path = open_nursery().path if nursed else "/nowhere"
    wrong = asked_of(path, PYTHON_UNIX_DOMAIN_ENABLED="true", PYTHON_WORKER_FACTORY_SOCK_DIR="/nowhere/at/all")
    done = subprocess.run([worker_python(), *DAEMON], env=wrong, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert b"FileNotFoundError" in done.stderr.splitlines()[-1]


def test_a_nursery_that_cannot_be_had_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path too long for a socket: no folder stays behind for every session."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(OSError, match="too long"):
        nursery.Nursery()
    assert list(folder.iterdir()) == []


def test_what_is_asked_arrives_whole() -> None:
    """Whatever bytes are in the environment, and longer than what a socket takes at once."""
    argv = ["-m", "x", "a b", ""]
    told = handover.packed(argv)
    assert int.from_bytes(told[:4], "big") == len(told) - 4
    folder, environment, words = handover.unpacked(told[4:])
    assert (folder, environment, words) == (str(Path.cwd()), dict(os.environ), argv)


def test_a_long_environment_is_no_obstacle(
    open_nursery: Callable[[], nursery.Nursery],
    begin: Callable[..., "subprocess.Popen[bytes]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message comes in pieces then."""
    for number in range(8):
        monkeypatch.setenv(f"LONG{number}", "x" * 100_000)
    nurse = open_nursery()
    process = begin(asked_of(nurse.path))
    serves(process)
    assert was_made(process)


@pytest.mark.spark
def test_sparks_workers_come_from_the_nursery(spark: "SparkSession") -> None:
    """As they would be if Spark had started them: same folder, same paths, Java's environment."""

    def look(_: int) -> tuple[str, str, list[str], str | None]:
        return Path("/proc/self/cmdline").read_text(), str(Path.cwd()), sys.path, os.environ.get("SPARK_REUSE_WORKER")

    ((command, folder, path, reuse),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert "millstream.spark.session.nursery" in command
    assert folder == str(Path.cwd())
    assert str(Path(nursery.__file__).parents[3]) in path
    assert not [each for each in path if each.endswith(".jar")]
    assert reuse == "1"
