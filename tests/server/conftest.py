"""Servers in a thread of the test process, and connections to them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from millstream.server import thread
from millstream.server.thread import ServerThread
from support.wire import Wire

Connect = Callable[..., Wire]


@pytest.fixture(params=["fastest", "asyncio"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """Yield a server that stores its data in memory, on uvloop if it is installed, and on asyncio's own loop."""
    if request.param == "asyncio":
        monkeypatch.setattr(thread, "loop_factory", lambda: asyncio.new_event_loop)
    with ServerThread() as running:
        yield running


@pytest.fixture
def connect(server: ServerThread) -> Iterator[Connect]:
    """Yield a function that connects to ``server`` (or another URL); all connections are closed at the end."""
    with ExitStack() as stack:
        yield lambda resp=2, url=None: stack.enter_context(Wire(url or server.url, resp))
