"""A worker warns once, at its start, of a server that may remove whole streams."""

from collections.abc import Iterator

import pytest
import redis

from millstream import App, StreamSub
from support.accounts import user
from support.servers import ServerProcess

SERVERS = ["redis"]


@pytest.fixture
def policy(client: redis.Redis) -> Iterator[None]:
    """Restore the server's policy after the test."""
    yield
    client.config_set("maxmemory-policy", "noeviction")


async def warnings(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Run an app for a moment and return its warnings about the policy."""
    app = App(url, registry=False)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(n: int) -> None: ...

    caplog.clear()
    async with app.running():
        pass
    return [text for one in caplog.records if "maxmemory-policy" in (text := one.getMessage())]


@pytest.mark.usefixtures("policy")
@pytest.mark.parametrize(("name", "count"), [("allkeys-lru", 1), ("allkeys-random", 1), ("volatile-lru", 0)])
async def test_a_worker_warns_once_of_eviction(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture, name: str, count: int
) -> None:
    """The policies that evict any key cause one warning at the start; the others cause none."""
    client.config_set("maxmemory-policy", name)
    found = await warnings(server.url, caplog)
    assert len(found) == count
    assert all(name in one and "noeviction" in one for one in found)


@pytest.mark.usefixtures("policy")
async def test_a_worker_starts_without_the_right_to_see_the_policy(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without the right to INFO starts without a warning."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    with user(client, "~*", "&*", "+@all", "-info") as name:
        assert await warnings(server.url.replace("redis://", f"redis://{name}"), caplog) == []
