"""Clients whose commands run in one turn of the event loop: order, fairness, stops, and kinds of socket."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from millstream.server.app import Server
from millstream.server.settings import Settings
from millstream.server.sockets import native_calls
from millstream.server.tls import Tls
from support.certificates import make_certificates
from support.wire import pack

native = pytest.mark.skipif(native_calls() is None, reason="the native core reads sockets on Linux only")
CLOSED = "closed"


class Line:
    """One connection to a server in the test's own loop; reading it does not block the loop.

    Args:
        sock: the connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(20)
        self.socket = sock
        self._reader = hiredis.Reader()

    def send(self, *words: str | int) -> None:
        """Send a command, while the loop is blocked."""
        self.socket.sendall(pack(*words))

    def read(self) -> Any:
        """Return the next reply, or ``CLOSED``."""
        while (reply := self._reader.gets()) is False:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                return CLOSED
            self._reader.feed(data)
        return reply

    async def reply(self) -> Any:
        """Return the next reply without blocking the loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.read)

    async def ask(self, *words: str | int) -> Any:
        """Send a command and return its reply."""
        self.send(*words)
        return await self.reply()

    def is_silent(self) -> bool:
        """Return True if nothing has come."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        finally:
            self.socket.settimeout(20)
        return False


@contextlib.asynccontextmanager
async def standing(count: int, settings: Settings | None = None) -> AsyncIterator[tuple[Server, list[Line]]]:
    """Yield a server in this loop, and ``count`` clients, whose data arrives in one turn."""
    server = Server(settings or Settings(port=0))
    await server.start()
    try:
        with contextlib.ExitStack() as stack:
            address = ("127.0.0.1", server.facts.tcp_port)
            lines = [Line(stack.enter_context(socket.create_connection(address))) for _ in range(count)]
            for line in lines:
                assert await line.ask("PING") == b"PONG"
            yield server, lines
    finally:
        await server.stop()


@native
async def test_an_endless_pipeline_keeps_nobody_waiting() -> None:
    """A pipeline longer than a turn takes is run in parts, with turns of all other clients in between."""
    async with standing(6) as (server, (greedy, *others)):
        before, many = server.node.stats.processed, 20_000
        greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sending = asyncio.get_running_loop().run_in_executor(None, greedy.socket.sendall, pack("ECHO", "x") * many)
        while server.node.stats.processed == before:  # noqa: ASYNC110 - by this loop
            await asyncio.sleep(0)
        for line in others:
            line.send("PING")
        began = server.node.stats.processed
        while any(line.is_silent() for line in others):  # noqa: ASYNC110 - the same
            await asyncio.sleep(0)
        assert server.node.stats.processed - began < 3 * 512  # rounds of the greedy one
        for line in others:
            assert await line.reply() == b"PONG"
        for _ in range(many):
            assert await greedy.reply() == b"x"
        await sending


@native
@pytest.mark.parametrize("words", [("PING",), ("CLIENT", "ID")])
async def test_who_was_answered_in_a_turn_and_is_killed_in_it_hears_nothing(words: tuple[str, ...]) -> None:
    """A client that another one kills in the same turn gets no pending reply, as in Redis."""
    async with standing(3) as (server, (victim, killer, other)):
        number = await victim.ask("CLIENT", "ID")
        victim.send(*words)
        killer.send("CLIENT", "KILL", "ID", number)
        other.send("PING")
        assert await killer.reply() == 1
        assert await other.reply() == b"PONG"
        assert await victim.reply() == CLOSED
        assert len(server.open_connections) == 2


@native
async def test_a_pause_holds_those_behind_it_in_its_turn() -> None:
    """CLIENT PAUSE of writes delays only clients behind it in the turn; each gets one reply afterwards."""
    async with standing(4) as (_, (before, pauses, reads, writes)):
        before.send("XADD", "s", "1-1", "f", "v")
        pauses.send("CLIENT", "PAUSE", "100000", "WRITE")
        reads.send("XLEN", "s")
        writes.send("XADD", "s", "2-1", "f", "v")
        assert await before.reply() == b"1-1"
        assert await pauses.reply() == b"OK"
        assert await reads.reply() == 1
        assert writes.is_silent()
        assert await pauses.ask("CLIENT", "UNPAUSE") == b"OK"
        assert await writes.reply() == b"2-1"
        assert await writes.ask("XLEN", "s") == 2


