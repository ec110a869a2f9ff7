"""Partitioned streams in Spark: rows go to the partition of their key, each entry once despite kills."""

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner
from pyspark.errors import PySparkException

from millstream.cli.main import main
from millstream.client.partitions.layout import HIGHEST_ID, descriptor_key, key_bytes
from millstream.errors import NotFoundError, UsageError
from support.partitioned import partition as make_partitioned
from support.partitioned import second_generation
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

Reading = Callable[..., "DataFrame"]

KEYS: dict[str, list[Any]] = {
    "string": [f"{'ü🙂c'[at % 3]}{at}" for at in range(300)] + [""],
    "bigint": [*range(-200, 200), 2**63 - 1, -(2**63)],
    "int": [-1, 0, 7],
    "binary": [bytes([at, 255, 0]) for at in range(256)],
    "double": [at / 7 - 3 for at in range(40)] + [0.0, -0.0, 1.0, 1e16, 1e-05, 123456789012.5, float("inf")],
}
"""More than a thousand keys by Spark type."""


@pytest.mark.parametrize("kind", KEYS)
def test_rows_go_where_publish_puts_them(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", kind: str
) -> None:
    """Spark puts a row into the same partition as ``publish()``, for each type of key."""
    from millstream.spark import partition

    make_partitioned(real_redis.url, "orders", 16)
    frame = spark.createDataFrame([(key,) for key in KEYS[kind]], f"key {kind}")
    rows = frame.select("key", partition("orders", "key", real_redis.url).alias("stream")).collect()
    expected = [f"orders{{{zlib.crc32(key_bytes(key)) % 16}}}" for key in KEYS[kind]]
    assert [row.stream for row in rows] == expected


def test_a_key_that_publish_would_refuse_is_an_error(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession"
) -> None:
    """A null key, a key type without text and a stream that is not partitioned are errors with a correction."""
    from millstream.spark import partition

    make_partitioned(real_redis.url, "orders", 4)
    frame = spark.sql("select if(id > 0, id, null) n, id > 0 flag from range(2)")
    for column, says in (("n", "the key of a row is null"), ("flag", "its keys are boolean, not text, bytes or")):
        with pytest.raises(PySparkException, match=rf"partition\('orders'\) is invalid: {says}"):
            frame.select(partition("orders", column, real_redis.url)).collect()
    with pytest.raises(NotFoundError, match="'others' is not partitioned on"):
        partition("others", "n", real_redis.url)


def test_a_sealed_partition_ends_the_write_before_it_adds_anything(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession"
) -> None:
    """A sealed partition ends the write before any row is added. After a restart, rows go to the new partitions."""
    from millstream.spark import partition

    make_partitioned(real_redis.url, "orders", 2)

    def rows() -> "DataFrame":
        return spark.sql("select id n from range(20)").select(
            partition("orders", "n", real_redis.url).alias("stream"), "n"
        )

    def write(frame: "DataFrame") -> None:
        frame.write.format("millstream").mode("append").option("url", real_redis.url).save()

    write(rows())
    added = [client.xlen(f"orders{{{at}}}") for at in range(2)]
    assert sum(added) == 20
    assert min(added) > 0
    before = rows()
    client.execute_command("XSETID", "orders{1}", HIGHEST_ID)
    with pytest.raises(PySparkException, match=r"stream 'orders\{1\}' .* is sealed, .* Start the query again"):
        write(before)
    second_generation(client, "orders", 3, sealed=False)
    with pytest.raises(UsageError, match="the number of partitions of 'orders' is being changed"):
        rows()
    client.delete(descriptor_key("orders"), "orders")
    make_partitioned(real_redis.url, "orders", 2)
    second_generation(client, "orders", 3)
    write(rows())
    assert [client.xlen(f"orders{{{at}}}") for at in range(2)] == added
    assert sum(client.xlen(f"orders~2{{{at}}}") for at in range(3)) == 20


COPY = """
import sys

import millstream.spark
from millstream.spark import partition


def copy(spark, url, folder):
    given = {"partitionedStream": "orders", "startingOffsets": "earliest", "maxEntriesPerTrigger": "1500", "url": url}
    source = spark.readStream.format("millstream").options(**given).load().selectExpr("fields['n'] n")
    rows = source.select(partition("copy", "n", url).alias("stream"), "n")
    checkpoint = {"checkpointLocation": folder, "url": url}
    return rows.writeStream.format("millstream").options(**checkpoint)


if __name__ == "__main__":
    spark = millstream.spark.session("killed", quick=True, master="local[2]", spark__log__level="OFF")
    copy(spark, *sys.argv[1:]).start().awaitTermination()
"""


