"""A backlog: full batches within the cap, tasks of equal size, and a driver whose memory stays constant."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from support import campaign
from support.servers import ServerProcess, redis_server

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

FILL = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  redis.call('XADD', KEYS[1], math.floor(number / tonumber(ARGV[3])) .. '-' .. number, 'n', number)
end
"""
"""Script that adds numbered entries, with a given number of them per millisecond."""

PARTS = 4
SHARES = "part long, rows long, total long"


def backlog(client: redis.Redis, stream: str, first: int, last: int, together: int) -> None:
    """Fill a stream by a script, since five million single commands would take longer than the test."""
    for at in range(first, last + 1, 10_000):
        client.eval(FILL, 1, stream, at, min(at + 9999, last), together)


def counting() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Return a function that reduces a task's input to one row, and which Spark pickles without this module."""

    def shares(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        found = pa.chunked_array([batch.column("n") for batch in batches], pa.int64())
        if len(found):
            row = [context.partitionId(), len(found), pc.sum(found).as_py()]
            arrays = [pa.array([value], pa.int64()) for value in row]
            yield pa.RecordBatch.from_arrays(arrays, names=["part", "rows", "total"])

    return shares


@dataclass
class Read:
    """The result of a query over a backlog.

    Attributes:
        sizes: Rows of each batch, in order.
        tasks: Rows of each task, by batch.
        total: Sum of all numbers that were read.
        memory: Bytes of the planning process, the driver's Python and Java's heap, by the batch after which they
            were measured.
    """

    sizes: list[int]
    tasks: list[list[int]]
    total: int
    memory: dict[int, tuple[int, int, int]]


def read(
    spark: "SparkSession", url: str, folder: Path, looks: Callable[[int], bool] = lambda _: False, **options: str
) -> Read:
    """Read everything batch by batch. A function of the batch's number decides if memory is measured after it."""
    source = spark.readStream.format("millstream").option("url", url).option("startingOffsets", "earliest")
    memory: dict[int, tuple[int, int, int]] = {}
    batches: dict[int, list[Any]] = {}

    def count(frame: "DataFrame", number: int) -> None:
        batches[number] = frame.mapInArrow(counting(), SHARES).collect()
        if looks(number):
            memory[number] = used(spark)

    query = (
        source.options(**options).schema("n long").load().writeStream.foreachBatch(count)
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    tasks = [[row.rows for row in batches[number]] for number in sorted(batches)]
    total = sum(row.total for rows in batches.values() for row in rows)
    return Read([sum(rows) for rows in tasks], tasks, total, memory)


def used(spark: "SparkSession") -> tuple[int, int, int]:
    """Return the memory of the source's process, of this process, and of Java."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public name for it
    assert gateway is not None
    runtime = gateway.jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    return resident(planning(gateway.proc.pid)), resident("self"), heap


def planning(java: int) -> str:
    """Return the process id of the source's planner."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        if b"python_streaming_source_runner" in words and parent == java:
            return path.name
    raise LookupError("Spark plans somewhere else: adapt the test")


def resident(pid: str) -> int:
    """Return the resident memory of a process in bytes."""
    lines = Path("/proc", pid, "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def test_batches_of_a_backlog_are_full_and_shares_alike(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """On a backlog of two streams with gaps, batches are within the cap, and all but the last 90 % full."""
    backlog(client, "a", 1, 9000, together=3)
    backlog(client, "b", 1, 1000, together=100)
    client.eval(
        "for n = 100, 199 do redis.call('XDEL', KEYS[1], n // 3 .. '-' .. n) end".replace(
            "n // 3", "math.floor(n / 3)"
        ),
        1,
        "a",
    )
    found = read(spark, real_redis.url, tmp_path, stream="a,b", maxEntriesPerTrigger="2000", minPartitions=str(PARTS))
    assert found.total == 9000 * 9001 // 2 + 1000 * 1001 // 2 - sum(range(100, 200))
    full(found.sizes, 2000)
    assert len(found.sizes) == 5
    assert share(found.tasks) < 1.15  # of the first batch's tasks one misses the deleted entries


def full(sizes: list[int], cap: int) -> None:
    """Assert that all batches are within the cap, and all but the last at least 90 % full."""
    assert max(sizes) <= cap
    assert min(sizes[:-1]) >= 0.9 * cap


def share(tasks: list[list[int]]) -> float:
    """Return the largest task of any batch but the last, as a multiple of the mean task."""
    return max(PARTS * max(rows) / sum(rows) for rows in tasks[:-1])


LAYOUTS: list[dict[str, tuple[int, int]]] = [
    {"s": (5_000_000, 7)},
    {"busy": (4_000_000, 50), "quiet": (900_000, 1), "small": (100_000, 1000)},
]
"""Number of entries and entries per millisecond, by stream."""

CAP = 250_000
MB = 1 << 20


def five_million(seed: int) -> int:
    """Run a query over a backlog of one layout and check totals, batch sizes, balance and memory."""
    from millstream.spark import session

    streams = LAYOUTS[seed]
    spark = session("tests", quick=True, spark__log__level="ERROR")
    with tempfile.TemporaryDirectory() as made, redis_server(Path(made, "redis"), "--maxmemory", "2gb") as server:
        with server.client() as client:
            for stream, (count, together) in streams.items():
                backlog(client, stream, 1, count, together)
        begun = time.monotonic()
        found = read(
            spark, server.url, Path(made), lambda number: number % 5 == 4,
            stream=",".join(streams), maxEntriesPerTrigger=str(CAP), minPartitions=str(PARTS),
        )  # fmt: skip
        seconds = time.monotonic() - begun
    rows = sum(found.sizes)
    assert rows == sum(count for count, _ in streams.values())
    assert found.total == sum(count * (count + 1) // 2 for count, _ in streams.values())
    full(found.sizes, CAP)
    largest = share(found.tasks)
    memory = "; ".join(f"{at}: {' '.join(f'{b / MB:.1f}' for b in found.memory[at])}" for at in found.memory)
    campaign.show(
        "spark-backlog",
        f"{rows:,} rows in {len(found.sizes)} batches and {seconds:.0f} s; batches of {min(found.sizes[:-1]):,} to "
        f"{max(found.sizes):,} rows; largest task over an equal share {largest:.3f}; MB after batches (planning, "
        f"driver, Java's heap): {memory}",
    )
    assert largest < 1.05
    first, *_, last = (found.memory[at] for at in sorted(found.memory))
    for before, after in zip(first, last, strict=True):
        assert after - before < 10 * MB
    return rows


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.usefixtures("spark")
def test_five_million_entries_wait() -> None:
    """On a backlog of five million entries, batches are full, tasks balanced, and the driver's memory constant."""
    campaign.run("spark-backlog", five_million, range(len(LAYOUTS)), unit="entries")
