"""Clients whose commands are read, run, committed and replied to together in one turn of the loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from millstream.persistence.log import Log
from millstream.server.app import Server
from millstream.server.connection import Connection
from millstream.server.settings import Settings
from millstream.server.sockets import native_calls
from millstream.server.thread import ServerThread
from support.waiting import aeventually, eventually
from support.wire import Wire, pack

ADD = pack("XADD", "s", "*", "f", "v")

native = pytest.mark.skipif(native_calls() is None, reason="the native core reads sockets on Linux only")


@contextlib.contextmanager
def clients(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Yield ``count`` connections."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.facts.tcp_port)
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


@native
async def test_what_comes_together_is_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of all ready clients are one write and one sync, and no reply is sent before that."""
    server = Server(Settings(port=0, directory=tmp_path / "data"))
    await server.start()
    try:
        with clients(server, 20) as sockets:
            await aeventually(lambda: len(server.open_connections) == 20)
            loop = asyncio.get_running_loop()
            sockets[0].sendall(ADD)
            assert b"-" in await loop.run_in_executor(None, sockets[0].recv, 100)
            sizes: list[int] = []
            silent: list[bool] = []
            sync = Log.sync

            def looking(log: Log) -> int:
                done = sync(log)
                sizes.append(log.written)
                silent.append(all(is_silent(each) for each in sockets))
                return done

            monkeypatch.setattr(Log, "sync", looking)
            for each in sockets:  # the loop is blocked meanwhile
                each.sendall(ADD)
            for each in sockets:
                assert b"-" in await loop.run_in_executor(None, each.recv, 100)
            monkeypatch.undo()
            assert sizes[0] == sizes[-1]
            assert silent[0]
    finally:
        await server.stop()


async def test_what_came_with_what_stops_a_client_is_run_later(tmp_path: Path) -> None:
    """A command that arrives as a wait ends with a large reply is not lost: it runs after that reply."""
    server = Server(Settings(port=0, directory=tmp_path / "data"))
    await server.start()
    try:
        with clients(server, 2) as (adder, waiter):
            loop = asyncio.get_running_loop()
            waiter.sendall(pack("XREAD", "BLOCK", "0", "STREAMS", "s", "$"))
            await aeventually(lambda: len(server.node.sessions.waits.lines.by_place) == 1)
            adder.sendall(pack("EVAL", "redis.call('XADD', 's', '1-1', 'f', string.rep('x', 3000000))", "0"))
            waiter.sendall(pack("ECHO", "first"))  # the loop is blocked meanwhile
            waiter.settimeout(30)
            reader = hiredis.Reader()
            found: list[object] = []
            while len(found) < 2:
                reader.feed(await loop.run_in_executor(None, waiter.recv, 1 << 20))
                while (reply := reader.gets()) is not False:
                    found.append(reply)
            assert found[1] == b"first"
    finally:
        await server.stop()


