"""Connections of the asyncio clients: commands wait for a free one, for a limited time.

A pub/sub object, a transaction with WATCH and a command that blocks keep a connection until they end. If such owners
have all connections, a command that waits without limit would hang the program without any message.
"""

import asyncio
from typing import Any

import redis.asyncio
from redis.exceptions import MaxConnectionsError

#: Largest number of connections of one client, on a cluster to each node.
CONNECTIONS = 100
#: Seconds that a command waits for a free connection.
PATIENCE = 20.0


def none_free(limit: int, seconds: float, remedy: str) -> MaxConnectionsError:
    """Return the error of a command that waited too long."""
    return MaxConnectionsError(
        f"all {limit} connections of this client were in use for {seconds:g} s: each pub/sub object, transaction with "
        "WATCH and blocking command keeps one until it is closed or done. Close those that you no longer need, use a "
        f"second client for them, or allow more {remedy}"
    )


class WaitingPool(redis.asyncio.BlockingConnectionPool):
    """A pool in which a command waits for a connection; with ``timeout`` None it waits for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_connections": CONNECTIONS, "timeout": PATIENCE, **options})

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a free connection, waiting for one if needed."""
        try:
            return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call] # redis-py's gap
        except redis.ConnectionError as error:
            if isinstance(error.__cause__, TimeoutError) and str(error) == "No connection available.":
                remedy = "in a redis:// URL: ?max_connections=500"
                raise none_free(self.max_connections, self.timeout or 0, remedy) from None
            raise


class Turns:
    """Turns of commands that take a connection, for a client that would raise an error if there are too many."""

    def __init__(self, limit: int, patience: float | None) -> None:
        self._limit, self._patience = limit, patience
        self._free = asyncio.Semaphore(limit)

    async def take(self) -> None:
        """Wait for a turn; :meth:`give` ends it."""
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            remedy = "where you connect: connect_async(url, max_connections=500)"
            raise none_free(self._limit, self._patience or 0, remedy) from None

    def give(self) -> None:
        """End a turn."""
        self._free.release()


class HeldTurn:
    """The turn of an object that keeps its connection from its first use until it is closed."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._has_it = turns, False
        self._taking = asyncio.Lock()  # Two tasks that share the object take a single turn

    async def take(self) -> None:
        """Wait for the turn, unless the object has it already."""
        async with self._taking:
            if not self._has_it:
                await self._turns.take()
                self._has_it = True

    def give(self) -> None:
        """End the turn, if the object has it."""
        if self._has_it:
            self._has_it = False
            self._turns.give()
