"""Rows a second of a batch read into Spark's noop sink: this reader beside a plain one that yields tuples.

Both read the same stream from the same redis-server in the same session, in turns; each round gives one ratio, and
the middle one counts. Run with ``python bench/spark_read.py [entries] [rounds]``.
"""

import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator

import redis
from pairs import redis_server
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import millstream.spark

SCHEMA = "stream string, id string, timestamp timestamp, fields map<string,string>"
FLAT = "id string, event string, user long, amount double, country string, note string"


class TuplesSource(DataSource):
    """What one writes in an hour: redis-py, pages of 1000, a tuple a row, two partitions by time."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "tuples"

    def schema(self) -> str:
        """The same columns as ours."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """For ``spark.read``."""
        return TuplesReader(self.options["url"], self.options["stream"], int(self.options["entries"]))


class TuplesReader(DataSourceReader):
    """The reader of ``TuplesSource``."""

    def __init__(self, url: str, stream: str, entries: int) -> None:
        self.url, self.stream, self.entries = url, stream, entries

    def partitions(self) -> list[InputPartition]:
        """Two halves."""
        middle = START + self.entries // 2 * STEP
        return [InputPartition(("-", f"({middle}-0")), InputPartition((f"{middle}-0", "+"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """One tuple a row."""
        from datetime import UTC, datetime

        client = redis.Redis.from_url(self.url, decode_responses=True)
        low, high = partition.value
        while rows := client.xrange(self.stream, low, high, 1000):
            for ident, fields in rows:
                when = datetime.fromtimestamp(int(ident.split("-")[0]) / 1000, UTC)
                yield self.stream, ident, when, fields
            low = f"({rows[-1][0]}"


START, STEP = 1_700_000_000_000, 3


def fill(url: str, entries: int) -> None:
    """Entries of five fields, about 170 bytes of reply each."""
    client, dice = redis.Redis.from_url(url), random.Random(1)
    pipeline = client.pipeline(transaction=False)
    for number in range(entries):
        fields = {
            "event": dice.choice(["click", "view", "buy"]),
            "user": dice.randrange(10**6),
            "amount": f"{dice.random() * 1000:.2f}",
            "country": "DE",
            "note": "x" * dice.randrange(5, 20),
        }
        pipeline.xadd("big", fields, id=f"{START + number * STEP}-0")
        if number % 5000 == 4999:
            pipeline.execute()
    pipeline.execute()
    client.close()


def main() -> None:
    """Fill, read in turns, print."""
    entries, rounds = (int(word) for word in (*sys.argv[1:3], *("300000", "5")[len(sys.argv) - 1 :]))
    spark = millstream.spark.session("bench", spark__log__level="ERROR")
    spark.dataSource.register(TuplesSource)
    with redis_server() as url:
        fill(url, entries)
        ours = {"url": url, "stream": "big", "minPartitions": "2"}
        cases = {
            "tuples": spark.read.format("tuples").options(url=url, stream="big", entries=str(entries)).load(),
            "millstream": spark.read.format("millstream").options(**ours).load(),
            "millstream, typed columns": spark.read.format("millstream").options(**ours).schema(FLAT).load(),
        }
        speeds: dict[str, list[float]] = {name: [] for name in cases}
        for turn, (name, frame) in itertools.product(range(rounds + 1), cases.items()):
            begun = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if turn:  # the first warms up
                speeds[name].append(entries / (time.perf_counter() - begun))
    for name, found in speeds.items():
        ratio = statistics.median(one / other for one, other in zip(found, speeds["tuples"], strict=True))
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        print(f"{name:28} {statistics.median(found):>10,.0f} rows/s ({spread}), {ratio:.1f} x tuples")


if __name__ == "__main__":
    main()
