"""Cost of writing with ``format("millstream")``, beside foreachBatch with a redis-py pipeline: one run, in turns.

    python bench/spark_write.py write --entries 1000000 --rounds 3     rows/s, processor time, and the possible maximum
    python bench/spark_write.py latency --entries 400                  from XADD in one stream to the row in another

All cases of ``write`` read the same Parquet files as a stream, in one session and with one server (``--server
millstream`` for Millstream); each round gives one ratio, and the median counts. Two cases show the lower bound:
"dropped" is a sink in Python that drops its Arrow batches, so its time is Spark's own. "XADD alone" sends the same
rows, encoded before, from one client that checks no reply, so its time is the server's own. The sink must do one after
the other, since no row may be visible before every task is done.
"""

import argparse
import itertools
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from pairs import SERVERS, Processor, at_least_one, middle, private_server, processor_table, ratio, table
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

import millstream.spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

ROWS = """
    select element_at(array('click', 'view', 'buy'), cast(id % 3 + 1 as int)) event, id * 7919 % 1000000 user,
        round(rand(1) * 1000, 2) amount, 'DE' country, repeat('x', cast(5 + id % 15 as int)) note
    from range(0, {}, 1, 2)
"""


class DroppingSource(DataSource):
    """A sink that drops its rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "dropping"

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DroppingSink":  # noqa: ARG002, N802 - Spark's
        """Return the sink for ``writeStream``."""
        return DroppingSink()


class DroppingSink(DataSourceStreamArrowWriter):
    """A sink that reads its rows and drops them."""

    def write(self, iterator: "Iterator[Any]") -> WriterCommitMessage:
        """Drop the rows."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing."""


def by_pipeline(url: str) -> Any:
    """Write rows by a pipeline in a simple way; a batch that runs again is written twice."""

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
    """Return the seconds of a query from its start to the end of the existing rows."""
    with tempfile.TemporaryDirectory() as checkpoint:
        begun = time.perf_counter()
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - begun


def packed_rows(spark: "SparkSession", folder: Path) -> list[bytes]:
    """Return the rows as encoded XADD commands, a thousand together."""
    rows = spark.read.parquet(str(folder / "rows")).toLocalIterator()
    found = []
    while chunk := list(itertools.islice(rows, 1000)):
        words = [
            itertools.chain.from_iterable((name, str(value)) for name, value in row.asDict().items()) for row in chunk
        ]
        found.append(b"".join(hiredis.pack_command(("XADD", "out", "*", *each)) for each in words))
    return found


def added_alone(url: str, packed: list[bytes]) -> float:
    """Return the seconds until a server has added them, with the next thousand in transit while one is added."""
    port = redis.Redis.from_url(url).connection_pool.connection_kwargs["port"]
    with socket.create_connection(("127.0.0.1", port)) as line:

        def drain() -> None:
            while line.recv(1 << 16):
                pass

        reading = threading.Thread(target=drain)
        reading.start()
        begun = time.perf_counter()
        for chunk in packed:
            line.sendall(chunk)
        line.shutdown(socket.SHUT_WR)  # the server answers everything, then closes
        reading.join()
        return time.perf_counter() - begun


def write(args: argparse.Namespace) -> None:
    """Measure the rows per second of a query from its start to its end, and the microseconds of processor per row."""
    spark = millstream.spark.session("bench", spark__log__level="ERROR")
    spark.dataSource.register(DroppingSource)
    entries = args.entries
    with private_server(args.server) as url, tempfile.TemporaryDirectory() as made, redis.Redis.from_url(url) as client:
        folder = Path(made)
        spark.sql(ROWS.format(entries)).write.parquet(str(folder / "rows"))
        schema = spark.read.parquet(str(folder / "rows")).schema
        packed = packed_rows(spark, folder)

        def writer() -> "DataStreamWriter":
            return spark.readStream.schema(schema).parquet(str(folder / "rows")).writeStream

        cases = {
            "foreachBatch, redis-py": lambda: timed(writer().foreachBatch(by_pipeline(url))),
            "millstream": lambda: timed(writer().format("millstream").option("url", url).option("stream", "out")),
            "dropped": lambda: timed(writer().format("dropping")),
            "XADD alone": lambda: added_alone(url, packed),
        }
        speeds: dict[str, list[float]] = {name: [] for name in cases}
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for turn, (name, run) in itertools.product(range(args.rounds + 1), cases.items()):
            client.flushall()
            processor = Processor()
            seconds = run()
            written = client.xlen("out")
            assert written == (0 if name == "dropped" else entries), f"{name} wrote {written} of {entries}"
            if turn:  # the first warms up
                speeds[name].append(entries / seconds)
                costs[name].append(processor.since(entries))
    base = speeds["foreachBatch, redis-py"]
    table(
        ["case", "rows/s", "to foreachBatch", "seconds"],
        [
            [name, middle(found), ratio(found, base), f"{entries / statistics.median(found):.2f}"]
            for name, found in speeds.items()
        ],
    )
    processor_table(costs)


WARMING = 1000
"""Warm-up entries that are not measured: twenty seconds, in which Java compiles the code of a micro-batch."""


def latency(args: argparse.Namespace) -> None:
    """Measure the milliseconds from XADD to the row in the sink's stream, through a query without pauses."""
    spark = millstream.spark.session("bench", spark__log__level="ERROR")
    with private_server(args.server) as url:
        through(spark, url, args.entries)


def through(spark: "SparkSession", url: str, entries: int) -> None:
    """Measure with so many entries, after warm-up entries."""
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
        sent = threading.Thread(target=trickle, args=(url, WARMING + entries))
        sent.start()
        found: list[float] = []
        last = "0"
        while len(found) < WARMING + entries:
            if query.exception() is not None:
                raise query.exception()
            for _, rows in client.xread({"out": last}, block=1000):
                now = time.time()
                found += [(now - float(fields["t"])) * 1000 for _, fields in rows]
                last = rows[-1][0]
        sent.join()
        query.stop()
    client.close()
    del found[:WARMING]
    cuts = statistics.quantiles(found, n=100)
    table(["", "p50", "p95", "n"], [["XADD to row, ms", f"{cuts[49]:.0f}", f"{cuts[94]:.0f}", f"{len(found)}"]])


def trickle(url: str, entries: int) -> None:
    """Add entries that contain the time, fifty a second."""
    client = redis.Redis.from_url(url)
    for _ in range(entries):
        client.xadd("in", {"t": repr(time.time())})
        time.sleep(0.02)  # the pace of the trickle
    client.close()


def main() -> None:
    """Run the chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subs = parser.add_subparsers(dest="mode", required=True)
    sub = subs.add_parser("write", help=write.__doc__)
    sub.set_defaults(run=write)
    sub.add_argument("--entries", type=at_least_one, default=300_000, help="rows of five fields (default: %(default)s)")
    sub.add_argument("--rounds", type=at_least_one, default=3, help="of every case, after one that warms up")
    sub = subs.add_parser("latency", help=latency.__doc__)
    sub.set_defaults(run=latency)
    sub.add_argument("--entries", type=at_least_one, default=400, help="fifty a second (default: %(default)s)")
    for sub in subs.choices.values():
        sub.add_argument("--server", choices=SERVERS, default="redis", help="which server all cases use")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
