"""Cost of reading with ``format("millstream")``, beside its alternatives, in one run and in turns.

    python bench/spark_read.py read --entries 1000000 --rounds 3      rows/s: ours, tuples, and the API's maximum
    python bench/spark_read.py read --to parquet                       the same into Parquet
    python bench/spark_read.py batches --batches 60                    the fixed cost of a micro-batch
    python bench/spark_read.py cold --rounds 3                         a new process: session, first read, first stream
    python bench/spark_read.py curve payload                           rows/s over partitions, fields, payload, keys
    python bench/spark_read.py keys --entries 10000                    a micro-batch over 1, 64 and 1,000 streams

``--server millstream`` runs all of it on Millstream instead of redis-server. Each round gives one ratio, and the median
counts. "Canned" is a source that returns one Arrow batch repeatedly without a server: its time is Spark's own, and so
its rate the maximum that the API allows.
"""

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from pairs import SERVERS, Processor, at_least_one, middle, private_server, processor_table, ratio, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import millstream.spark
from millstream.spark.source import MillstreamSource

SCHEMA = "stream string, id string, timestamp timestamp, fields map<string,string>"
FLAT = "id string, event string, user long, amount double, country string, note string"


class TuplesSource(DataSource):
    """A quickly written source: redis-py, pages of 1000, a tuple per row, two partitions by time."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "tuples"

    def schema(self) -> str:
        """Return the same columns as Millstream's source."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader for ``spark.read``."""
        return TuplesReader(self.options["url"], self.options["stream"], int(self.options["entries"]))


