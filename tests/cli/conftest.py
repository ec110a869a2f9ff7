"""The command line against a real redis-server and ours, in memory."""

from collections.abc import Iterator

import pytest
import redis

from support.servers import ServerProcess, millstream_server, redis_server


@pytest.fixture(scope="session")
def memory_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server of ours for the whole run."""
    with millstream_server(tmp_path_factory.mktemp("millstream"), "--memory") as server:
        yield server


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One redis-server for the whole run."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["real_server", "memory_server"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """A server with nothing in it, each kind in turn."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found.as_new()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A client that returns bytes."""
    with server.client() as found:
        yield found
