"""A browser's connection that does not wait for ever for somebody who reads nothing."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 20.0
"""Seconds in which somebody to whom something is to be sent takes some of it, or is hung up on."""


class BrowserConnection(H11Protocol):
    """Uvicorn's connection: what it keeps for somebody who takes none of it is let go of, with the connection."""

    _watch: asyncio.TimerHandle | None = None
    _left = 0  # bytes to be sent, at the last look

    def pause_writing(self) -> None:
        """The other side reads more slowly than we write."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._wait()

    def resume_writing(self) -> None:
        """It has read."""
        self._stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._watch = self.loop.call_later(PATIENCE, self._look)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= self._left:
            self.transport.abort()  # to close it would be to wait for it
            return
        self._left = left
        self._wait()