def is_silent(sock: socket.socket) -> bool:
    """Return True if nothing has come."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


def test_one_that_closes_others_in_a_turn_ends_nobody_else() -> None:
    """CLIENT KILL in a turn ends the named clients at once, and all others get their replies."""
    with ServerThread() as server, Wire(server.url) as killer:
        for _ in range(20):
            with contextlib.ExitStack() as stack:
                wires = [stack.enter_context(Wire(server.url)) for _ in range(6)]
                victims = [wire.ask("CLIENT", "ID") for wire in wires[:2]]
                for wire in wires:
                    wire.socket.sendall(pack("PING") * 3)
                killer.socket.sendall(b"".join(pack("CLIENT", "KILL", "ID", str(each)) for each in victims))
                for wire in wires[2:]:
                    assert [wire.read() for _ in range(3)] == [b"PONG"] * 3
                assert [killer.read() for _ in victims] == [1, 1]


@pytest.mark.parametrize("size", [100_000, 900_000])
def test_replies_larger_than_the_kernel_takes_come_whole_and_in_order(size: int) -> None:
    """Bytes that the kernel does not accept in a turn are sent later, before replies to later commands."""
    with ServerThread() as server, Wire(server.url) as wire:
        for number in range(8):
            assert wire.ask("SET", f"k{number}", bytes([65 + number]) * size) == b"OK"
        asked = [number % 8 for number in range(40)]
        wire.socket.sendall(b"".join(pack("GET", f"k{number}") + pack("ECHO", str(number)) for number in asked))
        for number in asked:
            assert wire.read() == bytes([65 + number]) * size
            assert wire.read() == b"%d" % number


def test_who_sends_and_closes_its_side_is_answered() -> None:
    """A client that shuts its sending side gets its replies, and then the connection closes."""
    with ServerThread() as server, Wire(server.url) as wire:
        wire.ask("SET", "k", b"x" * 500_000)
        wire.socket.sendall(pack("GET", "k") * 20)
        wire.socket.shutdown(socket.SHUT_WR)
        assert [len(wire.read()) for _ in range(20)] == [500_000] * 20
        assert wire.is_closed()
        eventually(lambda: not server.server.open_connections)


def test_who_is_gone_with_replies_untaken_is_let_go() -> None:
    """A reset connection with unread output is detected and closed."""
    with ServerThread() as server, Wire(server.url) as other:
        other.ask("SET", "k", b"x" * 900_000)
        with socket.create_connection(("127.0.0.1", server.server.facts.tcp_port)) as gone:
            gone.sendall(pack("GET", "k") * 30)
            eventually(lambda: any(each.unsent for each in server.server.open_connections))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        eventually(lambda: len(server.server.open_connections) == 1)
        assert other.ask("XLEN", "none") == 0


@native
def test_a_defect_ends_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An uncaught exception closes its client, and the turn of the others continues."""
    with ServerThread() as server, Wire(server.url) as other:
        run = Connection.run_at_once

        def failing(self: Connection, data: bytes, wall: int) -> bytes | None:
            if b"defect" in data:
                raise RuntimeError("a defect")
            return run(self, data, wall)

        monkeypatch.setattr(Connection, "run_at_once", failing)
        with Wire(server.url) as wire:
            wire.send("ECHO", "defect")
            assert wire.is_closed()
        assert other.ask("ECHO", "x") == b"x"


@native
async def test_time_goes_on_within_a_turn(tmp_path: Path) -> None:
    """A command after a slow one in the same turn has a later time, also if the slow client has disconnected."""
    path = tmp_path / "socket"
    server = Server(Settings(port=0, unixsocket=path))
    await server.start()
    try:
        with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as other:
            for each in (slow, other):
                each.connect(str(path))
            await aeventually(lambda: len(server.open_connections) == 2)
            loop = asyncio.get_running_loop()
            other.sendall(pack("XADD", "behind", "1-1", "f", "v"))
            await loop.run_in_executor(None, other.recv, 100)
            long, more = pack("EVAL", "for i = 1, 2000000 do end", "0"), pack("ECHO", "x") * 40  # until a clock is read
            slow.sendall(long + more + pack("XADD", "before", "*", "f", "v"))
            slow.close()
            other.sendall(pack("XADD", "behind", "*", "f", "v"))
            await loop.run_in_executor(None, other.recv, 100)
            last = {}
            for key in ("before", "behind"):
                other.sendall(pack("XREVRANGE", key, "+", "-", "COUNT", "1"))
                last[key] = (await loop.run_in_executor(None, other.recv, 200)).split(b"\r\n")[3]
            assert last["behind"] >= last["before"]
    finally:
        await server.stop()


