"""Live pages: a page is rendered again after each new reading, and sent if it has changed.

The cost of a viewer is bounded. The number of live pages is limited, and each holds at most one event, which is sent in
pieces. A client that reads none of these pieces is disconnected (``connections``).
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millstream.web import rendering
from millstream.web.page import Asked, WebPage

MOST = 64
"""Largest number of live pages. A browser has one for each window; a hidden tab is not live."""

_PIECE = 1 << 16  # largest piece in bytes, which may wait for a client that does not read


class LivePages:
    """The current number of live pages of a console."""

    def __init__(self) -> None:
        self.count = 0


class LiveResponse(StreamingResponse):
    """Server-sent events from :func:`events`; a single event with the reason if too many pages are live."""

    def __init__(self, pages: LivePages, make: Callable[[], Awaitable[WebPage]], asked: Asked) -> None:
        super().__init__(_in_pieces(events(make, asked)), media_type="text/event-stream")
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects."""
        if self._pages.count >= MOST:
            self.body_iterator = _full()
        self._pages.count += 1  # a refused page ends at once
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pages.count -= 1


async def _full() -> AsyncIterator[bytes]:
    words = f"This page is not live: the limit of {MOST} live pages is reached. Close some, or reload this one."
    yield b"retry: 10000\n\n" + rendering.event("full", {"trouble": words})


async def _in_pieces(whole: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for event in whole:
        for at in range(0, len(event), _PIECE):
            yield event[at : at + _PIECE]


async def events(make: Callable[[], Awaitable[WebPage]], asked: Asked) -> AsyncIterator[bytes]:
    """Yield server-sent events without end: ``page`` with the content of ``main``, ``same`` if nothing has changed."""
    before = b""
    yield b"retry: 2000\n\n"
    while True:
        kind, facts, before = await _look(make, asked, before)
        yield rendering.event(kind, facts)
        del facts  # frees the data of the whole page
        await asyncio.sleep(asked.watch.pause())


async def _look(
    make: Callable[[], Awaitable[WebPage]], asked: Asked, before: bytes
) -> tuple[str, dict[str, object], bytes]:
    """Return an event's kind and facts, and the digest of the page."""
    page = await make()
    text = rendering.inner(page, asked)
    facts: dict[str, object] = {"at": page.at_ms, "every": round(asked.watch.every(), 1), "trouble": page.trouble}
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    if digest == before:
        return "same", facts, digest
    return "page", {**facts, "title": page.title, "html": text}, digest
