"""Drivers killed at every point of a batch: SIGKILL, restart from the checkpoint, and each entry is there once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
import redis

from support.campaign import LIMIT, run
from support.servers import ServerProcess, redis_server
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

DRIVER = Path(__file__).with_name("killed_driver.py")
SINK_POINTS = ("offsets", "tasks", "before commit", "between pieces", "after commit", "before publishing", "publishing")
FILE_POINTS = ("offsets", "tasks", "before publishing", "publishing", "before commit", "after commit")
"""The points, by sink, that ``killed_driver.py`` can be ended at."""

UNCOMMITTED = ("offsets", "tasks", "before commit", "between pieces", "after commit")


def drive(server: ServerProcess, folder: Path, *sinks: str, cap: int, at: Mapping[str, tuple[str, int]]) -> int:
    """One life of the driver; returns its exit code, which is negative if it was killed.

    Args:
        server: the source, and the target of the stream sink.
        folder: its places, one for each sink.
        sinks: ``stream``, ``parquet``; a query for each.
        cap: entries in a batch.
        at: the point of its death by sink, and the first batch for it.
    """
    for sink in sinks:
        (folder / sink).mkdir(exist_ok=True)
        (folder / sink / "reached").unlink(missing_ok=True)
    words = [sys.executable, str(DRIVER), server.url, str(folder), str(cap), "local[2]", *sinks]
    env = os.environ | {"KILL_AT": json.dumps(at)}
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )
        try:
            return driver.wait(timeout=300)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def killed_at(server: ServerProcess, folder: Path, *, cap: int, **at: tuple[str, int]) -> dict[str, int]:
    """A life of the driver that ends with each query at a point, which is proved; returns the batches it ended in."""
    code = drive(server, folder, *at, cap=cap, at=at)
    assert code == -signal.SIGKILL, (folder / "driver.log").read_text(errors="replace")[-3000:]
    return {sink: _batch_at(folder / sink, point, sink) for sink, (point, _) in at.items()}


def _batch_at(place: Path, point: str, sink: str) -> int:
    """The number of the batch of a query at a point, by its checkpoint and its files."""
    reached = json.loads((place / "reached").read_text())
    assert reached["point"] == point
    found: int = reached["batch"]
    assert (place / "checkpoint" / "offsets" / str(found)).exists()
    assert (place / "checkpoint" / "commits" / str(found)).exists() == (point not in UNCOMMITTED)
    if sink == "parquet":
        named = (place / "out" / "_spark_metadata" / str(found)).exists()
        assert named == (point in ("after commit", "before publishing", "publishing"))
    return found


def numbers(client: redis.Redis) -> list[int]:
    """The field n of what the sink has added, in order of the numbers."""
    return sorted(int(fields["n"]) for _, fields in client.xrange("out"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A life of one driver with both queries, that ends in the midst of their second batches: the server, their places.

    The stream sink is killed between two pieces of its commit; the file sink when all files are written and none is
    named. A second life ends after these points in the campaign below.
    """
    folder = tmp_path_factory.mktemp("killed")
    with redis_server(folder / "redis") as server, server.client(decode_responses=True) as client:
        fill(client, "a", 6000)
        fill(client, "b", 4000, first=6001)
        points = {"stream": ("between pieces", 1), "parquet": ("before commit", 1)}
        killed_at(server, folder, cap=4000, **points)
        assert 4000 < len(numbers(client)) < 8000
        assert len(_written(client, folder, "parquet")) == 4000
        assert _rows_of_files(folder) == 8000, "some task had not finished its file"
        yield server, folder


def run_to_end(spark: "SparkSession", server: ServerProcess, place: Path, kind: str, **sink: str) -> str:
    """The same query with the real source and sink, from the checkpoint to the end; its id."""
    options = {"url": server.url, "stream": "a,b", "group": place.name, "maxEntriesPerTrigger": "4000"}
    rest = spark.readStream.format("millstream").options(**options).load().selectExpr("fields['n'] n")
    writer = rest.writeStream.options(**sink).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.format(kind).trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


@pytest.mark.timeout(900)
def test_a_killed_driver_of_the_sink_adds_each_row_once(
    killed: tuple[ServerProcess, Path], spark: "SparkSession"
) -> None:
    """Killed between two pieces of its commit, and run again from its checkpoint: 10,000 entries, each once."""
    server, folder = killed
    query = run_to_end(spark, server, folder / "stream", "millstream", url=server.url, stream="out")
    with server.client(decode_responses=True) as client:
        assert numbers(client) == list(range(1, 10_001))
        assert client.keys("millstream:*") == [f"millstream:sink:{query}"]


@pytest.mark.timeout(900)
def test_a_killed_driver_of_the_file_sink_writes_each_row_once(
    killed: tuple[ServerProcess, Path], spark: "SparkSession"
) -> None:
    """Killed when all files are written and none is named, and run again from its checkpoint."""
    server, folder = killed
    run_to_end(spark, server, folder / "parquet", "parquet", path=str(folder / "parquet" / "out"))
    with server.client(decode_responses=True) as client:
        assert _written(client, folder, "parquet") == list(range(1, 10_001))


def _rows_of_files(folder: Path) -> int:
    """Rows of all files that have their end, whether Spark's log names them or not."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (folder / "parquet" / "out").glob("*.parquet"))


LIVES = [("stream", point) for point in SINK_POINTS] + [("parquet", point) for point in FILE_POINTS]


def killed_twice_at_a_point(seed: int) -> int:
    """A driver killed at one point of two of its batches, restarted from the checkpoint, run to the end."""
    sink, point = LIVES[seed % len(LIVES)]
    with (
        tempfile.TemporaryDirectory() as made,
        redis_server(Path(made, "redis")) as server,
        server.client(decode_responses=True) as client,
    ):
        folder = Path(made)
        fill(client, "a", 60_000)
        fill(client, "b", 40_000, first=60_001)
        batches = killed_at(server, folder, cap=20_000, **{sink: (point, 1)})
        if (sink, point) == ("stream", "tasks"):
            assert client.keys("millstream:{out}:staged:*"), "no row was staged when it was killed"
        killed_at(server, folder, cap=20_000, **{sink: (point, batches[sink] + 1)})
        assert drive(server, folder, sink, cap=20_000, at={}) == 0
        assert _written(client, folder, sink) == list(range(1, 100_001))
    return 100_000


def _written(client: redis.Redis, folder: Path, sink: str) -> list[int]:
    """The numbers in the sink, duplicates and all; of files those that Spark's log of them names."""
    if sink == "stream":
        return numbers(client)
    import pyarrow.parquet as pq

    found = []
    for log in sorted((folder / "parquet" / "out" / "_spark_metadata").iterdir()):
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            path = unquote(urlsplit(json.loads(line)["path"]).path)
            found += pq.read_table(path).column("n").to_pylist()
    return sorted(map(int, found))


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_drivers_killed_at_every_point() -> None:
    """Stream sink and Parquet, each point in two batches, 100,000 entries: each is there once."""
    run("spark-kills", killed_twice_at_a_point, range(len(LIVES)), unit="entries")
