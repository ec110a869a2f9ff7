"""Short whole runs: with the server killed, on real Redis with a fault, interrupted, and with a failing process.

Each takes seconds of a JVM, so a run checks several things. The runs without faults are ``long``: they show in addition
only that nothing else is needed.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flights.run import signals_as_interrupt
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = "2000"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Demo:
    """A running demo.

    Args:
        out: Its output folder.
        words: Its options.
    """

    def __init__(self, out: Path, *words: str) -> None:
        self.out = out
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flights", "--out", str(out), "--rows", ROWS, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell that runs the tests in the background has SIGINT ignored, and its children inherit that.
            preexec_fn=heed_sigint,  # noqa: PLW1509 - it takes no lock that another thread could hold
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    def has_said(self, text: str) -> bool:
        """Return True if a line with ``text`` was printed; fail if the demo has ended without it."""
        if any(text in line for line in self.said):
            return True
        assert self.process.poll() is None, "\n".join(self.said)
        return False

    def wait(self) -> int:
        """Return its exit code."""
        code = self.process.wait(200)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    @property
    def checks(self) -> dict[str, Any]:
        """Return its written summary."""
        found: dict[str, Any] = json.loads((self.out / "checks.json").read_text())
        return found

    def all_holds(self) -> None:
        """Assert exit code 0, successful checks, the page and the tables."""
        assert self.wait() == 0, "\n".join(self.said)
        assert self.checks["ok"]
        assert all(check["ok"] for check in self.checks["checks"])
        assert len(self.checks["checks"]) >= 25
        assert "none lost" in (self.out / "page.html").read_text()
        assert list((self.out / "parquet" / "hourly_by_airport").glob("*.parquet"))

    def leftovers(self) -> list[str]:
        """Return running processes with this run's output folder."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            if folder.name == str(self.process.pid):
                continue
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                if str(self.out).encode() in words:
                    found.append(f"{folder.name} {words[:200]!r}")
        return found


@contextlib.contextmanager
def running(out: Path, *words: str) -> Iterator[Demo]:
    """Yield a demo that is ended with the test."""
    demo = Demo(out, *words)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.send_signal(signal.SIGTERM)
            demo.wait()


def served_again(folder: Path) -> None:
    """Assert that a server can run on the demo's data directory with all its data."""
    (folder / "data").symlink_to(folder / "out" / "data")
    with millstream_server(folder) as server, server.client() as client:
        assert client.xlen("flights") == int(ROWS)
        assert client.xinfo_groups("flights")[0]["pending"] == 0
        assert client.xlen("flights:dead") == 4


def test_server_killed_in_the_midst(tmp_path: Path) -> None:
    """If the server is killed halfway and restarted, nothing acknowledged is lost and all checks pass.

    The console shows the run meanwhile, and until Ctrl-C. Exit code 0, no process is left, and a server can run on
    the data.
    """
    with running(tmp_path / "out", "--kill-server", "--console", "--stay") as demo:
        eventually(lambda: demo.has_said("The console stays open"), 200)
        address = next(line.split()[-1] for line in demo.said if "Watch it at" in line)
        with urllib.request.urlopen(f"{address}spark.json") as answer:
            assert [query["name"] for query in json.load(answer)["queries"]] == ["flights"]
        with urllib.request.urlopen(f"{address}workers.json") as answer:
            seen = json.load(answer)
        assert len(seen["workers"]) + len(seen["vanished"]) == 1  # the others have signed off
        demo.process.send_signal(signal.SIGINT)
        demo.all_holds()
        assert demo.leftovers() == []
    assert demo.has_said("server killed (SIGKILL)")
    assert any("before the server was killed" in check["what"] for check in demo.checks["checks"])
    served_again(tmp_path)


@pytest.mark.long
def test_embedded_server(tmp_path: Path) -> None:
    """A run with its own server ends with exit code 0 and successful checks, and leaves no process."""
    with running(tmp_path / "out") as demo:
        demo.all_holds()
        assert demo.leftovers() == []
    served_again(tmp_path)


