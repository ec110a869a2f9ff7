"""A suspect runs alone in its process, so that innocents do not pay for it.

Which entry is a suspect, :func:`millstream.worker.model.retry.course` says. It runs with nothing beside it, of any
subscriber of the app: what waits is handed back uncharged, what runs is awaited, nothing is read meanwhile. If it is
innocent, it is handled; if it is guilty, it dies alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

#: Seconds a suspect waits for what runs, and for a read that is under way, to end; then it runs beside it.
PATIENCE = 5.0


class Solitude:
    """The gate between the readers and lanes of an app's subscribers and a suspect."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._wanted = False
        self._changed = asyncio.Event()
        self._running = 0
        self._members: dict[Callable[[], None], Callable[[], None]] = {}

    def join(self, make_way: Callable[[], None], go_on: Callable[[], None]) -> None:
        """Take part.

        Args:
            make_way: hands back what waits; called again and again until nothing runs.
            go_on: called when the suspect's run is over.
        """
        self._members[make_way] = go_on

    def leave(self, make_way: Callable[[], None]) -> None:
        """Take part no more."""
        self._members.pop(make_way, None)

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
    async def alone(self) -> AsyncIterator[bool]:
        """Inside this block nothing else runs; False if something did not end in time. Not while ``wanted``."""
        assert not self.wanted
        self._open.clear()
        self._wanted = True
        try:
            self._make_way()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while self._running:
                        await self._change()
                        self._make_way()
            yield not self._running
        finally:
            self._wanted = False
            self._open.set()
            for go_on in self._members.values():
                go_on()

    def _make_way(self) -> None:
        for make_way in list(self._members):
            make_way()

    async def _change(self) -> None:
        """Wait until something has ended, or a moment: a read may begin to wait just after it was told not to."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await self._changed.wait()
