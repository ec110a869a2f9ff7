"""A local receiver of webhooks that checks signatures, and can misbehave."""

import asyncio
import json
import re
import runpy
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.source import ROOT

SECRET = "a shared secret"


_BLOCK = re.search(r"```python\n(.*?def verified.*?)```", (ROOT / "docs/monitoring.md").read_text(), re.DOTALL)


def _documented() -> Callable[[bytes, str, str], bool]:
    """Return the function of docs/monitoring.md that verifies a signature."""
    assert _BLOCK is not None
    with TemporaryDirectory() as folder:
        file = Path(folder) / "verifying.py"
        file.write_text(_BLOCK[1])
        found: Callable[[bytes, str, str], bool] = runpy.run_path(str(file))["verified"]
    return found


verified = _documented()


class Receiver:
    """The messages that a local server got. ``mode`` is ``ok``, a status, ``hang``, ``endless`` or ``old``.

    An ``old`` receiver refuses summaries, which it does not know.
    """

    def __init__(self) -> None:
        self.mode = "ok"
        self.notes: list[dict[str, Any]] = []
        self.tries = 0
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook/a-token?team=ops"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            self.tries += 1
            assert head.startswith("POST /hook/a-token?team=ops HTTP/1.1\r\n")
            assert verified(body, headers["millstream-signature"], SECRET)
            assert json.loads(body)["delivery"] == headers["millstream-delivery"]
            await self.reply(writer, json.loads(body))

    async def reply(self, writer: asyncio.StreamWriter, note: dict[str, Any]) -> None:
        if self.mode == "hang":
            await asyncio.Event().wait()
        while self.mode == "endless":
            writer.write(b"x" * 65536)
            await writer.drain()
        if self.mode == "old":
            status = 400 if note["event"] == "summary" else 200
        else:
            status = 200 if self.mode == "ok" else int(self.mode)
        if status == 200:
            self.notes.append(note)
        writer.write(f"HTTP/1.1 {status} X\r\nLocation: {self.url}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()


@asynccontextmanager
async def receiver(context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Yield a receiver on a free port of this machine."""
    found = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(asyncio.CancelledError):
            await found.serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    found.port, found.scheme = server.sockets[0].getsockname()[1], "http" if context is None else "https"
    try:
        yield found
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
