"""Drivers killed at every point of a batch and restarted from the checkpoint: each entry is there once."""

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
"""Points at which ``killed_driver.py`` can be ended, by sink."""

UNCOMMITTED = ("offsets", "tasks", "before commit", "between pieces", "after commit")


def drive(server: ServerProcess, folder: Path, *sinks: str, cap: int, at: Mapping[str, tuple[str, int]]) -> int:
    """Run the driver once and return its exit code, which is negative if it was killed.

    Args:
        server: Server of the source and of the stream sink.
        folder: Folder with one folder for each sink.
        sinks: ``stream``, ``parquet``; a query for each.
        cap: Entries per batch.
        at: Point of death and first batch for it, by sink.
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
    """Run a driver that must be killed with each query at its point, and return the batches it ended in."""
    code = drive(server, folder, *at, cap=cap, at=at)
    assert code == -signal.SIGKILL, (folder / "driver.log").read_text(errors="replace")[-3000:]
    return {sink: _batch_at(folder / sink, point, sink) for sink, (point, _) in at.items()}


def _batch_at(place: Path, point: str, sink: str) -> int:
    """Return the number of the query's batch at a point, from its checkpoint and files."""
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
    """Return the field ``n`` of the entries that the sink has added, sorted."""
    return sorted(int(fields["n"]) for _, fields in client.xrange("out"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """Kill one driver with both queries in the middle of their second batches; return the server and the folder.

    The stream sink is killed between two pieces of its commit, and the file sink when all files are written and none is
    named. The campaign below includes a second kill at the same points.
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
    """Run the same query with the real source and sink from the checkpoint to the end, and return its id."""
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
    """If Spark's driver is killed amid the stream sink's commit, a restart adds each of 10,000 entries once."""
    server, folder = killed
    query = run_to_end(spark, server, folder / "stream", "millstream", url=server.url, stream="out")
    with server.client(decode_responses=True) as client:
        assert numbers(client) == list(range(1, 10_001))
        assert client.keys("millstream:*") == [f"millstream:sink:{query}"]


@pytest.mark.timeout(900)
def test_a_killed_driver_of_the_file_sink_writes_each_row_once(
    killed: tuple[ServerProcess, Path], spark: "SparkSession"
) -> None:
    """If Spark's driver is killed before its written files are committed, a restart writes each row once."""
    server, folder = killed
    run_to_end(spark, server, folder / "parquet", "parquet", path=str(folder / "parquet" / "out"))
    with server.client(decode_responses=True) as client:
        assert _written(client, folder, "parquet") == list(range(1, 10_001))


def _rows_of_files(folder: Path) -> int:
    """Count the rows of all complete files, committed or not."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (folder / "parquet" / "out").glob("*.parquet"))


LIVES = [("stream", point) for point in SINK_POINTS] + [("parquet", point) for point in FILE_POINTS]


def killed_twice_at_a_point(seed: int) -> int:
    """Kill a driver at one point in two of its batches, restart it from the checkpoint, and run it to the end."""
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
    """Return the numbers in the sink, with duplicates. Files count only if Spark's log names them."""
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
    """If Spark's driver is killed at each point of two batches, each of 100,000 entries is in its sinks once."""
    run("spark-kills", killed_twice_at_a_point, range(len(LIVES)), unit="entries")
