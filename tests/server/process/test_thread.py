"""The server in a thread: starting, failing to start, stopping with clients connected."""

import asyncio
import socket
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from millstream.errors import ConfigError, LogLockedError, UsageError
from millstream.server import loops
from millstream.server.app import Server
from millstream.server.listener import ListenError, bind_unix, is_loopback, show_address, tcp_sentence, tcp_url
from millstream.server.process import RecoveryProgress
from millstream.server.settings import Delays, Settings
from millstream.server.thread import ServerThread
from support.wire import Wire


def test_both_ways_in(tmp_path: Path) -> None:
    """TCP and a unix socket lead to the same data. The socket is removed at the end."""
    path = tmp_path / "s.sock"
    with ServerThread(unixsocket=path) as server:
        tcp, unix = server.server.urls
        with Wire(tcp) as one, Wire(unix) as two:
            one.ask("SET", "a", 1)
            assert two.ask("GET", "a") == b"1"
            assert f"addr={path}:0 ".encode() in two.ask("CLIENT", "INFO")
            assert b" flags=U " in two.ask("CLIENT", "INFO")
            assert f"unix_socket:{path}\r\n".encode() in one.ask("INFO", "server")
    assert not path.exists()


def test_unix_socket_alone(tmp_path: Path) -> None:
    """Without TCP the socket is the server's URL."""

    async def run() -> None:
        server = Server(Settings(port=None, unixsocket=tmp_path / "s.sock"))
        await server.start()
        assert server.url == f"unix://{tmp_path}/s.sock"
        await server.stop()

    asyncio.run(run())


def test_a_server_may_be_stopped_again(tmp_path: Path) -> None:
    """A server may be stopped twice, at the same time or later."""

    async def run() -> None:
        server = Server(Settings(port=0, directory=tmp_path / "data"))
        await server.start()
        async with asyncio.timeout(30):
            await asyncio.gather(server.stop(), server.stop())
            await server.stop()
        assert server.failure is None

    asyncio.run(run())


def test_errors_reach_the_caller(tmp_path: Path) -> None:
    """An error that prevents a start is raised in the caller, and leaves no resource in use."""
    with pytest.raises(ConfigError, match="nosuch"):
        ServerThread(parameters={"nosuch": "1"}).start()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenError, match="in use"):
        ServerThread(tmp_path / "data", port=taken.getsockname()[1]).start()
    with ServerThread(tmp_path / "data"), pytest.raises(LogLockedError, match="in use by process"):
        ServerThread(tmp_path / "data").start()
    with pytest.raises(UsageError, match="does not run"):
        _ = ServerThread().url


def test_same_object_starts_again(tmp_path: Path) -> None:
    """A stopped server can be started again on the same data, and a second stop does nothing."""
    server = ServerThread(tmp_path)
    for expected in (1, 2, 3):
        with server, Wire(server.url) as wire:
            assert wire.ask("INCR", "n") == expected
        server.stop()


def test_stop_does_not_wait_for_ever() -> None:
    """A stop closes waiting clients at once, and one that reads no replies after a time limit."""
    server = ServerThread().start()
    server.server.settings = replace(server.settings, delays=Delays(farewell=0.05))
    with Wire(server.url) as slow, Wire(server.url) as waiting, Wire(server.url) as idle:
        slow.ask("SET", "big", b"x" * (32 * 1024 * 1024))
        slow.send("GET", "big")
        assert slow.socket.recv(1)
        waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        assert idle.ask("PING") == b"PONG"
        server.stop()
        for wire in (waiting, idle, slow):
            assert wire.is_closed()


def test_ipv6() -> None:
    """A server can listen on an IPv6 address, shows it in brackets, and treats ::1 as loopback."""
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        server = ServerThread(host="::1").start()
    except ListenError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        assert server.url.startswith("redis://[::1]:")
        with Wire(server.url) as wire:
            assert b" addr=[::1]:" in wire.ask("CLIENT", "INFO")
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("127.8.8.8", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("::ffff:192.0.2.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (("192.0.2.1", 1), False),
        ("", False),
    ],
)
def test_loopback(peer: object, expected: bool) -> None:
    """Protected mode trusts only addresses of the machine itself, in any spelling."""
    assert is_loopback(peer) == expected


def test_addresses_for_people() -> None:
    """The URLs that are shown work as shown, for every kind of address."""
    assert tcp_url("0.0.0.0", 5) == "redis://127.0.0.1:5"
    assert tcp_url("::", 5) == "redis://[::1]:5"
    assert tcp_url("example.org", 5) == "redis://example.org:5"
    assert show_address(("::1", 5, 0, 0), None) == "[::1]:5"
    assert show_address("", Path("/s")) == "/s:0"


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (PermissionError(13, "Permission denied"), "above 1023"),
        (OSError(99, "Cannot assign requested address"), "--host"),
        (socket.gaierror(-2, "Name or service not known"), "the host name 'host' is unknown"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_sentences_for_addresses(error: OSError, part: str) -> None:
    """Each refused address has an error with advice."""
    assert part in tcp_sentence("host", 5, error)


async def test_unix_socket_that_cannot_be_made(tmp_path: Path) -> None:
    """An error names a path at which no unix socket can be created."""
    with pytest.raises(ListenError, match="choose another path"):
        bind_unix(tmp_path / "no" / "such" / "folder")
    with pytest.raises(ListenError, match="choose another path"):
        bind_unix(tmp_path / ("x" * 200))


def test_server_runs_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra uvloop the server uses asyncio's own loop."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loops.loop_factory() is asyncio.new_event_loop


class Terminal(StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "terminal"), [(Terminal(), True), (StringIO(), False)], ids=["terminal", "file"])
def test_progress_is_for_terminals_and_long_logs(
    out: StringIO, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading progress is drawn on a terminal for a long log, and nowhere else."""
    monkeypatch.setenv("TERM", "xterm")
    with RecoveryProgress(out) as progress:
        progress.tell("check", 10, 1000)
        assert out.getvalue() == ""
        for done in (1 << 20, 50 << 20, 100 << 20):
            progress.tell("check", done, 100 << 20)
            progress.tell("load", done, 100 << 20)
    assert ("Checking the log" in out.getvalue()) == terminal
    assert ("Loading the log" in out.getvalue()) == terminal
