"""A console over a Millstream server, both in this process."""

from collections.abc import Iterator

import pytest
import redis

from millstream.server.thread import ServerThread
from support.console import ConsoleThread


@pytest.fixture(scope="module")
def data() -> Iterator[ServerThread]:
    """A Millstream server in this process, in memory."""
    with ServerThread() as server:
        yield server


@pytest.fixture(scope="module")
def console(data: ServerThread) -> Iterator[ConsoleThread]:
    """A read-only console over the server."""
    with ConsoleThread(data.url) as found:
        yield found


@pytest.fixture(scope="module")
def changing(data: ServerThread) -> Iterator[ConsoleThread]:
    """A console that may make changes."""
    with ConsoleThread(data.url, allow_changes=True) as found:
        yield found


@pytest.fixture
def client(data: ServerThread, console: ConsoleThread) -> Iterator[redis.Redis]:
    """A client of the emptied server. The console has no readings of it yet."""
    with redis.Redis.from_url(data.url) as found:
        found.flushall()
        console.forget()
        yield found
