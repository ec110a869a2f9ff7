"""``app.job`` with the name of a partitioned stream finds the partition that has the entry."""

import asyncio

import pytest
import redis

from millstream import App, StreamSub
from millstream.errors import UsageError
from millstream.worker.jobs.job import Job
from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]


def now_ms(client: redis.Redis) -> int:
    """Return the server's time: ids of another millisecond differ."""
    seconds, micros = client.time()  # type: ignore[misc] - redis-py's types
    return int(seconds) * 1000 + int(micros) // 1000


async def test_a_job_is_found_by_the_name_of_the_stream(server: ServerProcess, client: redis.Redis) -> None:
    """State, result and cancellation of a job work with the stream's name, and a cancelled job never runs."""
    publisher = App(server.url, registry=False)
    await publisher.partition("orders", 4, by="key")
    for at in range(4):
        client.xgroup_create(f"orders{{{at}}}", "g", "0", mkstream=True)
    jobs: list[Job] = []
    for n in range(4):
        jobs.append(await publisher.publish("orders", {"key": f"k{n}", "n": n}, result="1h"))
        await aeventually(lambda: now_ms(client) > int(jobs[-1].partition("-")[0]))
    assert len({job.stream for job in jobs}) > 1
    for job in jobs:
        assert (await publisher.job("orders", job.id).state()).state == "queued"
    named = publisher.job("orders", jobs[0].id)
    assert await named.cancel()
    assert named.stream == jobs[0].stream
    assert await asyncio.to_thread(publisher.job("orders", jobs[1].id).cancel_sync)
    assert not await publisher.job("orders", "5-1").cancel()
    app, ran = App(server.url, registry=False), []

    @app.subscriber(StreamSub("orders", group="g"))
    async def handle(n: int) -> int:
        ran.append(n)
        return n

    async with app.running():
        assert [await publisher.job("orders", job.id).result("20s") for job in jobs[2:]] == [2, 3]
        states = [publisher.job("orders", job.id, group="g") for job in jobs]
        await aeventually(lambda: app.stats()["handle"]["acked"] == 4)
        assert [(await one.state()).state for one in states] == ["cancelled", "cancelled", "done", "done"]
    assert sorted(ran) == [2, 3]
    await publisher.close()


async def test_an_id_of_two_partitions_is_refused(server: ServerProcess, client: redis.Redis) -> None:
    """An id that two partitions have is refused, and the partition's key selects one."""
    app = App(server.url, registry=False)
    await app.partition("orders", 2, by="key")
    for at in range(2):
        client.xadd(f"orders{{{at}}}", {"n": at}, id="7-0")
    job = app.job("orders", "7-0")
    for call in (job.state, job.cancel, job.result):
        with pytest.raises(UsageError, match="have this id"):
            await call()
    assert (await app.job("orders{1}", "7-0").state()).state == "queued"
    await app.close()
