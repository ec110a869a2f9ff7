"""redis-py's asyncio connections to a store. Reads wait on the event loop, and any thread may wake them."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from millstream.embedded.leased import CLOSED, LeasedConnection, LeasedPool
from millstream.embedded.place import Place
from millstream.embedded.stores import Lease


class Incoming(asyncio.StreamReader):
    """The stream of replies that redis-py's parser reads. Any thread may add bytes to it."""

    def __init__(self) -> None:
        super().__init__()
        self._home = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived: deque[bytes] = deque()
        self.writer: Outgoing

    def take(self, data: bytes) -> None:
        """Add bytes from the store's connection; empty bytes mean its end."""
        self._arrived.append(data)
        if threading.get_ident() == self._thread:
            self._pump()
        elif not self._home.is_closed():  # a loop that ended without closing its clients no longer reads
            self._home.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        while self._arrived:
            data = self._arrived.popleft()
            if data:
                self.feed_data(data)
            else:
                reason = self.writer.reason
                if reason:
                    self.set_exception(RedisConnectionError(reason))
                self.feed_eof()  # so that a pool does not reuse this connection

    async def read(self, n: int = -1) -> bytes:
        """Read bytes as any stream does, and record that the client took them."""
        data = await super().read(n)
        self.writer.taken()
        return data


class Outgoing:
    """The methods of a stream writer that redis-py needs."""

    def __init__(self, lease: Lease, incoming: Incoming) -> None:
        incoming.writer = self
        self._channel = lease.store().connect(incoming.take)

    @property
    def reason(self) -> str:
        """Reason for the close of the connection; empty if the client closed it."""
        return self._channel.reason

    def taken(self) -> None:
        """Record that the client has read its bytes."""
        self._channel.taken()

    def writelines(self, chunks: Iterable[bytes]) -> None:
        """Run commands; their replies arrive in the stream."""
        if self._channel.closed:
            raise RedisConnectionError(self.reason or CLOSED)
        self._channel.send(b"".join(chunks))

    def write(self, data: bytes) -> None:
        """Write one piece, as :meth:`writelines` does."""
        self.writelines([data])

    async def drain(self) -> None:
        """Let other tasks run, as a socket would: a loop of commands must not block the event loop."""
        await asyncio.sleep(0)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - a writer's signature
        """Return the given default, since there is no socket."""
        return default

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    async def wait_closed(self) -> None:
        """Return at once, since :meth:`close` closes immediately."""


class AsyncStoreConnection(LeasedConnection, AbstractConnection):
    """An asyncio connection of redis-py to a store of this process; see :class:`LeasedConnection` for its arguments."""

    async def _connect(self) -> None:
        incoming = Incoming()
        self._writer = cast("asyncio.StreamWriter", Outgoing(self._lease, incoming))
        self._reader = incoming


class AsyncStorePool(LeasedPool, ConnectionPool):
    """A pool of redis-py's asyncio connections; see :class:`LeasedPool` for its arguments."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections and then release the store. A later use opens it again.

        The last release of a directory writes everything to disk. A thread does this, since it may take a while.
        """
        await super().disconnect(inuse_connections)
        if not inuse_connections:
            return
        if self._lease.place.directory is None:
            self._lease.give_up()
        else:
            await asyncio.to_thread(self._lease.give_up)


def async_pool(place: Place, **options: Any) -> AsyncStorePool:
    """Return a pool for ``redis.asyncio.Redis.from_pool``."""
    return AsyncStorePool(Lease(place), connection_class=AsyncStoreConnection, **{"db": place.db, **options})
