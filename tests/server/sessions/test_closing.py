"""Connections that close after unread replies count as clients until they are gone."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.server import thread
from millstream.server.connection import Connection
from millstream.server.settings import Delays
from millstream.server.thread import ServerThread
from support.clock import Ahead
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire, pack

PART = 200 * 1024


@pytest.fixture(params=["fastest", "asyncio"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """Yield a server of at most three clients, on both kinds of loop."""
    if request.param == "asyncio":
        monkeypatch.setattr(thread, "loop_factory", lambda: asyncio.new_event_loop)
    with ServerThread(parameters={"maxclients": "3"}) as running:
        yield running


def leave(server: ServerThread, other: Wire, wire: Wire, last: bytes) -> tuple[str, int]:
    """Request a little more than the kernel buffers, end the connection, read nothing; return its address and the size.

    Much more would leave the end unread after the replies, as with any client that does not read them. The kernel may
    still take as much as the small receive buffer, and a busy machine takes it late.
    """
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    address = "{}:{}".format(*wire.socket.getsockname())
    wire.ask("CLIENT", "SETNAME", "leaving")
    (connection,) = [each for each in server.server.open_connections if each.session.addr == address]
    errors = server.server.facts.protocol_errors
    asked = 0
    while connection.unsent < PART // 2:
        before = connection.session.commands
        wire.send("GET", "part")
        asked += 1
        eventually(lambda before=before: connection.session.commands > before)
        for _ in range(3):
            other.ask("PING")
    wire.socket.sendall(last)
    eventually(lambda: connection.session.last_command == "quit" or server.server.facts.protocol_errors > errors)
    assert other.ask("PING") == b"PONG"  # so the turn of the connection's end is over
    assert connection.unsent
    return address, asked


@pytest.mark.parametrize("last", [pack("QUIT"), b"*1\r\n$x\r\n"], ids=["quit", "protocol error"])
def test_who_does_not_take_the_last_replies_stays_a_client(server: ServerThread, last: bytes) -> None:
    """A closing client with unread replies is listed, counts for maxclients, and can be killed until it is gone."""
    with Wire(server.url) as other, Wire(server.url) as ghost, Wire(server.url) as second:
        other.ask("SET", "part", b"x" * PART)
        addresses = [leave(server, other, wire, last)[0] for wire in (ghost, second)]
        lines = other.ask("CLIENT", "LIST").decode().splitlines()
        assert [address for address in addresses if any(f"addr={address} " in line for line in lines)] == addresses
        assert b"connected_clients:3\r\n" in other.ask("INFO", "clients")
        with Wire(server.url) as late:
            assert str(late.read()) == "ERR max number of clients reached"
        assert other.ask("CLIENT", "KILL", "ADDR", addresses[0]) == 1
        eventually(lambda: len(server.server.open_connections) == 2)
        assert b"connected_clients:2\r\n" in other.ask("INFO", "clients")


def test_limits_of_output_hold_for_who_is_leaving(server: ServerThread) -> None:
    """A client above the soft output limit for its time is disconnected, also if it has sent QUIT."""
    server.server.settings = replace(server.settings, delays=Delays(slow_check=0.01))
    clock = server.server.clock = Ahead()
    with Wire(server.url) as other, Wire(server.url) as ghost:
        other.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 1kb 60")
        other.ask("SET", "part", b"x" * PART)
        leave(server, other, ghost, pack("QUIT"))
        clock.ms += 61_000
        eventually(lambda: len(server.server.open_connections) == 1)
        assert b"client_output_buffer_limit_disconnections:1\r\n" in other.ask("INFO", "stats")


def test_the_last_replies_are_taken(server: ServerThread) -> None:
    """A client that sends QUIT and then reads gets every reply, OK at the end, and the connection closes."""
    with Wire(server.url) as other, Wire(server.url) as patient:
        other.ask("SET", "part", b"x" * PART)
        _, asked = leave(server, other, patient, pack("QUIT"))
        assert [len(patient.read()) for _ in range(asked)] == [PART] * asked
        assert patient.read() == b"OK"
        assert patient.is_closed()
        eventually(lambda: b"connected_clients:1\r\n" in other.ask("INFO", "clients"))


def test_nothing_is_published_to_who_is_leaving(server: ServerThread) -> None:
    """A closing client with unread replies gets no more published messages."""
    with Wire(server.url) as other, Wire(server.url, 3) as ghost:
        other.ask("SET", "part", b"x" * PART)
        ghost.ask("SUBSCRIBE", "c")
        _, asked = leave(server, other, ghost, pack("QUIT"))
        for _ in range(10):
            other.ask("PUBLISH", "c", "after")
        assert [len(ghost.read()) for _ in range(asked)] == [PART] * asked
        assert ghost.read() == b"OK"
        assert ghost.is_closed()


def test_a_reply_to_who_is_gone_goes_nowhere(server: ServerThread) -> None:
    """Commands scheduled before their client disconnected write no reply, which would raise an error in uvloop."""
    raised: list[BaseException] = []

    def answer(connection: Connection) -> None:
        try:
            connection.data_received(pack("PING"))
        except RuntimeError as error:
            raised.append(error)
        done.set()

    done = threading.Event()
    with Wire(server.url) as wire:
        assert wire.ask("PING") == b"PONG"
        (connection,) = server.server.open_connections
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    eventually(lambda: not server.server.open_connections)
    server.server.loop.call_soon_threadsafe(answer, connection)
    assert done.wait(10)
    assert raised == []


def left(url: str, before: bytes, *after: bytes) -> bytes:
    """Return everything that a server sends to a connection that kills itself in a transaction."""
    with Wire(url) as wire:
        number = str(wire.ask("CLIENT", "ID"))
        kill = pack("CLIENT", "KILL", "ID", number, "SKIPME", "no")
        wire.socket.sendall(b"".join([before, pack("MULTI"), pack("SET", "k", 1), kill, *after, pack("EXEC")]))
        data = b""
        while more := wire.socket.recv(65536):
            data += more
        return data


@pytest.mark.realserver
@pytest.mark.parametrize(
    "after",
    [
        pytest.param([], id="nothing"),
        pytest.param([pack("SET", "k", 2), pack("GET", "k")], id="commands"),
        pytest.param([pack("SUBSCRIBE", "c"), pack("PING")], id="pushes"),
        pytest.param([pack("CLIENT", "REPLY", "SKIP"), pack("PING")], id="skip"),
        pytest.param([pack("CLIENT", "KILL", "TYPE", "normal"), pack("PING")], id="others"),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_a_transaction_that_kills_its_connection_ends_with_that_reply(
    each_redis: ServerProcess, after: list[bytes], version: int
) -> None:
    """A transaction that kills its own connection runs to its end without further replies, as in Redis."""
    before = pack("CLIENT", "REPLY", "SKIP") + pack("HELLO", version)
    with ServerThread() as server:
        assert left(server.url, before, *after) == left(each_redis.url, before, *after)
        with Wire(server.url) as ours, Wire(each_redis.url) as theirs:
            assert ours.ask("GET", "k") == theirs.ask("GET", "k")