class TuplesReader(DataSourceReader):
    """The reader of ``TuplesSource``."""

    def __init__(self, url: str, stream: str, entries: int) -> None:
        self.url, self.stream, self.entries = url, stream, entries

    def partitions(self) -> list[InputPartition]:
        """Return two halves."""
        middle = START + self.entries // 2 * STEP
        return [InputPartition(("-", f"({middle}-0")), InputPartition((f"{middle}-0", "+"))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """Yield one tuple per row."""
        from datetime import UTC, datetime

        client = redis.Redis.from_url(self.url, decode_responses=True)
        low, high = partition.value
        while rows := client.xrange(self.stream, low, high, 1000):
            for ident, fields in rows:
                when = datetime.fromtimestamp(int(ident.split("-")[0]) / 1000, UTC)
                yield self.stream, ident, when, fields
            low = f"({rows[-1][0]}"


class CannedSource(DataSource):
    """One Arrow batch of 8,000 rows with Millstream's columns, made once per task and repeated, without a server."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "canned"

    def schema(self) -> str:
        """Return the same columns as Millstream's source."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return the reader for ``spark.read``."""
        return CannedReader(int(self.options["entries"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's
        """Return the reader for ``spark.readStream``."""
        return CannedStream(int(self.options["entries"]))


def canned(rows: int) -> Iterator[Any]:
    """Yield so many rows."""
    import pyarrow as pa

    fields = [("event", "click"), ("user", "123456"), ("amount", "123.45"), ("country", "DE"), ("note", "x" * 12)]
    size = 8000
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["big"] * size),
            pa.array([f"{START + number}-0" for number in range(size)]),
            pa.array([(START + number) * 1000 for number in range(size)], pa.timestamp("us", "UTC")),
            pa.array([fields] * size, pa.map_(pa.string(), pa.string())),
        ],
        ["stream", "id", "timestamp", "fields"],
    )
    while rows > 0:
        yield batch.slice(0, min(rows, size))
        rows -= size


class CannedReader(DataSourceReader):
    """The reader of ``CannedSource``, in two partitions."""

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def partitions(self) -> list[InputPartition]:
        """Return two halves."""
        return [InputPartition(self.entries // 2), InputPartition(self.entries - self.entries // 2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batch repeatedly."""
        return canned(partition.value)


class CannedStream(DataSourceStreamReader):
    """A stream that has a few new rows at each request."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the empty start."""
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return an end with a few more rows than the last one."""
        self.at += self.entries
        return {"at": self.at}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        """Return one partition."""
        return [InputPartition(end["at"] - start["at"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batch repeatedly, as the batch reader does."""
        return canned(partition.value)


START, STEP = 1_700_000_000_000, 3


def fill(url: str, entries: int, *, stream: str = "big", fields: int = 5, payload: int = 0) -> None:
    """Add entries of five fields, about 170 bytes of reply each; more fields, or a longer note, on request.

    Args:
        url: URL of the server.
        entries: Number of entries.
        stream: Key of the stream.
        fields: Fields of an entry, 1 to 5 of the usual ones and any number of others.
        payload: Bytes of the note instead of 5 to 19.
    """
    client, dice = redis.Redis.from_url(url), random.Random(1)
    pipeline = client.pipeline(transaction=False)
    for number in range(entries):
        usual = {
            "event": dice.choice(["click", "view", "buy"]),
            "user": dice.randrange(10**6),
            "amount": f"{dice.random() * 1000:.2f}",
            "country": "DE",
            "note": "x" * (payload or dice.randrange(5, 20)),
        }
        entry = dict(itertools.islice(usual.items(), 5 - min(fields, 5), None))
        entry |= {f"more{extra}": "value" for extra in range(fields - 5)}
        pipeline.xadd(stream, entry, id=f"{START + number * STEP}-0")
        if number % 5000 == 4999:
            pipeline.execute()
    pipeline.execute()
    client.close()


def session(*, quick: bool = False) -> SparkSession:
    """Return a session with both other sources."""
    spark = millstream.spark.session("bench", quick=quick, spark__log__level="OFF")
    spark.dataSource.register(TuplesSource)
    spark.dataSource.register(CannedSource)
    return spark


def save(frame: DataFrame, to: str, folder: str) -> float:
    """Return the seconds to read everything into a sink."""
    begun = time.perf_counter()
    writer = frame.write.mode("overwrite")
    if to == "noop":
        writer.format("noop").save()
    else:
        writer.parquet(folder)
    return time.perf_counter() - begun


def read(args: argparse.Namespace) -> None:
    """Measure the rows per second of a batch read."""
    spark, entries = session(), args.entries
    with private_server(args.server) as url, tempfile.TemporaryDirectory() as folder:
        fill(url, entries)
        ours = {"url": url, "stream": "big", "minPartitions": "2"}
        cases = {
            "tuples": spark.read.format("tuples").options(url=url, stream="big", entries=str(entries)).load(),
            "canned": spark.read.format("canned").options(entries=str(entries)).load(),
            "millstream": spark.read.format("millstream").options(**ours).load(),
            "millstream, typed columns": spark.read.format("millstream").options(**ours).schema(FLAT).load(),
        }
        for name, frame in cases.items():  # right first, and warm; then fast
            assert frame.count() == entries, name
        speeds: dict[str, list[float]] = {name: [] for name in cases}
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for turn, (name, frame) in itertools.product(range(args.rounds + 1), cases.items()):
            processor = Processor()
            took = save(frame, args.to, str(Path(folder, "out")))
            if turn:  # the first warms up
                speeds[name].append(entries / took)
                costs[name].append(processor.since(entries))
    table(
        ["case", "rows/s", "to tuples", "to canned"],
        [
            [name, middle(found), ratio(found, speeds["tuples"]), ratio(found, speeds["canned"])]
            for name, found in speeds.items()
        ],
    )
    processor_table(costs)


def trickle(url: str, ended: threading.Event) -> None:
    """Add a few entries about every ten milliseconds."""
    with redis.Redis.from_url(url) as client:
        while not ended.wait(0.01):
            client.xadd("small", {"event": "click", "user": 1})


def batches(args: argparse.Namespace) -> None:
    """Measure the milliseconds of a micro-batch at the smallest interval, for both sources in turns."""
    spark, found = session(), {"canned": [], "millstream": []}
    with private_server(args.server) as url, tempfile.TemporaryDirectory() as folder:
        ended = threading.Event()
        fill(url, 1, stream="small")
        writer = threading.Thread(target=trickle, args=(url, ended))
        writer.start()
        sources = {
            "canned": spark.readStream.format("canned").option("entries", "1").load(),
            "millstream": spark.readStream.format("millstream").options(url=url, stream="small").load(),
        }
        for turn, (name, frame) in itertools.product(range(args.rounds), sources.items()):
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(Path(folder, f"{name}{turn}")))
                .start()
            )
            while len(query.recentProgress) < args.batches:
                if query.exception() is not None:
                    raise query.exception()
                time.sleep(0.2)  # Spark tells only those who ask
            query.stop()
            taken = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
            found[name].append(statistics.median(taken[len(taken) // 4 :]))  # the first ones warm up
        ended.set()
        writer.join()
    table(
        ["source", "ms a micro-batch", "to canned"],
        [[name, middle(medians), ratio(medians, found["canned"])] for name, medians in found.items()],
    )


COLD = """
import sys, time
begun = time.perf_counter()
import millstream.spark
spark = millstream.spark.session("cold", quick=True, spark__log__level="OFF")
made = time.perf_counter()
where = {"url": sys.argv[1], "stream": "big"}
assert spark.read.format("millstream").options(**where).load().count() == 1000
read = time.perf_counter()
query = spark.readStream.format("millstream").options(**where, startingOffsets="earliest").load().writeStream
query = query.format("noop").option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start()
query.awaitTermination()
print(made - begun, read - made, time.perf_counter() - read)
spark.stop()
"""


def cold(args: argparse.Namespace) -> None:
    """Measure the seconds of a new process, after one that fills the cache."""
    rows = []
    with private_server(args.server) as url, tempfile.TemporaryDirectory() as folder:
        fill(url, 1000)
        for turn in range(args.rounds + 1):
            words = [sys.executable, "-c", COLD, url, str(Path(folder, str(turn)))]
            told = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if turn:
                rows.append([float(word) for word in told.stdout.split()])
    rows = [[*row, sum(row)] for row in rows]
    names = ("session", "first read", "first stream", "in all")
    columns = [list(column) for column in zip(*rows, strict=True)]
    middles = [[name, middle(each, ".1f")] for name, each in zip(names, columns, strict=True)]
    table(["of a new process", "seconds"], middles)


CURVES: dict[str, list[int]] = {
    "partitions": [1, 2, 4, 8],
    "fields": [1, 5, 20, 50],
    "payload": [10, 100, 1000, 10_000],
    "keys": [1, 4, 16, 64],
    "backlog": [10_000, 100_000, 1_000_000],
}


def curve(args: argparse.Namespace) -> None:
    """Measure the rows per second over one parameter, the others as in ``read``; the values in turns."""
    spark = session()
    with private_server(args.server) as url:
        cases = {f"{value:,}": point(spark, url, args, value) for value in CURVES[args.over]}
        speeds: dict[str, list[float]] = {name: [] for name in cases}
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for turn, (name, (frame, entries)) in itertools.product(range(args.rounds + 1), cases.items()):
            processor = Processor()
            took = save(frame, "noop", "")
            if turn:  # the first warms up
                speeds[name].append(entries / took)
                costs[name].append(processor.since(entries))
    base = next(iter(speeds.values()))
    table(
        [args.over, "rows/s", "best", "to the first", "rows", "tasks"],
        [
            [
                name,
                middle(found),
                f"{max(found):,.0f}",
                ratio(found, base),
                f"{cases[name][1]:,}",
                tasks(cases[name][0]),
            ]
            for name, found in speeds.items()
        ],
    )
    processor_table(costs)


def point(spark: SparkSession, url: str, args: argparse.Namespace, value: int) -> tuple[DataFrame, int]:
    """Create the entries of one value of a curve; return the frame and the number of entries."""
    entries = value if args.over == "backlog" else args.entries
    if args.over == "payload":
        entries = max(entries // max(value // 100, 1), 2000)  # about as many bytes
    keys = value if args.over == "keys" else 1
    streams = [f"s{value}.{number}" for number in range(keys)]
    how = {args.over: value} if args.over in ("fields", "payload") else {}
    for stream in streams:
        fill(url, entries // keys, stream=stream, **how)
    options = {"url": url, "stream": ",".join(streams)}
    options |= {"minPartitions": str(value)} if args.over == "partitions" else {"minPartitions": "2"}
    return spark.read.format("millstream").options(**options).load(), entries // keys * keys


def tasks(frame: DataFrame) -> str:
    """Return the number of a read's tasks as text."""
    return str(frame.rdd.getNumPartitions())


def keys(args: argparse.Namespace) -> None:
    """Measure the processor time of a micro-batch over many streams, without Spark: at the driver, and in the tasks."""
    rows = []
    for streams in (1, 64, 1000):
        with private_server(args.server) as url:
            for number in range(streams):
                fill(url, max(args.entries // streams, 1), stream=f"s{number}")
            options = {"url": url, "streamPattern": "*", "startingOffsets": "earliest"}
            taken = [one_batch(options) for _ in range(args.rounds + 1)][1:]
        planned, read, tasks, entries = (list(column) for column in zip(*taken, strict=True))
        rows.append([f"{streams:,}", f"{tasks[0]}", f"{entries[0]:,}", middle(planned, ".1f"), middle(read, ".1f")])
    table(["streams", "tasks", "rows", "planning, ms", "reading, ms"], rows)


def one_batch(options: dict[str, str]) -> tuple[float, float, int, int]:
    """Return the milliseconds to plan a batch and to read its tasks, with the numbers of tasks and rows."""
    source = MillstreamSource(dict(options))
    reader = source.streamReader(source.schema())
    start, begun = reader.initialOffset(), time.process_time()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    planned = time.process_time()
    entries = sum(batch.num_rows for part in parts for batch in reader.read(part))
    read = time.process_time()
    reader.stop()
    return (planned - begun) * 1000, (read - planned) * 1000, len(parts), entries


def main() -> None:
    """Run the chosen measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = {"read": read, "batches": batches, "cold": cold, "curve": curve, "keys": keys}
    subs = parser.add_subparsers(dest="mode", required=True)
    for name, run in modes.items():
        sub = subs.add_parser(name, help=run.__doc__)
        sub.set_defaults(run=run)
        sub.add_argument("--rounds", type=at_least_one, default=3)
        sub.add_argument("--server", choices=SERVERS, default="redis", help="which server all cases use")
        if name in ("read", "curve", "keys"):
            sub.add_argument("--entries", type=at_least_one, default=300_000)
        if name == "read":
            sub.add_argument("--to", choices=["noop", "parquet"], default="noop")
        if name == "batches":
            sub.add_argument("--batches", type=int, default=60, help="of each query, 100 at most")
        if name == "curve":
            sub.add_argument("over", choices=sorted(CURVES))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
