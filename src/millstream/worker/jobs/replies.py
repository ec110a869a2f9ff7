"""Waiting for results: one blocking read of hints serves all jobs of an event loop.

A hint only ends a wait early. A waiting job reads its result after each hint, and every two seconds without one.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator

from redis.exceptions import ResponseError

from millstream.client.jobs import record
from millstream.client.line import Disconnected, Line
from millstream.client.open import open_line
from millstream.worker.tasks import cancel_all

_BLOCK_MS = 2_000
_PAUSE = 1.0


class ReplyHints:
    """The hints for one event loop of this process: each names an entry that has a result."""

    def __init__(self, url: str, line: Line) -> None:
        self._url = url
        self.line = line  # Connection for all other commands
        self.name = secrets.token_hex(8)
        self._waiting: dict[bytes, set[asyncio.Event]] = {}  # Events of waiting callers, by the entry's id
        self._last: bytes | str = "0-0"
        self._own: Line | None = None
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def expected(self, ident: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when this entry may have a result."""
        woken, key = asyncio.Event(), ident.encode()
        self._waiting.setdefault(key, set()).add(woken)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read(), name="millstream-replies")
        try:
            yield woken
        finally:
            waiting = self._waiting[key]
            waiting.discard(woken)
            if not waiting:
                del self._waiting[key]

    async def _read(self) -> None:
        """Read hints while any job waits."""
        key = record.replies_key(self.name)
        if self._own is None:
            self._own = open_line(self._url, near=key, redial=True)
        command = ("XREAD", "COUNT", record.REPLIES, "BLOCK", _BLOCK_MS, "STREAMS", key)
        while self._waiting:
            try:
                found = await self._own.call(*command, self._last, timeout=_BLOCK_MS / 1000 + 10)
            except (Disconnected, ResponseError):  # results are found without it
                await asyncio.sleep(_PAUSE)
                continue
            for hint, fields in found[0][1] if found else ():
                self._last = hint
                for woken in self._waiting.get(fields[1], ()):
                    woken.set()

    async def close(self) -> None:
        """Disconnect."""
        await cancel_all([self._task])
        if self._own is not None:
            await self._own.close()
