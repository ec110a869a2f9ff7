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
``millstream_server``
    a server in a thread, listening at a free port (``millstream_server.url``), on a data directory of this test's own;
    its time is the system's.
``millstream_any_url``
    runs the test three times: over memory, over a data directory in this process, over a server. All three go by the
    system's time.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millstream.client.url import sync_client
from millstream.clock import ManualClock
from millstream.embedded.place import parse_place
from millstream.embedded.store import Store
from millstream.embedded.stores import Lease
from millstream.server.thread import ServerThread

__all__ = [
    "Clock",
    "millstream_any_url",
    "millstream_clock",
    "millstream_memory",
    "millstream_server",
    "millstream_url",
]

_serial = itertools.count(1)


class Clock(ManualClock):
    """A clock turned by hand, which the stores that go by it follow at once.

    Args:
        wall: first wall reading in milliseconds since 1970.
    """

    def __init__(self, wall: int = 1_700_000_000_000) -> None:
        super().__init__(wall)
        self._stores: list[Store] = []

    def drive(self, store: Store) -> None:
        """Have a store look at the time whenever it is changed."""
        self._stores.append(store)

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass, wall and monotonic."""
        super().advance(ms)
        self._tick()

    def jump(self, ms: int) -> None:
        """Move only the wall clock, as a time correction does; ``ms`` may be negative."""
        super().jump(ms)
        self._tick()

    def _tick(self) -> None:
        for store in self._stores:
            store.tick()


def _fresh_memory() -> str:
    return f"memory://test-{os.getpid()}-{next(_serial)}"


@pytest.fixture
def millstream_clock() -> Clock:
    """The time of ``millstream_url``; it moves only when the test says so."""
    return Clock()


@pytest.fixture
def millstream_url(millstream_clock: Clock) -> Iterator[str]:
    """An empty store in memory that whoever is given the URL shares; gone after the test."""
    place = parse_place(_fresh_memory())
    lease = Lease(place, clock=millstream_clock)
    millstream_clock.drive(lease.store())
    yield place.url
    lease.give_up()


@pytest.fixture
def millstream_memory(millstream_url: str) -> Iterator[redis.Redis]:
    """A client of ``millstream_url`` with text for replies."""
    with sync_client(millstream_url, decode_responses=True) as client:
        yield client


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
    url = _fresh_memory() if request.param == "memory" else (tmp_path / "millstream-data").as_uri()
    lease = Lease(parse_place(url))
    yield url
    lease.give_up()
