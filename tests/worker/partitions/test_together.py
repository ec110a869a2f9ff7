"""Results and limits of a partitioned stream: each partition has its loop, and users see one subscriber."""

import asyncio
from typing import Any

import pytest
import redis

from millstream import App, Limit, StreamSub
from millstream.errors import ConfigError
from support.servers import ServerProcess

pytestmark = [pytest.mark.either_server]


def sub() -> StreamSub:
    """The subscription of these tests."""
    return StreamSub("orders", group="g", min_idle_time=5_000)


async def test_a_request_is_answered_by_the_owner_of_its_partition(server: ServerProcess) -> None:
    """Every partition's entry has its result, and the job names the partition."""
    app = App(server.url)
    await app.partition("orders", 4, by="key")

    @app.subscriber(sub())
    async def double(n: int) -> int:
        return 2 * n

    async with app.running():
        jobs = [await app.publish("orders", {"key": f"k{n}", "n": n}, result="1h") for n in range(12)]
        assert {job.stream for job in jobs} == {f"orders{{{n}}}" for n in range(4)}
        assert [await job.result(timeout="20s") for job in jobs] == [2 * n for n in range(12)]
        assert await app.request("orders", {"key": "k1", "n": 21}, timeout="20s") == 42


async def test_a_limit_holds_over_all_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """At most one run at a time, though four loops read."""
    app, at_work, most = App(server.url), 0, 0
    await app.partition("orders", 4, by="key")

    @app.subscriber(sub(), concurrency=8, limit=Limit(running=1))
    async def one(n: int) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return n

    async with app.running():
        jobs = [await app.publish("orders", {"key": f"k{n}", "n": n}, result="1h") for n in range(12)]
        assert [await job.result(timeout="30s") for job in jobs] == list(range(12))
    assert most == 1


async def test_a_limit_by_key_needs_hold(server: ServerProcess) -> None:
    """An entry that a limit puts back would let the later ones of its key pass."""
    app = App(server.url)
    await app.partition("orders", 4, by="key")

    @app.subscriber(sub(), limit=Limit(running=1, key="key"))
    async def one(n: int) -> Any:
        return n

    with pytest.raises(ConfigError, match=r"limit=Limit\(key=\)"):
        async with app.running():
            pass
