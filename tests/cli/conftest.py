"""The command line against a real redis-server and a Millstream server in memory."""

from collections.abc import Iterator

import pytest
import redis

from support.servers import ServerProcess, millstream_server, redis_server


@pytest.fixture(scope="session")
def memory_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Millstream server for the whole test run."""
    with millstream_server(tmp_path_factory.mktemp("millstream"), "--memory") as server:
        yield server


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One redis-server for the whole test run."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["real_server", "memory_server"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """An emptied server, once for each kind."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found.as_new()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A redis-py client that returns bytes."""
    with server.client() as found:
        yield found
