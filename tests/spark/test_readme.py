"""The Spark lines of the README do as the README states."""

from typing import TYPE_CHECKING

import pytest

from support.readme import block
from support.servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_stream_of_the_readme(spark: "SparkSession", our_server: ServerProcess) -> None:
    """The README's streaming query returns each entry as a row with stream, id, timestamp and fields."""
    with our_server.client(decode_responses=True) as client:
        ids = [client.xadd("orders", {"item": item}) for item in ("tea", "milk")]
    lines = block("python", "readStream").replace("redis://127.0.0.1:6400/0", our_server.url)
    names = {"spark": spark}
    exec(compile(lines, "README.md", "exec"), names)
    query = names["events"].writeStream.format("memory").queryName("readme").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    table = spark.table("readme").orderBy("id")
    assert table.columns == ["stream", "id", "timestamp", "fields"]
    assert [(row.stream, row.id, row.fields) for row in table.collect()] == [
        ("orders", ids[0], {"item": "tea"}),
        ("orders", ids[1], {"item": "milk"}),
    ]
