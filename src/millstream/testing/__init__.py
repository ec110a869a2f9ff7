"""Pytest fixtures for programs that use streams: no installed server, no unneeded socket, no sleeping.

Enable them in your ``conftest.py``::

    pytest_plugins = ["millstream.testing"]

``millstream_clock``
    a manual clock. ``advance(60_000)`` lets a minute pass for every client of ``millstream_url``: blocking reads of
    that length time out, idle times grow, keys expire.
``millstream_url``
    ``memory://...``, an empty store on that clock, private to the test. Pass it to the program under test:
    ``millstream.connect(url)``, ``millstream.connect_async(url)``, ``App(url)``.
``millstream_memory``
    a client of that store (text, not bytes).
``millstream_worker``
    ``async with millstream_worker(app) as broker:`` runs an ``App`` on that store and that clock, with
    ``await broker.run_until_idle()`` and ``await broker.advance(10)``; see ``millstream.worker.testing``.
``millstream_server``
    a server in a thread, listening on a free port (``millstream_server.url``), on a data directory private to the
    test; it uses the system's clock.
``millstream_any_url``
    runs the test three times: on memory, on a data directory in this process, on a server. All three use the
    system's clock.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import redis

from millstream.client.connect import sync_client
from millstream.client.manual import StoreClock, fresh_memory, manual_store
from millstream.embedded.place import parse_place
from millstream.embedded.stores import Lease
from millstream.server.thread import ServerThread
from millstream.worker.testing import Broker, run

__all__ = [
    "Clock",
    "WorkerUnderTest",
    "millstream_any_url",
    "millstream_clock",
    "millstream_memory",
    "millstream_server",
    "millstream_url",
    "millstream_worker",
]

#: A clock set by hand, which all stores that use it follow at once.
Clock = StoreClock

#: Type of ``millstream_worker``, which returns a context manager that runs an app.
WorkerUnderTest = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.fixture
def millstream_clock() -> Clock:
    """The clock of ``millstream_url``; it moves only by the test's calls."""
    return Clock()


@pytest.fixture
def millstream_url(millstream_clock: Clock) -> Iterator[str]:
    """The URL of an empty store in memory, shared by all clients of the URL and removed after the test."""
    with manual_store(millstream_clock) as url:
        yield url


@pytest.fixture
def millstream_memory(millstream_url: str) -> Iterator[redis.Redis]:
    """A client of ``millstream_url`` that returns text."""
    with sync_client(millstream_url, decode_responses=True, encoding_errors="surrogateescape") as client:
        yield client


@pytest.fixture
def millstream_worker(millstream_url: str, millstream_clock: Clock) -> WorkerUnderTest:
    """Runs an app on ``millstream_url`` with ``millstream_clock``."""
    return functools.partial(run, url=millstream_url, clock=millstream_clock)


@pytest.fixture
def millstream_server(tmp_path: Path) -> Iterator[ServerThread]:
    """A server for one test, with fsync always; it is stopped after the test."""
    with ServerThread(tmp_path / "millstream-server") as server:
        yield server


@pytest.fixture(params=["memory", "file", "server"])
def millstream_any_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store: in memory, on disk in this process, and on a server. The test runs three times."""
    if request.param == "server":
        with ServerThread(tmp_path / "millstream-server") as server:
            yield server.url
        return
    url = fresh_memory() if request.param == "memory" else (tmp_path / "millstream-data").as_uri()
    lease = Lease(parse_place(url))
    yield url
    lease.give_up()
