"""A page kept live: made again when there is a newer reading, and sent where it is another than before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from millstream.console.web import rendering
from millstream.console.web.page import Asked, WebPage


async def events(make: Callable[[], Awaitable[WebPage]], asked: Asked) -> AsyncIterator[bytes]:
    """Server-sent events without end: ``page`` with what is inside ``main``, ``same`` where nothing is another.

    Args:
        make: makes the page.
        asked: for whom.
    """
    before = ""
    yield b"retry: 2000\n\n"
    while True:
        page = await make()
        text = rendering.inner(page, asked)
        facts = {"at": page.at_ms, "every": round(asked.watch.every(), 1), "trouble": page.trouble}
        if text != before:
            before = text
            yield rendering.event("page", {**facts, "title": page.title, "html": text})
        else:
            yield rendering.event("same", facts)
        await asyncio.sleep(asked.watch.pause())
