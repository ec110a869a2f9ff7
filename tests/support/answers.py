"""A server that sends the same reply to every command, for clients of something that is not like Redis."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from hiredis import Reader

WRONG = {
    "OK": b"+OK\r\n",
    "a number": b":7\r\n",
    "nothing": b"$-1\r\n",
    "no elements": b"*0\r\n",
    "bytes": b"$3\r\nabc\r\n",
    "a name and a number": b"*2\r\n$4\r\nname\r\n:1\r\n",
    "a list in a list": b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
}
"""Valid RESP replies that few commands have."""


@contextlib.contextmanager
def same_answer(reply: bytes) -> Iterator[str]:
    """Yield the URL of a server in a thread of this process.

    Args:
        reply: Reply to each command.
    """

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = Reader()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                commands.feed(data)
                while commands.gets() is not False:
                    writer.write(reply)

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        found.append((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        stop.append(asyncio.Event())
        ready.set()
        await stop[0].wait()
        server.close()

    found: list[tuple[asyncio.AbstractEventLoop, int]] = []
    stop: list[asyncio.Event] = []
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="same answer")
    thread.start()
    assert ready.wait(10)
    try:
        yield f"redis://127.0.0.1:{found[0][1]}/0"
    finally:
        found[0][0].call_soon_threadsafe(stop[0].set)
        thread.join()
