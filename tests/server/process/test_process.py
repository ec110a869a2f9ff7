"""``millstream serve`` as a process: its output, its end, and its data after a restart."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import pytest
import redis

from millstream import core
from millstream.persistence.log import Log
from support.ports import free_port
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire, pack

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def serve(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``millstream serve`` where it must refuse to start."""
    command = [MILLSTREAM, "serve", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def refused(run: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Check the exit code, an empty stdout, and a short error with these parts and without a traceback."""
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert len(run.stderr) < 1200
    for part in parts:
        assert part in run.stderr


def test_ready_line_and_banner(tmp_path: Path) -> None:
    """Standard output has one line, for programs. Standard error has address, data directory and safety for people."""
    process = subprocess.Popen(
        [MILLSTREAM, "serve", "--port", "0", "--unixsocket", "s.sock", "--dir", "data"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"ready (redis://127\.0\.0\.1:\d+) (unix://s\.sock)\n", line)
        assert found, line
        with Wire(found[1]) as wire:
            assert wire.ask("PING") == b"PONG"
        with Wire(f"unix://{tmp_path}/s.sock") as wire:
            assert wire.ask("PING") == b"PONG"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert out == ""
    assert found[1] in err
    assert str(tmp_path / "data") in err
    assert "every write is on disk before it is acknowledged" in err
    assert f"core     {core.NAME}" in err
    assert not (tmp_path / "s.sock").exists()


def test_the_banner_has_the_limits(tmp_path: Path) -> None:
    """Settings that bound memory and streams are in the banner, if there are any."""
    rules = "stream-retention=orders* 30d 50gb * 7d 5gb"
    with millstream_server(tmp_path, "--maxmemory", "512mb", "--tier", "yes", "--set", rules) as server:
        said = server.log.read_text()
    assert "  limits   maxmemory 536.9 MB, tier yes, stream-retention 'orders* 30d 50gb * 7d 5gb'\n" in said
    with millstream_server(tmp_path / "other") as server:
        assert "  limits" not in server.log.read_text()


def test_default_directory_is_named(tmp_path: Path) -> None:
    """Without --dir and --memory the data goes to ./millstream-data, and the banner has that path."""
    process = subprocess.Popen(
        [MILLSTREAM, "serve", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert str(tmp_path / "millstream-data") in err
    assert "--dir" in err


def test_port_in_use(tmp_path: Path) -> None:
    """A port that is taken is an error of one sentence with advice, before any data is read."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(serve("--port", port, "--dir", "data", cwd=tmp_path), 1, f"127.0.0.1:{port} is in use", "--port")
    assert not (tmp_path / "data").exists()


def test_unusable_address(tmp_path: Path) -> None:
    """An address of another machine, or an unknown name, is an error of one sentence."""
    refused(serve("--port", 0, "--memory", "--host", "192.0.2.1", cwd=tmp_path), 1, "--host")
    refused(serve("--port", 0, "--memory", "--host", "no.such.host.invalid", cwd=tmp_path), 1, "--host")


def test_unusable_directory(tmp_path: Path) -> None:
    """A data directory that cannot be created, or is in use, is an error of one sentence."""
    (tmp_path / "file").write_text("")
    refused(serve("--port", 0, "--dir", "file", cwd=tmp_path), 1, "file")
    with millstream_server(tmp_path) as owner:
        refused(serve("--port", 0, "--dir", "data", cwd=tmp_path), 1, "in use", str(owner.port))


def test_unusable_options(tmp_path: Path) -> None:
    """Invalid options are refused with code 2 before anything is opened."""
    refused(serve("--memory", "--dir", "x", cwd=tmp_path), 2, "--memory", "--dir")
    refused(serve("--no-tcp", cwd=tmp_path), 2, "--unixsocket")
    refused(serve("--set", "nosuch=1", cwd=tmp_path), 2, "nosuch", "stream-node-max-entries")
    refused(serve("--set", "port=1", cwd=tmp_path), 2, "port")
    refused(serve("--set", "maxclients=x", cwd=tmp_path), 2, "must be a whole number", "such as maxclients=10000")
    refused(serve("--set", "stream-idmp-maxsize=0", cwd=tmp_path), 2, "must be between")
    refused(serve("--fsync", "never", cwd=tmp_path), 2, "always")
    assert list(tmp_path.iterdir()) == []


def test_unix_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    """The unix socket of a killed server is replaced; one in use, or a file, is an error."""
    path = tmp_path / "s.sock"
    first = millstream_server(tmp_path / "one", "--memory", "--unixsocket", str(path)).start()
    refused(serve("--port", 0, "--memory", "--unixsocket", path, cwd=tmp_path), 1, "served by another process")
    first.kill()
    assert path.exists()
    with millstream_server(tmp_path / "two", "--memory", "--unixsocket", str(path)), Wire(f"unix://{path}") as wire:
        assert wire.ask("PING") == b"PONG"
    other = tmp_path / "file"
    other.write_text("precious")
    refused(serve("--port", 0, "--memory", "--unixsocket", other, cwd=tmp_path), 1, "exists and is not a socket")
    assert other.read_text() == "precious"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_sigterm_keeps_everything(tmp_path: Path, fsync: str) -> None:
    """In every mode a stop by SIGTERM exits with 0, and everything acknowledged is there after a restart."""
    with millstream_server(tmp_path, "--fsync", fsync) as server:
        with server.client() as client, client.pipeline(transaction=False) as pipe:
            for number in range(2000):
                pipe.xadd("s", {"n": number}, id=f"{number + 1}-1")
            pipe.execute()
            client.xgroup_create("s", "g", "0")
            client.xreadgroup("g", "c", {"s": ">"}, count=10)
            client.set("a", "b", exat=4_000_000_000)
        assert server.stop() == 0
        server.start()
        with server.client() as client:
            assert client.xlen("s") == 2000
            assert client.xpending("s", "g")["pending"] == 10
            assert client.expiretime("a") == 4_000_000_000


def test_sigterm_sends_the_replies_it_owes(tmp_path: Path) -> None:
    """Commands run before a stop have their replies before the connection closes, and their writes are durable."""
    with millstream_server(tmp_path) as server:
        with Wire(server.url) as wire:
            wire.socket.sendall(pack("INCR", "n") * 3000)
            assert wire.read() == 1
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            answered = 1
            try:
                while True:
                    answered = wire.read()
            except (EOFError, ConnectionResetError):
                pass
        assert server.process.wait(timeout=30) == 0
        server.start()
        with server.client() as client:
            assert int(client.get("n")) >= answered


def test_shutdown_command(tmp_path: Path) -> None:
    """SHUTDOWN stops the server cleanly, and closes its client's connection."""
    with millstream_server(tmp_path) as server:
        with Wire(server.url) as wire:
            wire.ask("SET", "a", 1)
            wire.send("SHUTDOWN")
            assert wire.is_closed()
        assert server.process is not None
        assert server.process.wait(timeout=30) == 0
        server.start()
        with server.client() as client:
            assert client.get("a") == b"1"


class Writer(threading.Thread):
    """Adds entries as fast as possible until the server is gone, and records the acknowledged ones."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        super().__init__(daemon=True)
        self.client = server.client(socket_timeout=10)
        self.number = number
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        try:
            while True:
                entry = self.client.xadd("s", {"w": self.number, "n": len(self.acknowledged)})
                self.acknowledged.append(entry)
        except redis.RedisError:
            self.client.close()


def test_sigkill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A server killed at any moment under ``always``, with many writers, has every acknowledged entry afterwards."""
    known: set[bytes] = set()
    with millstream_server(tmp_path) as server:
        for _ in range(4):
            writers = [Writer(server, number) for number in range(8)]
            for writer in writers:
                writer.start()
            eventually(lambda writers=writers: all(len(writer.acknowledged) > 20 for writer in writers))
            assert server.kill() == -signal.SIGKILL
            for writer in writers:
                writer.join(30)
                known.update(writer.acknowledged)
            server.start()
            with server.client() as client:
                there = [entry for entry, _ in client.xrange("s")]
            assert known <= set(there)
            assert len(there) == len(set(there))
            assert len(there) <= len(known) + 8 * 4  # at most one each was in flight at each kill


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit to make a disk fail")
def test_failed_disk_ends_the_server(tmp_path: Path) -> None:
    """A write that the disk refuses is not acknowledged: the process exits with 1 and one line."""
    with millstream_server(tmp_path) as server:
        assert server.process is not None
        with Wire(server.url) as wire:
            assert wire.ask("SET", "a", "kept") == b"OK"
            assert wire.ask("SET", "c", "x" * 20_000) == b"OK"  # the limit is for the server's output file too
            size = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.seg"))
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 100, size + 100))
            wire.send("SET", "b", "x" * 10_000)
            with pytest.raises((EOFError, ConnectionResetError)):
                wire.read()
        assert server.process.wait(timeout=30) == 1
        text = server.log.read_text()
        assert "stopping: " in text
        assert "Traceback" not in text
        server.start()
        with server.client() as client:
            assert client.get("a") == b"kept"
            assert client.get("b") is None


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    """While a stop waits for a client that does not read, Ctrl-C ends the process; a second SIGTERM does not."""
    port = free_port()
    with millstream_server(tmp_path, "--memory", port=port) as server, Wire(server.url) as slow:
        with server.client() as client:
            client.set("big", b"x" * (64 * 1024 * 1024))
        slow.send("GET", "big")
        assert slow.socket.recv(1)
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGTERM)
        eventually(lambda: "stopping" in server.log.read_text())
        os.kill(server.process.pid, signal.SIGTERM)
        os.kill(server.process.pid, signal.SIGINT)
        assert server.process.wait(timeout=30) in {128 + signal.SIGINT, 0}


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see memory")
def test_idle_clients_are_cheap(tmp_path: Path) -> None:
    """A thousand idle clients fit where a shell allows 256 files, take at most 16 KiB each, and delay no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2500:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    server = millstream_server(tmp_path, "--memory", "--maxclients", "1200")
    server.command = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *server.command]
    clients: list[Wire] = []
    try:
        with server:
            assert server.process is not None
            with Wire(server.url) as wire:
                wire.ask("PING")
                before = _resident(server.process.pid)
                clients += [Wire(server.url) for _ in range(1000)]
                assert clients[-1].ask("PING") == b"PONG"
                assert b"connected_clients:1001\r\n" in wire.ask("INFO", "clients")
                assert _resident(server.process.pid) - before < 1000 * 16 * 1024
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_maxclients_is_lowered_to_what_the_system_allows(tmp_path: Path) -> None:
    """If the system allows fewer files than maxclients needs, the server logs that and refuses surplus clients."""
    server = millstream_server(tmp_path, "--memory")
    server.command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *server.command]
    with server, server.client() as client:
        assert client.config_get("maxclients") == {"maxclients": "16"}
        assert "maxclients is lowered to 16" in server.log.read_text()


def steps(*at: int) -> list[tuple[object, ...]]:
    """Return additions with these milliseconds; the first of a stream opens a node."""
    return [("xadd", 0, b"s", one.to_bytes(8, "big") + bytes(8), [b"f", b"v"], one == 5, None) for one in at]


def added(*at: int) -> bytes:
    """Return a record of additions."""
    return bytes(msgpack.packb((1, 2, steps(*at))))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(msgpack.packb((2, 1, [("set", 0, b"k", b"v", None)])), id="later version"),
        pytest.param(msgpack.packb((1, 1, [("put", 0, b"k", b"v")])), id="unknown change"),
        pytest.param(b"\xc1", id="no record"),
        pytest.param(added(6, 3), id="in its midst"),
        pytest.param(added(7)[:-1] + b"\xc2", id="at its end"),
    ],
)
def test_a_record_that_cannot_be_applied_is_a_sentence(tmp_path: Path, record: bytes) -> None:
    """A record with a valid checksum that cannot be applied ends the start with one sentence and changes nothing."""
    log, _ = Log.open(tmp_path / "data")
    log.append(msgpack.packb((1, 1, [("xnew", 0, b"s", 0, 0), *steps(5)])))
    log.append(record)
    log.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").glob("log-*")}
    refused(serve("--port", 0, "--dir", "data", cwd=tmp_path), 1, "a newer Millstream")
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").glob("log-*")} == before


def test_damage_names_the_command_that_explains_it(tmp_path: Path) -> None:
    """The refusal of a damaged log names the command that examines it."""
    log, _ = Log.open(tmp_path / "data")
    for number in range(3):
        log.append(b"%d" % number * 50)
    log.close()
    path = next((tmp_path / "data").glob("log-*"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    refused(serve("--port", 0, "--dir", "data", cwd=tmp_path), 1, "Nothing was changed", "`millstream log check data`")


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    """A file in place of the data directory is an error that names the path and advice."""
    (tmp_path / "file").touch()
    refused(
        serve("--port", 0, "--dir", "file", cwd=tmp_path), 1, "Not a directory; check that it is the right directory"
    )


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_server_without_standard_streams_stops_in_order(tmp_path: Path, closed: str) -> None:
    """A server started with closed standard streams never writes into its files by mistake, and stops cleanly."""
    server = millstream_server(tmp_path)
    server.command[:0] = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    with server:
        with Wire(server.url) as wire:
            assert wire.ask("SET", "k", "v") == b"OK"
        assert server.stop() == 0
        server.start()
        with Wire(server.url) as wire:
            assert wire.ask("GET", "k") == b"v"
