"""Fixtures for tests of programs that use streams: no server to install, no socket where none is wanted, no sleeping.

Switch them on in your ``conftest.py``::

    pytest_plugins = ["millstream.testing"]

``millstream_clock``
    a clock turned by hand; ``advance(60_000)`` lets a minute pass for whoever is connected to ``millstream_url``: reads
    that wait that long time out, idle times grow, keys expire.
``millstream_url``
    ``memory://...``, an empty store of this test's own on that clock. Give it to the program under test:
    ``millstream.connect(url)``, ``millstream.connect_async(url)``, ``App(url)``.
``millstream_memory``
    a client of it (text, not bytes).
``millstream_worker``
    ``async with millstream_worker(app) as broker:`` runs an ``App`` on that store and that clock, with
    ``await broker.run_until_idle()`` and ``await broker.advance(10)``; see ``millstream.worker.testing``.
``millstream_server``
    a server in a thread, listening at a free port (``millstream_server.url``), on a data directory of this test's own;
    its time is the system's.
``millstream_any_url``
    runs the test three times: over memory, over a data directory in this process, over a server. All three go by the
    system's time.
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

#: A clock turned by hand, which the stores that go by it follow at once.
Clock = StoreClock

#: Type of ``millstream_worker``: makes the block in which an app is at work.
WorkerUnderTest = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.fixture
def millstream_clock() -> Clock:
    """The time of ``millstream_url``; it moves only when the test says so."""
    return Clock()


@pytest.fixture
def millstream_url(millstream_clock: Clock) -> Iterator[str]:
    """An empty store in memory that whoever is given the URL shares; gone after the test."""
    with manual_store(millstream_clock) as url:
        yield url


@pytest.fixture
def millstream_memory(millstream_url: str) -> Iterator[redis.Redis]:
    """A client of ``millstream_url`` with text for replies."""
    with sync_client(millstream_url, decode_responses=True, encoding_errors="surrogateescape") as client:
        yield client


@pytest.fixture
def millstream_worker(millstream_url: str, millstream_clock: Clock) -> WorkerUnderTest:
    """Runs an app on ``millstream_url``, by ``millstream_clock``."""
    return functools.partial(run, url=millstream_url, clock=millstream_clock)


@pytest.fixture
def millstream_server(tmp_path: Path) -> Iterator[ServerThread]:
    """A server of this test's own, fsync always, stopped after it."""
    with ServerThread(tmp_path / "millstream-server") as server:
        yield server


@pytest.fixture(params=["memory", "file", "server"])
def millstream_any_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store in memory, of one on disk in this process, and of a server: one test, three times."""
    if request.param == "server":
        with ServerThread(tmp_path / "millstream-server") as server:
            yield server.url
        return
    url = fresh_memory() if request.param == "memory" else (tmp_path / "millstream-data").as_uri()
    lease = Lease(parse_place(url))
    yield url
    lease.give_up()