@pytest.mark.long
@pytest.mark.realserver
def test_real_redis(tmp_path: Path, real_redis: ServerProcess) -> None:
    """A run on real Redis uses its own keys, removes them, and does not change other keys."""
    with real_redis.client() as client:
        client.set("flights", "somebody else's")
        with running(tmp_path / "out", "--url", real_redis.url) as demo:
            demo.all_holds()
        assert client.keys("*") == [b"flights"]
    assert demo.checks["server"].startswith("Redis ")


@pytest.mark.realserver
def test_fault_on_real_redis_ends_in_exit_code_1(tmp_path: Path, real_redis: ServerProcess) -> None:
    """An additional alert, added during a run, fails its check and the command.

    All other checks pass, on real Redis too; with ``--keep`` its keys stay, beside earlier ones.
    """
    with real_redis.client() as client, running(tmp_path / "out", "--url", real_redis.url, "--keep") as demo:
        client.set("flights", "somebody else's")
        eventually(lambda: demo.has_said("worker-2 killed"), 60)
        [alerts] = eventually(lambda: client.keys("millstream-demo:*:alerts"), 60)  # the first flight may be late
        client.xadd(alerts, {"of": "1-1", "kind": "late"})
        assert demo.wait() == 1
        assert client.xlen(alerts.replace(b"alerts", b"flights")) == int(ROWS)  # --keep
        assert client.get("flights") == b"somebody else's"
    failed = [check["what"] for check in demo.checks["checks"] if not check["ok"]]
    assert failed == ["left 60 minutes late or more"]
    assert not demo.checks["ok"]
    assert demo.checks["server"].startswith("Redis ")
    assert "1 of 25 checks fail" in (tmp_path / "out" / "page.html").read_text()
    assert list((tmp_path / "out" / "parquet" / "hourly_by_airport").glob("*.parquet"))
    assert demo.leftovers() == []


@pytest.mark.realserver
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted(tmp_path: Path, real_redis: ServerProcess, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end a run with code 130, and leave neither processes nor keys."""
    with real_redis.client() as client, running(tmp_path / "out", "--url", real_redis.url) as demo:
        client.set("flights", "somebody else's")
        eventually(lambda: demo.has_said("worker-2 killed"), 60)
        demo.process.send_signal(number)
        demo.process.send_signal(number)  # impatience changes nothing
        assert demo.wait() == 130
        eventually(lambda: not demo.leftovers())
    assert re.search(r"stopped", demo.said[-1])
    with real_redis.client() as client:
        assert client.keys("*") == [b"flights"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_is_ctrl_c_once(number: signal.Signals) -> None:
    """Each ending signal stops the run in order, and a second one does not interrupt that."""
    before = [signal.getsignal(each) for each in ENDING]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests may have had it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with signals_as_interrupt():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            for again in ENDING:
                signal.raise_signal(again)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        for each, handler in zip(ENDING, before, strict=True):
            signal.signal(each, handler)


@pytest.mark.realserver
def test_broken_worker_is_told(tmp_path: Path, real_redis: ServerProcess) -> None:
    """A process that ends unexpectedly ends the run with exit code 1, its name and its log."""
    with running(tmp_path / "out", "--url", real_redis.url) as demo:
        pids: list[int] = []

        def started() -> bool:
            assert demo.process.poll() is None, "\n".join(demo.said)
            pids[:] = [int(line.split()[0]) for line in demo.leftovers() if "flights.pipeline" in line]
            return len(pids) == 1

        eventually(started, 60)
        os.kill(pids[0], signal.SIGKILL)
        assert demo.wait() == 1
        eventually(lambda: not demo.leftovers())
    assert demo.has_said("the Spark pipeline ended by itself (killed by SIGKILL)")
    assert demo.has_said("spark.log")
