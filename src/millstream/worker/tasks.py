"""Helpers for several rooms: wait for the end of tasks, for an event or a time; replace descriptors after a fork."""

import asyncio
import os
from collections.abc import Iterable
from typing import Any


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    await asyncio.gather(*given, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most this many seconds; return False if it was not set in that time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def disown(descriptors: Iterable[int]) -> None:
    """In a forked process, replace the parent's sockets by ``/dev/null``. Their numbers stay in use."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
    finally:
        os.close(nothing)
