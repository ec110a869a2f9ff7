"""Choosing the event loop: uvloop if it is installed, else asyncio's own."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes the fastest event loop available."""
    try:
        import uvloop  # noqa: PLC0415 - optional: the extra "server" installs it
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
