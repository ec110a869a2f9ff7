"""A console over a server of ours, both in this process."""

from collections.abc import Iterator

import pytest
import redis

from millstream.server.thread import ServerThread
from support.console import ConsoleThread


@pytest.fixture(scope="module")
def data() -> Iterator[ServerThread]:
    """A server of ours in this process, kept in memory."""
    with ServerThread() as server:
        yield server


@pytest.fixture(scope="module")
def console(data: ServerThread) -> Iterator[ConsoleThread]:
    """A read-only console over it."""
    with ConsoleThread(data.url) as found:
        yield found


@pytest.fixture(scope="module")
def changing(data: ServerThread) -> Iterator[ConsoleThread]:
    """A console that may change something."""
    with ConsoleThread(data.url, allow_changes=True) as found:
        yield found


@pytest.fixture
def client(data: ServerThread, console: ConsoleThread) -> Iterator[redis.Redis]:
    """A client of the server, which is empty, and of which the console knows nothing yet."""
    with redis.Redis.from_url(data.url) as found:
        found.flushall()
        console.forget()
        yield found
