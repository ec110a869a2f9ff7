"""Connections of the asyncio clients: commands wait for a free one, for a bounded time.

A pub/sub object, a transaction with WATCH and a command that blocks keep a connection until they end. If such owners
have all connections, a command that waits without a bound hangs the program without a word.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio
from redis.exceptions import MaxConnectionsError

#: Connections of one client, or of one client to one node of a cluster.
CONNECTIONS = 100
#: Seconds that a command waits for a free connection.
PATIENCE = 20.0


def none_free(limit: int, seconds: float) -> MaxConnectionsError:
    """The error of a command that waited too long."""
    return MaxConnectionsError(
        f"all {limit} connections of this client were in use for {seconds:g} s: each pub/sub object, transaction with "
        "WATCH and blocking command keeps one until it is closed or done. Close those that you no longer need, use a "
        "second client for them, or allow more in a redis:// URL: ?max_connections=500"
    )


class WaitingPool(redis.asyncio.BlockingConnectionPool):
    """A pool in which a command waits for a connection; ``timeout`` is None to wait for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_connections": CONNECTIONS, "timeout": PATIENCE, **options})

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection that is ready."""
        try:
            return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call] # redis-py's gap
        except redis.ConnectionError as error:
            if isinstance(error.__cause__, TimeoutError) and str(error) == "No connection available.":
                raise none_free(self.max_connections, self.timeout or 0) from None
            raise


class Turns:
    """Turns for commands whose client has no pool that waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One of the turns."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._free.acquire()
        except TimeoutError:
            raise none_free(self._limit, PATIENCE) from None
        try:
            yield
        finally:
            self._free.release()
