"""The log and its rewriting always have the file descriptors that they need, and the server continues."""

import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.server import accepting
from millstream.server.thread import ServerThread
from millstream.server.tls import Tls
from support.certificates import Certificates, make_certificates
from support.ports import free_port
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

FILES = 256
CROWD = 300
OWN = 48  # what the server keeps for itself


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return certificates of an authority and a server."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Yield silent connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * CROWD:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CROWD, hard))
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            found.append(sock)
        try:
            yield found
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def accepted_at(port: int) -> Iterator[tuple[str, int]]:
    """Yield the peers of connections that this process accepted at a port, found among its descriptors."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):  # it is not a socket, has no peer, or is closed by now
            sock = socket.socket(fileno=int(name))
            try:
                if sock.family == socket.AF_INET and sock.getsockname()[1] == port:
                    yield sock.getpeername()
            finally:
                sock.detach()


@contextlib.contextmanager
def encrypted(port: int, certificates: Certificates) -> Iterator[ssl.SSLSocket]:
    """Yield a connection after its TLS handshake."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


def limited(server: ServerProcess, files: int = FILES) -> ServerProcess:
    """Return the same server where a shell allows only ``files`` open files."""
    server.command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *server.command]
    return server


def open_files(server: ServerProcess) -> int:
    assert server.process is not None
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def check_rewrites(server: ServerProcess) -> None:
    """Check that the log continues in a new file and is rewritten."""
    with Wire(server.url) as wire:
        assert wire.ask("SET", "k", "v") == b"OK"
        assert b"started" in wire.ask("BGREWRITEAOF")
        eventually(lambda: b"aof_rewrite_in_progress:0" in wire.ask("INFO", "persistence"))
        assert b"aof_last_bgrewrite_status:ok" in wire.ask("INFO", "persistence")


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see open files")


@needs_proc
def test_idle_handshakes_leave_the_server_alone(tmp_path: Path, certificates: Certificates) -> None:
    """With 300 connections that begin no TLS, at 256 files, both ports serve and the log is rewritten."""
    tls = free_port()
    files = [
        "--tls-cert-file",
        str(certificates.file("server.crt")),
        "--tls-key-file",
        str(certificates.file("server.key")),
    ]
    server = limited(millstream_server(tmp_path, "--tls-port", str(tls), *files, "--tls-auth-clients", "no"))
    with server, crowd(tls, CROWD):
        check_rewrites(server)
        with encrypted(tls, certificates) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"
        assert open_files(server) <= FILES - accepting.RESERVE
        check_rewrites(server)
        assert server.stop() == 0


@needs_proc
def test_clients_leave_descriptors_for_the_log(tmp_path: Path) -> None:
    """Twice as many clients as maxclients: the surplus gets an error, and the log is rewritten meanwhile."""
    server = limited(millstream_server(tmp_path))
    with server, Wire(server.url) as first:
        assert first.ask("CONFIG", "GET", "maxclients") == [b"maxclients", b"%d" % (FILES - OWN)]
        with crowd(server.port, CROWD) as clients:
            eventually(
                lambda: b"rejected_connections:%d\r\n" % (CROWD + 1 - (FILES - OWN)) in first.ask("INFO", "stats")
            )
            clients[-1].setblocking(True)
            assert clients[-1].recv(100) == b"-ERR max number of clients reached\r\n"
            assert first.ask("SET", "k", "v") == b"OK"
            assert b"started" in first.ask("BGREWRITEAOF")
            eventually(lambda: b"aof_rewrite_in_progress:0" in first.ask("INFO", "persistence"))
            assert b"aof_last_bgrewrite_status:ok" in first.ask("INFO", "persistence")
        assert server.stop() == 0


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit to lower a limit")
def test_no_descriptor_is_try_again_later(tmp_path: Path) -> None:
    """If accept() finds no descriptor, the server logs it once, continues, and accepts the waiting clients later."""
    with millstream_server(tmp_path) as server, Wire(server.url) as first:
        assert server.process is not None
        assert first.ask("PING") == b"PONG"
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as waiting:
            waiting.sendall(b"PING\r\n")
            eventually(lambda: "no connection can be accepted for now" in server.log.read_text())
            assert first.ask("INCR", "n") == 1
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert waiting.recv(100) == b"+PONG\r\n"
        assert server.log.read_text().count("no connection can be accepted") == 1
        assert server.stop() == 0


def test_an_embedded_server_keeps_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that uses most descriptors itself, a connection that would take one of the last gets an error."""
    with ServerThread() as server, Wire(server.url) as first:
        assert first.ask("PING") == b"PONG"
        used = max(first.socket.fileno(), int(first.ask("CLIENT", "LIST").partition(b" fd=")[2].split()[0]))
        monkeypatch.setattr(accepting, "descriptors", lambda: used + accepting.RESERVE)
        with Wire(server.url) as second:
            assert str(second.read()) == "ERR max number of clients reached"
            assert second.is_closed()
        assert b"rejected_connections:1\r\n" in first.ask("INFO", "stats")


def test_slow_handshakes_give_way(certificates: Certificates) -> None:
    """Connections that begin no TLS are dropped early while others wait, however many they are."""
    pair = certificates.file("server.crt"), certificates.file("server.key")
    with (
        ServerThread(tls=Tls(0, *pair, auth_clients="no", handshakes=3, grace=0.05)) as server,
        crowd(server.server.tls_port, 20) as strangers,
        encrypted(server.server.tls_port, certificates) as client,
    ):
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        mine = {sock.getsockname() for sock in strangers}
        assert len(mine & set(accepted_at(server.server.tls_port))) <= 3


def test_maxclients_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """CONFIG SET maxclients accepts as many as the system has descriptors for, and otherwise names that number."""
    with limited(millstream_server(tmp_path, "--memory")) as server, Wire(server.url) as wire:
        assert str(wire.ask("CONFIG", "SET", "maxclients", "1000")) == (
            "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to "
            f"handle the specified number of clients, try with {FILES - OWN}"
        )
        assert wire.ask("CONFIG", "SET", "maxclients", "100") == b"OK"
        assert wire.ask("CONFIG", "SET", "maxclients", f"{FILES - OWN}") == b"OK"


def test_too_few_files_for_the_server_itself(tmp_path: Path) -> None:
    """A file limit that leaves no descriptor for clients is refused at the start, with the number that is enough."""
    server = limited(millstream_server(tmp_path, "--memory"), 30)
    with pytest.raises(RuntimeError, match="the system allows 30 open files, and the server needs 48"):
        server.start()


def test_one_place_more_by_the_unix_socket(tmp_path: Path) -> None:
    """At maxclients one more connection is accepted on the unix socket, so that an administrator can end others."""
    socket_path = tmp_path / "s.sock"
    with (
        ServerThread(unixsocket=socket_path, parameters={"maxclients": "2"}) as server,
        Wire(server.url) as one,
        Wire(server.url) as two,
    ):
        assert (one.ask("PING"), two.ask("PING")) == (b"PONG", b"PONG")
        with Wire(f"unix://{socket_path}") as admin, Wire(f"unix://{socket_path}") as late:
            assert str(late.read()) == "ERR max number of clients reached"
            assert admin.ask("CLIENT", "KILL", "ADDR", "{}:{}".format(*one.socket.getsockname())) == 1
            assert one.is_closed()
