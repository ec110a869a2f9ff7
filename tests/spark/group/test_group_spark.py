"""Group mode in Spark: the calls come in the order that the driver of ``test_group.py`` imitates."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from millstream.failpoints import POINTS
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

RunToEnd = Callable[..., list[dict[str, Any]]]
Written = Callable[[], list[str]]

GROUP = {"stream": "s", "mode": "group", "group": "g", "queryName": "lake", "maxEntriesPerTrigger": "400"}


def prepare(client: redis.Redis) -> list[str]:
    """Create a group in which a worker holds entries, and return the ids for the query."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 500)
    client.xreadgroup("g", "worker", {"s": ">"}, count=100)
    return ids[100:] + fill(client, "s", 800, first=1001)


def test_a_query_of_a_group_ends_with_everything_acknowledged(
    real_redis: ServerProcess, client: redis.Redis, run_to_end: RunToEnd, written: Written
) -> None:
    """A query in group mode reads each entry once, acknowledges it, and leaves other consumers' entries."""
    ids = prepare(client)
    progress = run_to_end(real_redis.url, **GROUP)
    assert written() == ids
    assert [batch["numInputRows"] for batch in progress] == [400, 400, 400]
    assert json.loads(progress[0]["sources"][0]["latestOffset"]) == {"taken": 0, "waiting": {"s": 1200}}
    assert {row["name"]: row["pending"] for row in client.xinfo_consumers("s", "g")} == {"worker": 100}
    more = fill(client, "s", 10, first=3001)
    run_to_end(real_redis.url, **GROUP)
    assert written() == ids + more


DRIVER = """
import sys

import millstream.spark

url, folder, options = sys.argv[1], sys.argv[2], dict(word.split("=") for word in sys.argv[3:])
spark = millstream.spark.session("killed", quick=True, spark__log__level="OFF")
source = spark.readStream.format("millstream").option("url", url).options(**options).load()
query = (
    source.writeStream.format("parquet").option("path", folder + "/out")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
"""

KILLS = ["planning:2", "claiming:2", "claimed:2", "logged:2", "replaying:2", "acking:1", "acked:1"]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", KILLS)
def test_a_driver_killed_at_each_step_loses_and_doubles_nothing(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    run_to_end: RunToEnd,
    written: Written,
    point: str,
) -> None:
    """If the driver of a query in group mode is killed at any step, its sink has each entry once."""
    assert point.partition(":")[0] in POINTS
    assert spark is not None
    ids = prepare(client)
    mark, log = tmp_path / "reached", tmp_path / "driver.log"
    words = [sys.executable, "-c", DRIVER, real_redis.url, str(tmp_path), *(f"{k}={v}" for k, v in GROUP.items())]
    with log.open("wb") as out:
        driver = subprocess.Popen(
            words, stdout=out, stderr=out, start_new_session=True,
            env=os.environ | {"MILLSTREAM_FAILPOINTS": f"{point}={mark}"},
        )  # fmt: skip

    def reached() -> bool:
        assert driver.poll() is None, log.read_text(errors="replace")[-3000:]
        return mark.exists()

    try:
        eventually(reached, 240, what=f"the driver is at {point}")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(timeout=30)
        if mark.exists():
            os.kill(int(mark.read_text()), signal.SIGKILL)
    run_to_end(real_redis.url, **GROUP)
    assert written() == ids
    assert {row["name"]: row["pending"] for row in client.xinfo_consumers("s", "g")} == {"worker": 100}
