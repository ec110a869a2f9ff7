"""A query that copies a stream while its number of partitions changes copies each entry once."""

import asyncio
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from millstream import App
from support.partitioned import partition as make_partitioned
from support.servers import ServerProcess
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]


def test_a_copy_over_a_repartition_has_each_entry_once(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """If source and target are repartitioned meanwhile, the query ends, is restarted, and copies each entry once."""
    from pyspark.errors import StreamingQueryException

    from millstream.spark import partition

    url = real_redis.url
    make_partitioned(url, "orders", 4)
    make_partitioned(url, "copy", 2)

    async def publish(first: int, count: int, *changes: tuple[str, int]) -> None:
        app = App(url, registry=False)
        for stream, number in changes:
            await app.repartition(stream, number)
        for number in range(first, first + count):
            await app.publish("orders", {"customer": number})
        await app.close()

    def start(**trigger: Any) -> Any:
        given = {"partitionedStream": "orders", "startingOffsets": "earliest", "url": url}
        rows = spark.readStream.format("millstream").options(**given).load().selectExpr("fields['customer'] n")
        writer = rows.select(partition("copy", "n", url).alias("stream"), "n").writeStream.format("millstream")
        return writer.options(url=url, checkpointLocation=str(tmp_path / "c")).trigger(**trigger).start()

    def copied() -> list[int]:
        return sorted(int(fields["n"]) for key in client.keys("copy*{*}") for _, fields in client.xrange(key))

    asyncio.run(publish(0, 1000))
    query = start(processingTime="0 seconds")
    eventually(lambda: len(copied()) == 1000, 60, what="the first entries are copied")
    asyncio.run(publish(1000, 500, ("orders", 6)))
    eventually(lambda: len(copied()) == 1500, 60, what="those of the new partitions are copied")
    asyncio.run(publish(1500, 500, ("copy", 3)))
    with pytest.raises(StreamingQueryException, match=r"is sealed, .* Start the query again"):
        query.awaitTermination(60)
    start(availableNow=True).awaitTermination()
    assert copied() == list(range(2000))
    for at in range(3):
        assert {zlib.crc32(fields["n"].encode()) % 3 for _, fields in client.xrange(f"copy~2{{{at}}}")} == {at}
