"""redis-py's blocking connections over a channel: its own packing, parsing, pools and pipelines, and no socket."""

import io
import queue
import socket
from typing import Any, cast

from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from millstream.embedded.leased import CLOSED, LeasedConnection, LeasedPool
from millstream.embedded.place import Place
from millstream.embedded.stores import Lease

_NO_DESCRIPTOR = "an embedded connection has no file descriptor"


class Pipe:
    """What redis-py's connections and parsers need of a socket, over a channel of a store.

    Args:
        lease: of the store.
        timeout: seconds a read may take; None for ever.

    Raises:
        UsageError: the store cannot be used; see :class:`Lease`.
        StorageError: the same.
    """

    def __init__(self, lease: Lease, timeout: float | None) -> None:
        self._timeout = timeout
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._held = b""  # taken from the inbox, not yet by the client
        self._at_end = False
        self._channel = lease.store().connect(self._inbox.put)

    def sendall(self, data: bytes) -> None:
        """Run commands; their replies can be read afterwards."""
        if self._channel.closed:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        # a socket refuses what is not bytes; bytes(5) would be five zeros, which no command ever completes
        self._channel.send(data if type(data) is bytes else bytes(memoryview(data)))

    def settimeout(self, seconds: float | None) -> None:
        """Seconds a read may take from now on; None for ever."""
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        """At least one byte, at most ``size``.

        Raises:
            TimeoutError: none came in time.
            RedisConnectionError: none will come; the text says why, where there is a reason.
        """
        if not self._wait(self._timeout):
            raise TimeoutError("timed out")
        if self._at_end:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        self._channel.taken()
        data, self._held = self._held[:size], self._held[size:]
        return data

    def recv_into(self, buffer: bytearray) -> int:
        """As :meth:`recv`, into a buffer; how many bytes."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def wait(self, seconds: float | None) -> bool:
        """Whether a read would return something within the time.

        Raises:
            RedisConnectionError: the connection is closed.
        """
        ready = self._wait(seconds)
        if self._at_end:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        return ready

    def _wait(self, seconds: float | None) -> bool:
        """Whether bytes, or the end, have come."""
        if self._held or self._at_end:
            return True
        try:
            if seconds is not None and seconds <= 0:
                data = self._inbox.get_nowait()
            else:
                data = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return False
        self._held, self._at_end = data, not data
        return True

    def pending(self) -> bool:
        """Whether bytes are here: redis-py asks this first, as of a TLS socket, before it polls; before each command.

        Raises:
            UnsupportedOperation: none are here, so that it would make ready to poll what :meth:`fileno` refuses.
        """
        if self._held:
            return True
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def fileno(self) -> int:
        """There is none to poll; redis-py asks when its parser has found nothing in its own buffer.

        Raises:
            UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def getpeername(self) -> str:
        """As a unix socket's: none."""
        return ""

    def shutdown(self, how: int) -> None:  # noqa: ARG002 - a socket's signature
        """See :meth:`close`."""
        self._channel.close()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


class StoreConnection(LeasedConnection, AbstractConnection):
    """A connection of redis-py to a store of this process; see :class:`LeasedConnection` for its arguments."""

    def _connect(self) -> socket.socket:
        return cast("socket.socket", Pipe(self._lease, self.socket_timeout))

    def can_read(self, timeout: float | None = 0) -> bool:
        """Whether a reply or a message can be read within ``timeout`` seconds (None: for ever)."""
        if self._sock is None:
            self.connect()  # type: ignore[no-untyped-call]  # redis-py's gap
        try:
            if self._parser.can_read(0):  # what it has read ahead counts
                return True
        except io.UnsupportedOperation:  # nothing read ahead, and no descriptor to poll
            pass
        return cast("Pipe", self._sock).wait(timeout)


class StorePool(LeasedPool, ConnectionPool):
    """A pool of redis-py; see :class:`LeasedPool` for its arguments."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Hang up; with no connection left, let the store go. Used again, the pool opens it again."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            self._lease.give_up()


def sync_pool(place: Place, **options: Any) -> StorePool:
    """A pool for ``redis.Redis.from_pool``.

    Raises:
        MillstreamError: the store cannot be opened; see :class:`Lease`.
    """
    return StorePool(Lease(place), connection_class=StoreConnection, **{"db": place.db, **options})
