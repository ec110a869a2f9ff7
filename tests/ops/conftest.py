"""The console's readers on redis-server and Millstream."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
import redis

from millstream.client.line import Line
from millstream.client.open import open_line
from support.servers import ServerProcess, millstream_server

T = TypeVar("T")

Look = Callable[[Callable[[Line], Awaitable[T]]], T]
"""Type of the function that runs a reader on a connection."""


@pytest.fixture(scope="session")
def memory_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Millstream server for the whole test run."""
    with millstream_server(tmp_path_factory.mktemp("millstream"), "--memory") as server:
        yield server


@pytest.fixture(params=["redis", "millstream"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """An emptied server, once for each kind."""
    name = {"redis": "redis_process", "millstream": "memory_process"}[request.param]
    found: ServerProcess = request.getfixturevalue(name)
    return found.as_new()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A redis-py client that returns bytes."""
    with server.client() as found:
        yield found


@pytest.fixture
def look(server: ServerProcess) -> "Look[T]":
    """A function that runs a reader over a connection of its own."""

    def run(work: Callable[[Line], Awaitable[T]]) -> T:
        async def main() -> T:
            line = open_line(server.url)
            try:
                return await work(line)
            finally:
                await line.close()

        return asyncio.run(main())

    return run
