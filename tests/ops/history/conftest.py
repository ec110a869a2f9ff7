"""Servers of every kind that keeps a history."""

import pytest

from support.servers import ServerProcess


@pytest.fixture(params=["redis", "redis 6.2", "millstream"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """An emptied server, once for each kind."""
    name = {"redis": "redis_process", "redis 6.2": "redis6_process", "millstream": "memory_process"}[request.param]
    found: ServerProcess = request.getfixturevalue(name)
    return found.as_new()
