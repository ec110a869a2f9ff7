"""Browser connections with time limits, for requests that do not arrive and for clients that do not read."""

import asyncio
from collections.abc import Iterable

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 20.0
"""Seconds in which a request must arrive completely, and in which a client must read a part of its response.

Slower connections are closed.
"""

MOST = 512
"""Largest number of connections.

At this number, a connection that only waits for a request is closed for a new one. If there is none, the response to a
request is 503.
"""


class BrowserConnection(H11Protocol):
    """Uvicorn's connection with time limits. It closes if the client reads none of the data for it."""

    _asking: asyncio.TimerHandle | None = None  # set while a request is incomplete or awaited
    _unread = 0  # unsent bytes of the previous response at that time
    _watch: asyncio.TimerHandle | None = None
    _left = 0  # unsent bytes at the last check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        """Start to wait for the request of a new client."""
        if len(self.connections) >= MOST:
            _make_room(self.connections)
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Receive a request or a part of one."""
        super().data_received(data)
        self._await_request()

    def on_response_complete(self) -> None:
        """Start to wait for the next request."""
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than the console writes."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._wait()

    def resume_writing(self) -> None:
        """Stop watching a client that has read its data."""
        self._stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers of a closed connection."""
        self._stop()
        self._stop_asking()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Abort the connection and free its place."""
        self._stop_asking()
        self.connections.discard(self)
        self.transport.abort()  # close() would wait for the client

    def _await_request(self) -> None:
        if str(self.conn.their_state) not in {"IDLE", "SEND_BODY"}:
            self._stop_asking()
        elif self._asking is None:
            self._unread = self.transport.get_write_buffer_size()
            self._asking = self.loop.call_later(PATIENCE, self._no_request)

    def _no_request(self) -> None:
        """Close if no request came, unless the client may still be reading the previous response."""
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
        """Sort key: the lower, the longer the wait for a request. None during a request or its response."""
        if self._asking is None or self.transport.get_write_buffer_size():
            return None
        return self._asking.when()


def _make_room(connections: Iterable[object]) -> None:
    """Close the connection that has waited longest for a request: a new one is likelier to send one."""
    ours = (each for each in connections if isinstance(each, BrowserConnection))
    waiting = {each: since for each in ours if (since := each.waits_since) is not None}
    if waiting:
        min(waiting, key=waiting.__getitem__).hang_up()