@native
def test_calls_refuse_what_they_do_not_know() -> None:
    """The native core's two calls for sockets refuse invalid arguments with an error and change nothing."""
    calls = native_calls()
    assert calls is not None
    read_ready, send_each = calls
    with pytest.raises((TypeError, ValueError)):
        read_ready(None)  # type: ignore[arg-type] # refused
    with pytest.raises(TypeError):
        send_each(((1, b""),))  # type: ignore[arg-type] # refused
    with pytest.raises(TypeError):
        send_each([(1, "text")])
    one, other = socket.socketpair()
    with one, other:
        replies: list[Any] = [(-1, b"x"), (one.fileno(), b"abc")]
        send_each(replies)
        assert replies == [0, 3]
        assert other.recv(10) == b"abc"
        other.close()
        replies = [(one.fileno(), b"abc")]
        send_each(replies)
        assert replies[0] < 0


@contextlib.asynccontextmanager
async def standing(settings: Settings) -> AsyncIterator[Server]:
    """Yield a server in the test's own loop: data sent while the test does not wait arrives in one turn."""
    server = Server(settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def reply(wire: Wire) -> Any:
    """Return the next reply without blocking the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, wire.read)


async def ask(wire: Wire, *words: bytes | str | int) -> Any:
    """Send one command and return its reply."""
    wire.send(*words)
    return await reply(wire)


@native
async def test_what_was_put_off_and_then_sent_at_once_is_sent_once() -> None:
    """Replies that wait for the end of the turn are sent earlier if they grow large, in order and once."""
    async with standing(Settings(port=0)) as server:
        with Wire(server.url) as wire, Wire(server.url) as other:
            assert await ask(other, "SUBSCRIBE", "c") == [b"subscribe", b"c", 1]
            assert await ask(wire, "SET", "k", b"x" * 300_000) == b"OK"
            # A message to another has what comes before it written on its own
            wire.socket.sendall(b"".join((pack("CLIENT", "GETNAME"), pack("PUBLISH", "c", "m"), pack("MGET", "k") * 6)))
            assert await reply(wire) in (None, b"")
            assert await reply(wire) == 1
            for _ in range(6):
                assert await reply(wire) == [b"x" * 300_000]
            assert await ask(wire, "ECHO", "end") == b"end"
            assert await reply(other) == [b"message", b"c", b"m"]


@native
async def test_who_is_killed_in_a_turn_is_sent_nothing_in_it() -> None:
    """A client killed in a turn gets no reply that waits for the turn's end, as in Redis. Others get theirs."""
    async with standing(Settings(port=0)) as server:
        with Wire(server.url) as killer, Wire(server.url) as victim, Wire(server.url) as other:
            number = await ask(victim, "CLIENT", "ID")
            assert await ask(other, "PING") == await ask(killer, "PING") == b"PONG"
            victim.send("CLIENT", "ID")
            killer.send("CLIENT", "KILL", "ID", number)
            other.send("CLIENT", "GETNAME")
            assert await reply(killer) == 1
            assert await reply(other) in (None, b"")
            with pytest.raises((EOFError, ConnectionError)):
                await reply(victim)
            await aeventually(lambda: len(server.open_connections) == 2)


@native
@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_a_commit_that_breaks_answers_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Any) -> None:
    """If the commit of a turn fails by an internal error, no client gets a success or waits, and the server stops."""
    async with standing(Settings(port=0, directory=tmp_path / "data", fsync=fsync)) as server:
        with Wire(server.url) as wire, Wire(server.url) as other:
            for _ in range(60):  # until the loop itself waits for the disk
                assert b"-" in await ask(wire, "XADD", "s", "*", "f", "v")
            assert await ask(other, "PING") == b"PONG"

            def failing(_: Log) -> int:
                raise RuntimeError("a defect")

            monkeypatch.setattr(Log, "write", failing)
            wire.socket.sendall(ADD)
            other.socket.sendall(pack("PING"))
            for each in (wire, other):
                with pytest.raises((EOFError, ConnectionError)):
                    await reply(each)
            assert server.stopping.is_set()
            assert server.failure is not None
            monkeypatch.undo()
