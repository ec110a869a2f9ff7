"""Both versions, and servers with what 0.1 left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from support.servers import ServerProcess, redis_server
from support.versions import FIXTURES, Version, new, old, on_recorded_log
from upgrade import kept


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Version]:
    """``old`` and ``new``."""
    return {"old": old(tmp_path_factory.mktemp("old")), "new": new()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The present server on the recorded log, for tests that change nothing."""
    with on_recorded_log(tmp_path_factory.mktemp("recorded")) as server:
        yield server


@pytest.fixture(params=["redis", "millstream"])
def worker_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[redis.Redis]:
    """A client of a server with what 0.1's workers left there, paused, as it was when they were killed."""
    server = redis_server(tmp_path) if request.param == "redis" else on_recorded_log(tmp_path)
    with server, server.client(**kept.TEXT) as client:
        if request.param == "redis":
            kept.put(client, kept.read(FIXTURES / "worker-redis.json"))
        else:
            kept.put(client, kept.read(FIXTURES / "log.json.xz")["volatile"])
        yield client


@pytest.fixture
def url(worker_state: redis.Redis) -> str:
    """Where :func:`worker_state` is."""
    return f"redis://127.0.0.1:{worker_state.connection_pool.connection_kwargs['port']}/0"
