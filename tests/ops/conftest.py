"""The console's view of a real redis-server and of ours."""

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
"""Runs a reading function with a line to the server."""


@pytest.fixture(scope="session")
def memory_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server of ours for the whole run."""
    with millstream_server(tmp_path_factory.mktemp("millstream"), "--memory") as server:
        yield server


@pytest.fixture(params=["redis", "millstream"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """A server with nothing in it, each kind in turn."""
    name = {"redis": "redis_process", "millstream": "memory_process"}[request.param]
    found: ServerProcess = request.getfixturevalue(name)
    return found.as_new()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A client that returns bytes."""
    with server.client() as found:
        yield found


@pytest.fixture
def look(server: ServerProcess) -> "Look[T]":
    """Asks the server something over a line of its own."""

    def run(work: Callable[[Line], Awaitable[T]]) -> T:
        async def main() -> T:
            line = open_line(server.url)
            try:
                return await work(line)
            finally:
                await line.close()

        return asyncio.run(main())

    return run
