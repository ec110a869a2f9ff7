"""A real redis-server and Millstream, in memory, for the tests of the pages."""

from collections.abc import Iterator

import pytest

from support.servers import ServerProcess, millstream_server, redis_server


@pytest.fixture(scope="session")
def both_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Yield one server of each kind for the whole run."""
    ours, theirs = tmp_path_factory.mktemp("millstream"), tmp_path_factory.mktemp("redis")
    with millstream_server(ours, "--memory") as one, redis_server(theirs) as other:
        yield [one, other]
