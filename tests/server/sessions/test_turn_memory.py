"""If memory ends during a turn of the event loop, each client gets one reply or is closed; none waits for ever."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest

from millstream.server.app import Server
from millstream.server.settings import Settings
from millstream.server.sockets import native_calls
from support import needs
from support.wire import pack

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # where memory ends in a destructor
    pytest.mark.skipif(native_calls() is None, reason="the native core reads sockets on Linux only"),
]
_testcapi = needs.package("_testcapi")  # makes allocations fail
LONG = b"x" * 300  # so long that its number is an object of its own
SENT: dict[str, tuple[bytes, list[Any]]] = {
    "plain": (pack("PING") + pack("GET", "long"), [b"PONG", LONG]),
    "other": (pack("ECHO", LONG) + pack("PING"), [LONG, b"PONG"]),
    "adds": (pack("XADD", "s", "9-1", "f", "v"), [b"9-1"]),
    "small": (pack("PING"), [b"PONG"]),
}
WOKEN = [[[b"s", [[b"9-1", [b"f", b"v"]]]]]]
CLOSED = "closed"
BETWEEN = 0.005
"""Seconds that another thread waits for its turn while nothing fails: the committing one, which a busy loop awaits.

With ten of them, as ``alone`` has it, each of a hundred allocations may cost ten.
"""


class ShortLoop(asyncio.SelectorEventLoop):
    """Event loop with one failing allocation in the next turn.

    Attributes:
        fails: its number, counted from the beginning; None for none.
        failed: the number of allocations in the last such turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails: int | None = None
        self.failed = True
        self.set_exception_handler(lambda *_: None)  # that memory ended is what is tested

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        super().add_reader(fd, self._read, callback, args)

    def _read(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.fails is None or callback.__name__ != "_turn":  # else a thread has something to say
            callback(*args)
            return
        at, self.fails = self.fails, None
        sys.setswitchinterval(10)
        _testcapi.set_nomemory(at, at + 1)
        try:
            callback(*args)
        finally:
            try:
                for _ in range(at + 2):
                    bytearray(1)
                self.failed = True
            except MemoryError:  # so it was not reached before
                self.failed = False
            _testcapi.remove_mem_hooks()
            sys.setswitchinterval(BETWEEN)


async def soon(probe: Callable[[], bool]) -> None:
    """Run the loop until ``probe`` holds, checked many times a millisecond since each allocation needs it."""
    sys.setswitchinterval(BETWEEN)
    async with asyncio.timeout(20):
        while not probe():  # noqa: ASYNC110 - this loop itself does the awaited work
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[dict[str, socket.socket]]:
    """Yield a client for each input, and one that waits."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.facts.tcp_port)
        clients = {name: stack.enter_context(socket.create_connection(address)) for name in (*SENT, "waits")}
        for each in clients.values():
            each.setblocking(False)
        await soon(lambda: len(server.open_connections) == len(clients))
        clients["small"].sendall(pack("SET", "long", LONG) + pack("DEL", "s"))
        assert len(await got(clients["small"], 2)) == 2
        clients["waits"].sendall(pack("XREAD", "BLOCK", "0", "STREAMS", "s", "0"))
        await soon(lambda: len(server.node.waits) == 1)
        yield clients
    await soon(lambda: not server.open_connections)


async def got(client: socket.socket, count: int) -> list[Any]:
    """Return ``count`` replies, or those before the client is closed, and ``CLOSED``."""
    reader, found = hiredis.Reader(), []
    while len(found) < count:
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65536), 20)
        except ConnectionError:
            data = b""
        if not data:
            return [*found, CLOSED]
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            found.append(reply)
    return found


def fits(answers: list[Any], expected: list[Any]) -> bool:
    """Return True if each reply is as expected or an internal error; the last may be the client's close."""
    if answers[-1] == CLOSED:
        answers, expected = answers[:-1], expected[: len(answers) - 1]
    return len(answers) == len(expected) and all(
        told == wanted or (isinstance(told, hiredis.ReplyError) and str(told).startswith("ERR internal error"))
        for told, wanted in zip(answers, expected, strict=True)
    )


@pytest.mark.parametrize("fsync", [None, "always"])
def test_each_is_answered_once_or_closed_whichever_allocation_fails(tmp_path: Path, fsync: Any) -> None:
    """If any allocation fails in a turn with four clients and a waiting one, each gets one reply or is closed."""
    with asyncio.Runner(loop_factory=ShortLoop) as runner:
        assert runner.run(all_allocations(tmp_path, fsync)) > 20


async def all_allocations(tmp_path: Path, fsync: Any) -> int:
    """Let each allocation fail in turn; return their number."""
    loop: Any = asyncio.get_running_loop()
    at, ended = 0, 0
    while loop.failed:
        folder = None if fsync is None else tmp_path / str(ended)
        server = Server(Settings(port=0, directory=folder, fsync=fsync or "everysec"))
        await server.start()
        try:
            while loop.failed and server.failure is None:
                async with connected(server) as clients:
                    for name, (data, _) in SENT.items():
                        clients[name].sendall(data)
                    loop.fails = at
                    await soon(lambda: loop.fails is None)
                    answers = {name: await got(clients[name], len(replies)) for name, (_, replies) in SENT.items()}
                    assert all(fits(answers[name], replies) for name, (_, replies) in SENT.items()), (at, answers)
                    if server.failure is None:
                        for name in (name for name in SENT if answers[name] == SENT[name][1]):
                            clients[name].sendall(pack("ECHO", name))  # nothing was answered twice
                            assert await got(clients[name], 1) in ([name.encode()], [CLOSED]), at
                        if answers["adds"] == [b"9-1"]:
                            assert fits(await got(clients["waits"], 1), WOKEN), at
                at += 1
        finally:
            await server.stop()
        ended += 1
    return at
