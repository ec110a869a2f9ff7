"""Drivers killed at every point of a batch: SIGKILL, restart from the checkpoint, and each entry is there once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
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
"""Where ``killed_driver.py`` can be ended, by sink."""

UNCOMMITTED = ("offsets", "tasks", "before commit", "between pieces", "after commit")


def drive(server: ServerProcess, folder: Path, *, sink: str, cap: int, point: str = "", batch: int = 0) -> int:
    """One life of the driver; returns its exit code, which is negative if it was killed."""
    env = os.environ | {"KILL_POINT": point, "KILL_BATCH": str(batch)}
    (folder / "reached").unlink(missing_ok=True)
    words = [sys.executable, str(DRIVER), server.url, str(folder), sink, str(cap), "local[2]"]
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


def killed_at(server: ServerProcess, folder: Path, point: str, *, sink: str, cap: int, batch: int) -> int:
    """A life of the driver that ends at a point, which is proved; returns the batch in which it ended."""
    code = drive(server, folder, sink=sink, cap=cap, point=point, batch=batch)
    assert code == -signal.SIGKILL, (folder / "driver.log").read_text(errors="replace")[-3000:]
    reached = json.loads((folder / "reached").read_text())
    assert reached["point"] == point
    found: int = reached["batch"]
    assert (folder / "checkpoint" / "offsets" / str(found)).exists()
    assert (folder / "checkpoint" / "commits" / str(found)).exists() == (point not in UNCOMMITTED)
    if sink == "parquet":
        named = (folder / "out" / "_spark_metadata" / str(found)).exists()
        assert named == (point in ("after commit", "before publishing", "publishing"))
    return found


def numbers(client: redis.Redis) -> list[int]:
    """The field n of what the sink has added, in order of the numbers."""
    return sorted(int(fields["n"]) for _, fields in client.xrange("out"))


@pytest.mark.timeout(900)
def test_a_killed_driver_of_the_sink_adds_each_row_once(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, spark: "SparkSession"
) -> None:
    """Killed between two pieces of its commit, then after it, and restarted each time: 10,000 entries, each once."""
    fill(client, "a", 6000)
    fill(client, "b", 4000, first=6001)
    batch = killed_at(real_redis, tmp_path, "between pieces", sink="stream", cap=4000, batch=1)
    assert 4000 < len(numbers(client)) < 8000
    killed_at(real_redis, tmp_path, "after commit", sink="stream", cap=4000, batch=batch)
    assert len(numbers(client)) == 8000
    options = {"url": real_redis.url, "stream": "a,b", "group": "lake", "maxEntriesPerTrigger": "4000"}
    rest = spark.readStream.format("millstream").options(**options).load().selectExpr("fields['n'] n")
    query = (
        rest.writeStream.format("millstream").option("url", real_redis.url).option("stream", "out")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert numbers(client) == list(range(1, 10_001))
    assert client.keys("millstream:*") == [f"millstream:sink:{query.id}"]


@pytest.mark.timeout(900)
def test_a_killed_driver_of_the_file_sink_writes_each_row_once(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, spark: "SparkSession"
) -> None:
    """Killed when all files are written and none is named, then when all are named and the batch is not committed."""
    fill(client, "a", 6000)
    fill(client, "b", 4000, first=6001)
    batch = killed_at(real_redis, tmp_path, "before commit", sink="parquet", cap=4000, batch=1)
    assert len(_written(client, tmp_path, "parquet")) == 4000
    assert _rows_of_files(tmp_path) == 8000, "some task had not finished its file"
    killed_at(real_redis, tmp_path, "after commit", sink="parquet", cap=4000, batch=batch)
    assert len(_written(client, tmp_path, "parquet")) == 8000
    options = {"url": real_redis.url, "stream": "a,b", "group": "lake", "maxEntriesPerTrigger": "4000"}
    rest = spark.readStream.format("millstream").options(**options).load().selectExpr("fields['n'] n")
    query = (
        rest.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert _written(client, tmp_path, "parquet") == list(range(1, 10_001))


def _rows_of_files(folder: Path) -> int:
    """Rows of all files that have their end, whether Spark's log names them or not."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (folder / "out").glob("*.parquet"))


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
        batch = killed_at(server, folder, point, sink=sink, cap=20_000, batch=1)
        if (sink, point) == ("stream", "tasks"):
            assert client.keys("millstream:{out}:staged:*"), "no row was staged when it was killed"
        killed_at(server, folder, point, sink=sink, cap=20_000, batch=batch + 1)
        assert drive(server, folder, sink=sink, cap=20_000) == 0
        assert _written(client, folder, sink) == list(range(1, 100_001))
    return 100_000


def _written(client: redis.Redis, folder: Path, sink: str) -> list[int]:
    """The numbers in the sink, duplicates and all; of files those that Spark's log of them names."""
    if sink == "stream":
        return numbers(client)
    import pyarrow.parquet as pq

    found = []
    for log in sorted((folder / "out" / "_spark_metadata").iterdir()):
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
