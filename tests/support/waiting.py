"""Waits for a condition with a deadline: the only place in the tests that may sleep."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

# Seconds. Long enough for a loaded machine with two cores; a passing test never waits for it.
DEADLINE = 60.0
STEP = 0.02


def eventually(probe: Callable[[], T], seconds: float = DEADLINE, *, what: str = "") -> T:
    """Call ``probe`` until it returns a true value, and return that.

    An ``OSError``, ``AssertionError`` or ``LookupError`` inside the probe counts as "not yet"; the last is
    shown when time is up. (redis-py's errors are none of these: a probe that uses redis-py catches its own.)

    Args:
        probe: Function that is called repeatedly; keep it quick.
        seconds: Seconds until the test fails.
        what: The condition in words, for the failure's text.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            found = probe()
        except (OSError, AssertionError, LookupError) as reason:
            last = reason
        else:
            if found:
                return found
            last = found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or probe} (last: {last!r})")
        time.sleep(STEP)  # polls another process, which cannot signal us


@overload
async def aeventually(probe: Callable[[], Awaitable[T]], seconds: float = ..., *, what: str = ...) -> T: ...
@overload
async def aeventually(probe: Callable[[], T], seconds: float = ..., *, what: str = ...) -> T: ...
async def aeventually(probe: Callable[[], T | Awaitable[T]], seconds: float = DEADLINE, *, what: str = "") -> T:
    """Await ``probe``, a plain or an async function, until it returns a true value; see :func:`eventually`."""
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            answer = probe()
            found = await answer if isinstance(answer, Awaitable) else answer
        except (OSError, AssertionError, LookupError) as reason:
            last = reason
        else:
            if found:
                return found
            last = found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or probe} (last: {last!r})")
        await asyncio.sleep(STEP)  # polls a state that has no event of its own


async def pace(seconds: float) -> None:
    """Wait to set the rate of a load or the interval of a measurement; never to wait for a condition."""
    await asyncio.sleep(seconds)
