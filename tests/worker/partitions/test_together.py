"""Results and limits on a partitioned stream: each partition has a loop, and users see one subscriber."""

import asyncio
from collections import Counter
from typing import Any
from zlib import crc32

import pytest
import redis

from millstream import App, Limit, StreamSub
from millstream.errors import ConfigError
from millstream.worker.subscriber.buffer import Buffer
from support.servers import ServerProcess
from support.waiting import aeventually

pytestmark = [pytest.mark.either_server]


def sub() -> StreamSub:
    """Build the subscription of these tests."""
    return StreamSub("orders", group="g", min_idle_time=5_000)


async def test_a_request_is_answered_by_the_owner_of_its_partition(server: ServerProcess) -> None:
    """Jobs on every partition have their results, and each job names its partition."""
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
    """``Limit(running=1)`` allows one run at a time over all partitions."""
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
    """A limit by key on a partitioned stream is refused without ``hold``, which keeps the order of each key."""
    app = App(server.url)
    await app.partition("orders", 4, by="key")

    @app.subscriber(sub(), limit=Limit(running=1, key="key"))
    async def one(n: int) -> Any:
        return n

    with pytest.raises(ConfigError, match=r"limit=Limit\(key=\)"):
        async with app.running():
            pass


async def test_a_place_wakes_one_lane(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that becomes free wakes one waiting lane of the partitions, not all of them."""
    app, entries, wakes, ran = App(server.url), 400, 0, Counter[int]()
    arrival = Buffer.arrival

    async def counted(buffer: Buffer) -> None:
        nonlocal wakes
        await arrival(buffer)
        wakes += bool(ran)

    monkeypatch.setattr(Buffer, "arrival", counted)
    await app.partition("orders", 8, by="key")
    await app.publish_batch("orders", [{"key": f"k{n}", "n": n} for n in range(entries)])

    @app.subscriber(sub(), concurrency=16)
    async def one(n: int) -> None:
        await asyncio.sleep(0)
        ran[n] += 1

    async with app.running():
        await aeventually(lambda: len(ran) == entries)
        await aeventually(lambda: not app.loops[0].busy)
    assert set(ran.values()) == {1}
    assert wakes < 6 * entries


async def test_a_partition_uses_every_free_place(server: ServerProcess) -> None:
    """A partition takes every lane that others leave free, also after a time without a free one."""
    app, at_work, first = App(server.url), 0, asyncio.Event()
    await app.partition("orders", 2, by="key")
    keys = [f"k{n}" for n in range(100)]
    own = {at: [key for key in keys if crc32(key.encode()) % 2 == at] for at in (0, 1)}

    @app.subscriber(sub(), concurrency=4)
    async def one(part: int) -> None:
        nonlocal at_work
        if part == 0:
            await first.wait()
            return
        at_work += 1
        await aeventually(lambda: at_work == 4)

    async with app.running():
        await app.publish_batch("orders", [{"key": key, "part": 0} for key in own[0][:3]])
        await aeventually(lambda: app.loops[0].in_hand == 3)
        await app.publish_batch("orders", [{"key": key, "part": 1} for key in own[1][:4]])
        await aeventually(lambda: at_work == 1)
        first.set()
        await aeventually(lambda: not app.loops[0].busy and at_work == 4)