@native
async def test_what_a_turn_with_shutdown_answers_is_done(tmp_path: Path) -> None:
    """A client in one turn with SHUTDOWN gets its reply or is closed. Acknowledged writes are durable."""
    settings = Settings(port=0, directory=tmp_path / "data")
    server = Server(settings)
    await server.start()
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.facts.tcp_port)
        lines = [Line(stack.enter_context(socket.create_connection(address))) for _ in range(4)]
        for line in lines:
            assert await line.ask("PING") == b"PONG"
        lines[0].send("XADD", "s", "1-1", "f", "v")
        lines[1].send("SHUTDOWN")
        lines[2].send("XADD", "s", "2-1", "f", "v")
        lines[3].send("CLIENT", "GETNAME")
        await server.stopping.wait()
        await server.stop()
        told = [await line.reply() for line in lines]
        assert told[:2] == [b"1-1", CLOSED]
        assert told[2] in {b"2-1", CLOSED}
        assert told[3] in {b"", None, CLOSED}
        assert [await line.reply() for line in lines] == [CLOSED] * 4
    async with standing(1, settings) as (_, (line,)):
        assert await line.ask("XLEN", "s") == 1 + (told[2] == b"2-1")


@native
async def test_sockets_of_every_kind_are_answered_side_by_side(tmp_path: Path) -> None:
    """TCP, unix socket and TLS clients in one turn each get their own replies, and write to one stream."""
    made = make_certificates(tmp_path)
    path = tmp_path / "socket"
    served = Tls(0, made.file("server.crt"), made.file("server.key"), auth_clients="no")
    settings = Settings(port=0, directory=tmp_path / "data", unixsocket=path, tls=served)
    async with standing(1, settings) as (server, (plain,)):
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context(cafile=str(made.ca))
        context.check_hostname = False
        with contextlib.ExitStack() as stack:
            local = stack.enter_context(socket.socket(socket.AF_UNIX))
            local.connect(str(path))
            bare = socket.create_connection(("127.0.0.1", server.tls_port))
            wrapped = await loop.run_in_executor(None, context.wrap_socket, bare)
            lines = [plain, Line(local), Line(stack.enter_context(wrapped))]
            assert await lines[2].ask("PING") == b"PONG"
            for turn in range(1, 20):
                for number, line in enumerate(lines):
                    line.send("XADD", f"s{number}", f"{turn}-1", "f", "v")
                    line.send("ECHO", f"{turn}.{number}")
                for number, line in enumerate(lines):
                    assert await line.reply() == b"%d-1" % turn
                    assert await line.reply() == b"%d.%d" % (turn, number)
            assert [await plain.ask("XLEN", f"s{number}") for number in range(3)] == [19] * 3


@native
async def test_who_is_full_and_closes_its_side_is_sent_the_rest() -> None:
    """A client that shuts its sending side gets a reply larger than its socket buffers whole, then the end."""
    async with standing(2) as (server, (slow, other)):
        data = pack("SET", "k", "x" * 6_000_000)
        await asyncio.get_running_loop().run_in_executor(None, other.socket.sendall, data)
        assert await other.reply() == b"OK"
        slow.socket.sendall(pack("GET", "k") + pack("PING"))
        slow.socket.shutdown(socket.SHUT_WR)
        for _ in range(20):
            assert await other.ask("PING") == b"PONG"
        assert len(server.open_connections) == 2
        assert [await slow.reply() for _ in range(3)] == [b"x" * 6_000_000, b"PONG", CLOSED]


@native
async def test_a_reply_that_the_kernel_takes_in_part_comes_whole() -> None:
    """A client that sends on and reads nothing has its replies queued in order; others are served."""
    async with standing(2) as (server, (slow, other)):
        assert await other.ask("SET", "k", "x" * 10_000) == b"OK"
        connection = next(each for each in server.open_connections if each.session.addr.endswith(_port(slow)))
        asked = 0
        while not connection.unsent:
            slow.send("GET", "k")
            assert await other.ask("PING") == b"PONG"
            asked += 1
        for number in range(3):
            slow.send("ECHO", str(number))
            slow.send("GET", "k")
            assert await other.ask("PING") == b"PONG"
        for _ in range(asked):
            assert await slow.reply() == b"x" * 10_000
        for number in range(3):
            assert await slow.reply() == b"%d" % number
            assert await slow.reply() == b"x" * 10_000
        sent = (asked + 3) * len(b"$10000\r\n\r\n" + b"x" * 10_000) + 3 * len(b"$1\r\n0\r\n") + len(b"+PONG\r\n")
        assert connection.session.traffic().sent == sent


def _port(line: Line) -> str:
    return f":{line.socket.getsockname()[1]}"
