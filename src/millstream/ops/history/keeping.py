"""The writer as a task of another program: a worker process of ``millstream run``, or a console."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator

from millstream.client.open import open_line
from millstream.ops.history.writer import HistoryWriter


@contextlib.asynccontextmanager
async def keeping(url: str) -> AsyncIterator[None]:
    """Write the history of a server within an ``async with`` block, whenever no other process does."""
    line = open_line(url, redial=True)
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    task = asyncio.create_task(HistoryWriter(line, name).run(), name="millstream-history")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await line.close()