@pytest.mark.timeout(300)
def test_a_killed_copy_has_each_entry_once(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """A query between partitioned streams that is killed during a new generation's batch copies each entry once.

    It restarts from its checkpoint with more entries. Each entry is in the partition of its key.
    """
    make_partitioned(real_redis.url, "orders", 4)
    make_partitioned(real_redis.url, "copy", 3)
    for at in range(4):
        fill(client, f"orders{{{at}}}", 2000, first=1 + 2000 * at)
    checkpoint = tmp_path / "checkpoint"
    words = [sys.executable, "-c", COPY, real_redis.url, str(checkpoint)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )

    def under_way(least: int) -> Path | None:
        assert driver.poll() is None, (tmp_path / "driver.log").read_text(errors="replace")[-3000:]
        logs = [path for path in (checkpoint / "offsets").glob("*") if path.name.isdigit() and int(path.name) >= least]
        newest = max(logs, key=lambda path: int(path.name), default=None)
        return None if newest is None or (checkpoint / "commits" / newest.name).exists() else newest

    try:
        eventually(lambda: under_way(1), 120, what="a second batch begins")
        second_generation(client, "orders", 2)
        fill(client, "orders~2{1}", 3000, first=8001)
        found = eventually(
            lambda: (batch := under_way(1)) and "orders~2{1}" in batch.read_text() and batch,
            120,
            what="a batch with entries of the new generation begins",
        )
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(timeout=30)
    assert not (checkpoint / "commits" / found.name).exists(), "the kill came too late to prove anything"
    fill(client, "orders~2{0}", 1000, first=11_001)
    scope: dict[str, Any] = {"__name__": "copy"}
    exec(COPY, scope)
    scope["copy"](spark, real_redis.url, str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    copied = {at: [int(fields["n"]) for _, fields in client.xrange(f"copy{{{at}}}")] for at in range(3)}
    assert sorted(number for each in copied.values() for number in each) == list(range(1, 12_001))
    assert all(zlib.crc32(str(number).encode()) % 3 == at for at, each in copied.items() for number in each)


def test_an_archive_has_all_partitions_as_one_table(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", reading: Reading, tmp_path: Path
) -> None:
    """An archive of a partitioned stream is one table.

    Each run reads the current partitions, and sealed ones to their end.
    """
    root = str(tmp_path / "a")
    words = ["archive", real_redis.url, "--partitioned", "orders", "--to", root, "--once", "--partition", "month"]
    make_partitioned(real_redis.url, "orders", 2)
    fill(client, "orders{0}", 300)
    fill(client, "orders-x{0}", 10)
    assert CliRunner().invoke(main, words).exit_code == 0
    fill(client, "orders{1}", 200, first=301)
    for at in range(2):
        client.execute_command("XSETID", f"orders{{{at}}}", HIGHEST_ID)
    second_generation(client, "orders", 1)
    fill(client, "orders~2{0}", 100, first=501)
    done = CliRunner().invoke(main, [*words, "-o", "json"])
    assert done.exit_code == 0, done.output
    rows = {row["stream"]: row for row in json.loads(done.stdout)}
    counts = {stream: (row["archived"], row["total"], row["left"]) for stream, row in rows.items()}
    assert counts == {"orders{0}": (0, 300, 0), "orders{1}": (200, 200, 0), "orders~2{0}": (100, 100, 0)}
    again = CliRunner().invoke(main, [*words, "-o", "json"])
    assert [row["archived"] for row in json.loads(again.stdout)] == [0, 0, 0]
    assert spark.read.parquet(root).groupBy("stream").count().count() == 3
    fill(client, "orders~2{0}", 50, first=601)
    whole = reading(real_redis.url, partitionedStream="orders", archive=root)
    assert {(row.stream, row["count"]) for row in whole.groupBy("stream").count().collect()} == {
        ("orders{0}", 300),
        ("orders{1}", 200),
        ("orders~2{0}", 150),
    }
    refused = CliRunner().invoke(main, [*words, "orders"])
    assert (refused.exit_code, "Give exactly one of" in refused.stderr) == (2, True)
