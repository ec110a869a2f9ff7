"""Rows a second from Spark into a stream: this sink beside foreachBatch with a redis-py pipeline; and its latency.

Both take the same Parquet files as a stream into the same redis-server, in one session, in turns; each round gives one
ratio, and the middle one counts. Then the time from XADD in one stream to the row in another, with a trickle of
entries. Run with ``python bench/spark_write.py [entries] [rounds]``.
"""

import itertools
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from pairs import middle, ratio, redis_server, table

import millstream.spark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

ROWS = """
    select element_at(array('click', 'view', 'buy'), cast(id % 3 + 1 as int)) event, id * 7919 % 1000000 user,
        round(rand(1) * 1000, 2) amount, 'DE' country, repeat('x', cast(5 + id % 15 as int)) note
    from range(0, {}, 1, 2)
"""
TRICKLE = 400
"""Entries whose latency is measured, fifty a second."""


def by_pipeline(url: str) -> Any:
    """What one writes in an hour; a batch that is run again is there twice."""

    def partition(rows: "Iterable[Any]") -> None:
        client = redis.Redis.from_url(url)
        pipeline = client.pipeline(transaction=False)
        for number, row in enumerate(rows, 1):
            pipeline.xadd("out", row.asDict())
            if number % 1000 == 0:
                pipeline.execute()
        pipeline.execute()
        client.close()

    def batch(frame: "DataFrame", _: int) -> None:
        frame.foreachPartition(partition)

    return batch


def timed(writer: "DataStreamWriter") -> float:
    """Seconds of a query from its start to the end of what there is."""
    with tempfile.TemporaryDirectory() as checkpoint:
        begun = time.perf_counter()
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - begun


def throughput(spark: "SparkSession", url: str, folder: Path, entries: int, rounds: int) -> None:
    """Print both speeds and the ratio."""
    spark.sql(ROWS.format(entries)).write.parquet(str(folder / "rows"))
    schema = spark.read.parquet(str(folder / "rows")).schema
    client = redis.Redis.from_url(url)

    def writer() -> "DataStreamWriter":
        return spark.readStream.schema(schema).parquet(str(folder / "rows")).writeStream

    cases = {
        "foreachBatch, redis-py": lambda: writer().foreachBatch(by_pipeline(url)),
        "millstream": lambda: writer().format("millstream").option("url", url).option("stream", "out"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in cases}
    for turn, (name, make) in itertools.product(range(rounds + 1), cases.items()):
        client.flushall()
        seconds = timed(make())
        written = client.xlen("out")
        assert written == entries, f"{name} wrote {written} of {entries}"
        if turn:  # the first warms up
            speeds[name].append(entries / seconds)
    client.close()
    base = speeds["foreachBatch, redis-py"]
    table(
        ["case", "rows/s", "to foreachBatch"],
        [[name, middle(found), ratio(found, base)] for name, found in speeds.items()],
    )


def latency(spark: "SparkSession", url: str) -> None:
    """Print the time from XADD to the row in the sink's stream, through a query that runs without a pause."""
    client = redis.Redis.from_url(url, decode_responses=True)
    client.flushall()
    client.xadd("in", {"t": "0"})
    source = spark.readStream.format("millstream").option("url", url).option("stream", "in").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            source.selectExpr("fields['t'] t").writeStream.format("millstream").option("url", url)
            .option("stream", "out").option("checkpointLocation", checkpoint).start()
        )  # fmt: skip
        while not query.recentProgress and query.exception() is None:  # its first batch takes seconds
            time.sleep(0.1)  # Spark tells only those who ask
        sent = threading.Thread(target=trickle, args=(url,))
        sent.start()
        found: list[float] = []
        last = "0"
        while len(found) < TRICKLE:
            if query.exception() is not None:
                raise query.exception()
            for _, entries in client.xread({"out": last}, block=1000):
                now = time.time()
                found += [(now - float(fields["t"])) * 1000 for _, fields in entries]
                last = entries[-1][0]
        sent.join()
        query.stop()
    client.close()
    cuts = statistics.quantiles(found, n=100)
    print()
    table(["", "p50", "p95", "n"], [["XADD to row, ms", f"{cuts[49]:.0f}", f"{cuts[94]:.0f}", f"{len(found)}"]])


def trickle(url: str) -> None:
    """Add entries that hold the time."""
    client = redis.Redis.from_url(url)
    for _ in range(TRICKLE):
        client.xadd("in", {"t": repr(time.time())})
        time.sleep(0.02)  # the pace of the trickle
    client.close()


def main() -> None:
    """Measure and print."""
    entries, rounds = (int(word) for word in (*sys.argv[1:3], *("300000", "5")[len(sys.argv) - 1 :]))
    spark = millstream.spark.session("bench", spark__log__level="ERROR")
    with redis_server() as url, tempfile.TemporaryDirectory() as folder:
        throughput(spark, url, Path(folder), entries, rounds)
        latency(spark, url)


if __name__ == "__main__":
    main()
