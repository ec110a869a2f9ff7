"""``millstream serve --console``: the console's pages end with the server, and the server continues without them."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from support.ports import free_port
from support.waiting import DEADLINE, eventually

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple["subprocess.Popen[bytes]", str, int]]:
    """Run a server with its console; yield its process, the pages' address, and the console's process id."""
    command = [MILLSTREAM, "serve", "--port", str(free_port()), "--memory", "--console", "0", *words]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        eventually(lambda: "console at http" in said(folder), what="the console answers")
        address = re.findall(r"console at (http://127\.0\.0\.1:\d+/)", said(folder))[0]
        (child,) = children(process.pid)
        yield process, address, child
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE)


def said(folder: Path) -> str:
    """Return the server's output so far."""
    return (folder / "out").read_text()


def url(folder: Path) -> str:
    return re.findall(r"ready (\S+)", said(folder))[0]


def children(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Return True if the process runs and is not a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_pages_show_the_server_and_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console beside a server is read-only, works with the server's password and shows no password.

    It ends with the server, and ignores the usual context.
    """
    monkeypatch.setenv("MILLSTREAM_CONTEXT", "away")
    with served(tmp_path, "--set", "requirepass=s3:cr@t") as (_, address, child):
        with redis.Redis.from_url(url(tmp_path), password="s3:cr@t") as client:
            client.xadd("orders", {"n": 1})
        shown = page(address)
        assert ("orders" in shown, "read-only" in shown, "s3:cr" in shown) == (True, True, False)
        assert b"s3:cr" not in Path(f"/proc/{child}/cmdline").read_bytes()
    assert not runs(child)


def test_the_pages_end_also_where_the_server_was_killed(tmp_path: Path) -> None:
    """The console ends also when its server is killed."""
    with served(tmp_path) as (process, _, child):
        process.kill()
        eventually(lambda: not runs(child), what="the console has ended")


def test_the_server_goes_on_without_its_pages(tmp_path: Path) -> None:
    """If the console ends, the server continues, and logs it with the command to start it again."""
    with served(tmp_path) as (_, _, child):
        os.kill(child, signal.SIGKILL)
        eventually(lambda: "start it again by: millstream console" in said(tmp_path), what="it is said")
        with redis.Redis.from_url(url(tmp_path)) as client:
            assert client.ping()


def test_what_cannot_be_shown_is_said_before_anything_starts(tmp_path: Path) -> None:
    """A console port that is taken, or a server on TLS alone, is an error before anything starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        words = ["serve", "--memory", "--port", "0", "--console", str(taken.getsockname()[1])]
        found = CliRunner().invoke(main, words)
    assert (found.exit_code, "give another port" in found.stderr) == (2, True)
    found = CliRunner().invoke(main, ["serve", "--memory", "--no-tcp", "--tls-port", "0", "--console", "0"])
    assert (found.exit_code, "the server listens at neither" in found.stderr) == (2, True)
