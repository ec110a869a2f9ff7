"""A suspect runs alone, so that innocents do not pay for it.

When a process dies, the server has counted a delivery for everything it had in hand, and nobody can tell which entry
was the cause. An entry delivered once more than allowed, without any outcome, is a suspect. It gets one last run with
nothing beside it: what waits is handed back uncharged, what runs is awaited, nothing is read meanwhile. If it is
innocent, it is handled; if it is guilty, it dies alone, and its next delivery sets it aside without a run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

#: Seconds a suspect waits for what runs, and for a read that is under way, to end; then it runs beside it.
PATIENCE = 5.0


class Solitude:
    """The gate between one subscriber's reader, its lanes and a suspect."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._wanted = False
        self._changed = asyncio.Event()
        self._running = 0

    @property
    def wanted(self) -> bool:
        """True while a suspect runs or waits to: nothing else may be started or kept."""
        return self._wanted

    async def opened(self) -> None:
        """Wait until no suspect wants to be alone."""
        await self._open.wait()

    def began(self) -> None:
        """A run, or a read, begins."""
        self._running += 1

    def ended(self) -> None:
        """A run, or a read, has ended."""
        self._running -= 1
        if self.wanted:
            self._changed.set()

    @contextlib.asynccontextmanager
    async def alone(self, clear: Callable[[], None]) -> AsyncIterator[None]:
        """Alone inside this block; ``clear`` hands back what waits, again and again. Not while ``wanted``."""
        assert not self.wanted
        self._open.clear()
        self._wanted = True
        try:
            clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while self._running:
                        await self._change()
                        clear()
            yield
        finally:
            self._wanted = False
            self._open.set()

    async def _change(self) -> None:
        """Wait until something has ended, or a moment: a read may begin to wait just after it was told not to."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await self._changed.wait()
