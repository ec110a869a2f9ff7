"""A browser's connection that does not wait for ever: neither for a request, nor for a client that reads nothing."""

import asyncio
from collections.abc import Iterable

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 20.0
"""Seconds in which an awaited request comes whole, and in which a client takes a part of its answer; slower clients are
hung up on.
"""

MOST = 512
"""Most connections at a time. At this number, one that only waits for a request makes room for a new one; if there is
none, requests are answered 503.
"""


class BrowserConnection(H11Protocol):
    """Uvicorn's connection: the data for a client that takes none of it is dropped, with the connection."""

    _asking: asyncio.TimerHandle | None = None  # while a request is awaited, or is not whole
    _unread = 0  # bytes of the answer before it that were to be sent then
    _watch: asyncio.TimerHandle | None = None
    _left = 0  # bytes to be sent, at the last look

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        """Await the request of a new client."""
        if len(self.connections) >= MOST:
            _make_room(self.connections)
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or the whole."""
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        self._await_request()

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
        self._stop_asking()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Let go of it, and of its place."""
        self._stop_asking()
        self.connections.discard(self)
        self.transport.abort()  # to close it would be to wait for it

    def _await_request(self) -> None:
        if str(self.conn.their_state) not in {"IDLE", "SEND_BODY"}:
            self._stop_asking()
        elif self._asking is None:
            self._unread = self.transport.get_write_buffer_size()
            self._asking = self.loop.call_later(PATIENCE, self._no_request)

    def _no_request(self) -> None:
        """Hang up if no request came, unless the client may still be reading the answer before it."""
        self._asking = None
        if 0 < self.transport.get_write_buffer_size() < self._unread:
            self._await_request()
        else:
            self.hang_up()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _wait(self) -> None:
        self._watch = self.loop.call_later(PATIENCE, self._look)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= self._left:
            self.hang_up()
            return
        self._left = left
        self._wait()

    @property
    def waits_since(self) -> float | None:
        """A time that is earlier the longer a request is awaited; None where one is under way, or its answer."""
        if self._asking is None or self.transport.get_write_buffer_size():
            return None
        return self._asking.when()


def _make_room(connections: Iterable[object]) -> None:
    """Hang up on the connection that has been awaited longest: a new one is likelier to send a request."""
    ours = (each for each in connections if isinstance(each, BrowserConnection))
    waiting = {each: since for each in ours if (since := each.waits_since) is not None}
    if waiting:
        min(waiting, key=waiting.__getitem__).hang_up()
