"""Waits of asyncio's that several parts have: for the end of tasks, and for an event or a time."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    await asyncio.gather(*given, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so long; False if it was not set in that time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
