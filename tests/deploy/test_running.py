"""The command lines of the deployment files, run as plain processes and stopped as a service manager does."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deploy.files import DEPLOY, PROGRAM, containers, started
from support.ports import free_port
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually

BIN = Path(sys.executable).parent
APP = """
from millstream import App, StreamSub
app = App()

@app.subscriber(StreamSub("orders", group="billing"))
async def bill(n: int) -> None:
    print("billed", n, flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server for workers and the console."""
    with millstream_server(tmp_path, "--memory") as found:
        yield found


def placed(words: Sequence[str], folder: Path, ports: dict[str, int]) -> list[str]:
    """Return a unit's command line with this machine's program, folders and ports."""
    places = {
        PROGRAM: str(BIN / "millstream"),
        "/var/lib/millstream": str(folder / "data"),
        "/run/millstream/server.sock": str(folder / "sock"),
        "/srv/millstream": str(folder),
    }
    return [places.get(word) or str(ports.get(word, word)) for word in words]


def begun(words: Sequence[str], folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    with (folder / "out").open("wb") as out:
        return subprocess.Popen(
            words, cwd=folder, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT
        )


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code after SIGTERM to the main process alone."""
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=30)


def test_the_servers_unit_serves_and_ends_cleanly(tmp_path: Path) -> None:
    """The server's unit serves at its port and socket, and its data is there after a restart."""
    port = free_port()
    words = placed(started(DEPLOY / "systemd/millstream-server.service"), tmp_path, {"6379": port})
    server = ServerProcess(words, port, tmp_path / "log")
    with server, server.client() as client:
        client.xadd("s", {"n": 1})
        assert (tmp_path / "sock").is_socket()
        assert server.stop() == 0
    with server, server.client() as client:
        assert client.xlen("s") == 1


def test_a_workers_unit_works_and_ends_cleanly(server: ServerProcess, tmp_path: Path) -> None:
    """The worker's unit runs two processes with an endpoint each, and SIGTERM ends them all with code 0."""
    (tmp_path / "orders.py").write_text(APP)
    port = free_port(2)
    unit = DEPLOY / "systemd/millstream-worker@.service"
    process = begun(placed(started(unit), tmp_path, {"9100": port}), tmp_path, MILLSTREAM_URL=server.url)
    try:
        for at in (port, port + 1):
            eventually(lambda at=at: status(f"http://127.0.0.1:{at}/readyz") == 200)
        assert ended(process) == 0
    finally:
        process.kill()


def test_a_mistake_in_a_workers_unit_is_not_tried_again(server: ServerProcess, tmp_path: Path) -> None:
    """The worker's unit does not restart after the exit code of a missing app."""
    unit = DEPLOY / "systemd/millstream-worker@.service"
    process = begun(placed(started(unit, "nothing:app"), tmp_path, {"9100": free_port(2)}), tmp_path)
    assert f"RestartPreventExitStatus={process.wait(timeout=60)}\n" in unit.read_text()


def test_the_consoles_unit_shows_and_ends_cleanly(server: ServerProcess, tmp_path: Path) -> None:
    """The console's unit serves on loopback without a password, and ends with code 0."""
    port = free_port()
    words = placed(started(DEPLOY / "systemd/millstream-console.service"), tmp_path, {"8379": port})
    process = begun(words, tmp_path, MILLSTREAM_URL=server.url)
    try:
        eventually(lambda: status(f"http://127.0.0.1:{port}/") == 200)
        assert ended(process) == 0
    finally:
        process.kill()


def test_a_pod_is_drained_before_it_ends(server: ServerProcess, tmp_path: Path) -> None:
    """A pod's preStop drains the worker, which then ends by itself with code 0."""
    ((_, pod),) = [(spec, each) for spec, each in containers() if each["name"] == "worker"]
    (tmp_path / "orders.py").write_text(APP)
    port = free_port()
    words = [str(BIN / "millstream"), *placed(pod["args"], tmp_path, {"9100": port}), "--app-dir", str(tmp_path)]
    process = begun(words, tmp_path, MILLSTREAM_URL=server.url)
    try:
        eventually(lambda: status(f"http://127.0.0.1:{port}/readyz") == 200)
        environment = {
            **os.environ,
            "MILLSTREAM_URL": server.url,
            "HOSTNAME": socket.gethostname(),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        command = pod["lifecycle"]["preStop"]["exec"]["command"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        assert "Ended: 1." in done.stderr
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
