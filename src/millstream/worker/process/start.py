"""Start an app even if its server is not up yet: try again, log that once, and give up after some time."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from millstream.client.url import unreached
from millstream.errors import Disconnected
from millstream.logs import logger
from millstream.printable import without_password

log = logger("millstream.worker")

#: Seconds between two attempts: short, since a server starts within a second or two, and an attempt costs little.
_PAUSE = 0.25


async def start_patiently(
    start: Callable[[], Awaitable[None]], url: str, patience: float | None, stopping: asyncio.Event | None = None
) -> bool:
    """Start an app, repeatedly while its server cannot be reached; return False if it was stopped meanwhile."""
    stopping = stopping or asyncio.Event()
    began, said = time.monotonic(), False
    while True:
        try:
            await start()
        except Disconnected as error:
            if patience is not None and time.monotonic() - began >= patience:
                raise Disconnected(unreached(url, error), sent=error.sent) from error
            if not said:
                said = True
                limit = "until it can be reached" if patience is None else f"for {patience:g} s"
                log.warning("cannot reach %s yet, trying again %s: %s", without_password(url), limit, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _PAUSE)  # a stop ends the pause early
            if stopping.is_set():
                return False
        else:
            if said:
                log.info("reached %s after %.1f s", without_password(url), time.monotonic() - began)
            return True
