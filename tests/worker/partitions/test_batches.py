"""Batches to a partitioned stream: results of their entries, and a connection lost while the layout changes."""

import asyncio
import zlib

import pytest
import redis

from millstream import App, StreamSub
from millstream.client.partitions.layout import HIGHEST_ID
from millstream.errors import ConfigError, Disconnected
from support.between import Between
from support.partitioned import partition
from support.ports import free_port
from support.servers import ServerProcess

pytestmark = [pytest.mark.either_server]


@pytest.mark.parametrize("partitioned", [True, False])
async def test_each_entry_of_a_batch_has_its_result(server: ServerProcess, partitioned: bool) -> None:
    """A batch to a partitioned stream returns jobs in the order of its contents, each with its result."""
    app = App(server.url)
    if partitioned:
        await app.partition("orders", 4, by="key")

    @app.subscriber(StreamSub("orders", group="g", min_idle_time=5_000))
    async def double(n: int) -> int:
        return 2 * n

    async with app.running():
        jobs = await app.publish_batch("orders", [{"key": f"k{n}", "n": n} for n in range(12)], result="1h")
        assert [await job.result(timeout="20s") for job in jobs] == [2 * n for n in range(12)]
        assert len({job.stream for job in jobs}) == (4 if partitioned else 1)
        with pytest.raises(ConfigError, match="result"):
            await app.publish_batch("orders", [{"key": "k", "n": 1}], result="1h", delay="1h")


async def test_a_batch_of_which_some_are_added_may_have_been_sent(server: ServerProcess, client: redis.Redis) -> None:
    """If a batch's connection is lost after one partition stored its entry, the error reports ``sent`` as true."""
    await asyncio.to_thread(partition, server.url, "orders", 2)
    keys = {zlib.crc32(name.encode()) % 2: name for name in map(str, range(10))}
    with Between(server.port) as between:
        async with App(f"redis://127.0.0.1:{between.port}/0") as app:
            await app.publish_batch("orders", [{"customer": key} for key in keys.values()])
            client.execute_command("XSETID", "orders{1}", HIGHEST_ID)
            with pytest.raises(redis.ResponseError) as refused:
                client.xadd("orders{1}", {"n": 1})
            between.target = free_port()  # For the next connection: nothing can be sent over it
            added = client.xlen("orders{0}")
            between.cut_after(len(f"-ERR {refused.value}\r\n") + len("$15\r\n1795928496815-0\r\n"))
            with pytest.raises(Disconnected) as error:
                await app.publish_batch("orders", [{"customer": key} for key in (keys[0], keys[1])])
    assert client.xlen("orders{0}") == added + 1
    assert error.value.sent
    assert "may have been added" in str(error.value)
