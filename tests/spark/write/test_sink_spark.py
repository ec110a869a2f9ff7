"""The sink in Spark: values in both directions, repeated batches, failed jobs, and readable errors."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

Reading = Callable[..., "DataFrame"]


def write(frame: "DataFrame", url: str, **options: str) -> None:
    """Write a batch."""
    frame.write.format("millstream").mode("append").option("url", url).options(**options).save()


@pytest.fixture
def copying(spark: "SparkSession", tmp_path: Path) -> Callable[..., "StreamingQuery"]:
    """``copying(url, source, **options)``: run a query from one stream to another to the end of its entries."""

    def copy(url: str, source: str, **options: str) -> "StreamingQuery":
        frame = (
            spark.readStream.format("millstream").option("url", url).option("stream", source)
            .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", "400").load()
        )  # fmt: skip
        query = (
            frame.drop("id").writeStream.format("millstream").queryName("copy").option("url", url).options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return query

    return copy


def last_line(error: BaseException) -> str:
    """Return the last line of an error before Spark's SQLSTATE."""
    lines = [line for line in str(error).splitlines() if line.strip() and "SQLSTATE" not in line]
    return lines[-1]


VALUES = """
    cast(id as string) text, cast(id as tinyint) small, id big, id / 7 number, cast(id / 7 as float) single,
    cast(id / 7 as decimal(20,6)) exact, id % 2 = 0 flag, date_add(date'2020-02-28', cast(id as int)) day,
    timestamp'2020-01-01 00:00:00.000001' + make_dt_interval(cast(id as int)) moment,
    cast('2020-01-01 10:00:00' as timestamp_ntz) clock, cast(concat('x', id) as binary) raw,
    if(id % 3 = 0, null, named_struct('a', array(id, null), 'b', map('k', id / 7), 'c', 'é')) deep,
    if(id % 2 = 0, null, 'odd') maybe
"""


@pytest.mark.either_server
def test_every_type_comes_back(
    both: ServerProcess, both_client: redis.Redis, spark: "SparkSession", reading: Reading
) -> None:
    """Rows of every type that the sink wrote are read back with the same schema. A null is left out."""
    frame = spark.sql(f"select {VALUES} from range(1, 120, 1, 3)")
    write(frame, both.url, stream="out")
    schema = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in frame.schema)
    found = reading(both.url, schema, stream="out").collect()
    assert sorted(found, key=lambda row: row.big) == frame.collect()
    first = dict(both_client.xrange("out", count=1)[0][1])
    assert "maybe" in first
    assert "maybe" not in dict(both_client.xrange("out", count=2)[1][1])
    assert both_client.keys() == ["out"]


def test_a_query_copies_each_entry_once_and_a_repeated_batch_adds_nothing(
    both: ServerProcess, both_client: redis.Redis, copying: Callable[..., "StreamingQuery"], tmp_path: Path
) -> None:
    """A query into a stream copies each entry once, and a batch that runs again adds nothing.

    The last batch's commit is removed from the checkpoint, as if the driver had died before it. This also checks that
    the commit record has the query's id.
    """
    fill(both_client, "s", 700)
    query = copying(both.url, "s", stream="out")
    assert [int(fields["n"]) for _, fields in both_client.xrange("out")] == list(range(1, 701))
    assert both_client.keys("millstream:*") == [f"millstream:sink:{query.id}"]
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())
    record = json.loads(both_client.get(f"millstream:sink:{query.id}"))
    assert isinstance(record.pop("range"), str)
    assert record == {"version": last, "parts": None, "rows": 300}
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    fill(both_client, "s", 7, first=5000)
    again = copying(both.url, "s", stream="out")
    assert again.id == query.id
    assert last in [batch["batchId"] for batch in again.recentProgress]
    assert [int(fields["n"]) for _, fields in both_client.xrange("out")] == [*range(1, 701), *range(5000, 5007)]


def test_a_batch_cut_anew_with_as_many_rows_is_refused(
    both: ServerProcess, both_client: redis.Redis, copying: Callable[..., "StreamingQuery"], tmp_path: Path
) -> None:
    """If the checkpoint lost its newest files and the stream its oldest entries, the changed batch is refused."""
    fill(both_client, "s", 300)
    query = copying(both.url, "s", stream="out", checkpointLocation=f"file://{tmp_path}/checkpoint")
    last = json.loads(both_client.get(f"millstream:sink:{query.id}"))["version"]
    for folder in ("offsets", "commits"):
        for name in (str(last), f".{last}.crc"):
            (tmp_path / "checkpoint" / folder / name).unlink(missing_ok=True)
    copying(both.url, "s", stream="out")
    assert both_client.xlen("out") == 300
    for folder in ("offsets", "commits"):
        for name in (str(last), f".{last}.crc"):
            (tmp_path / "checkpoint" / folder / name).unlink(missing_ok=True)
    fill(both_client, "s", 300, first=301)
    both_client.xtrim("s", maxlen=300, approximate=False)
    with pytest.raises(StreamingQueryException) as caught:
        copying(both.url, "s", stream="out")
    assert f"batch {last} of writer {query.id} was written from another range of its sources" in str(caught.value)
    assert [int(fields["n"]) for _, fields in both_client.xrange("out")] == list(range(1, 301))


def test_a_write_that_is_numbered_can_be_repeated(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession"
) -> None:
    """A write with a version number that was written adds nothing, so jobs and foreachBatch may repeat it."""
    frame = spark.range(10).selectExpr("cast(id as string) n")
    for version in ("0", "1", "1", "0"):
        write(frame, real_redis.url, stream="out", txnAppId="load", txnVersion=version)
    assert client.xlen("out") == 20


def test_a_failed_job_leaves_nothing(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """If a partition of a Spark write fails, no entry is visible and no row stays staged."""
    fifo = tmp_path / "passed"
    os.mkfifo(fifo)

    def fails(batches: Any) -> Any:
        for batch in batches:
            if 0 in batch.column("n").to_pylist():
                yield batch
                fifo.write_text("passed on")
            else:
                raise RuntimeError("this partition fails: the other has " + fifo.read_text())

    frame = spark.range(0, 4000, 1, 2).selectExpr("id n").mapInArrow(fails, "n long")
    with pytest.raises(PySparkException, match="this partition fails: the other has passed on"):
        write(frame, real_redis.url, stream="out")
    eventually(lambda: client.keys() == [], what="the rows of a task that was ended with the job are gone")


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["id n"], {"strem": "out"}, "ConfigError: unknown option 'strem': did you mean 'stream'?"),
        (
            ["id n"],
            {"stream": "out", "maxlength": "5"},
            "ConfigError: unknown option 'maxlength': did you mean 'maxLen'?",
        ),
        (["id n"], {}, "ConfigError: option 'stream' is missing. Set .option('stream', 'orders'), or give each row"),
        (["id"], {"stream": "out"}, "ConfigError: column 'id' is of type bigint and must be an entry id"),
        (["id n"], {"stream": "text"}, "ConfigError: option 'stream': 'text' on redis://"),
        (["id n"], {"stream": "out", "url": "redis://127.0.0.1:1/0"}, "NotReachedError: option 'url': cannot connect"),
        (["id n", "'x' id"], {"stream": "out"}, "UsageError: a row's column 'id' is 'x', which is not an entry id"),
    ],
)
def test_the_last_line_of_an_error_says_what_to_mend(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    columns: list[str],
    options: dict[str, str],
    told: str,
) -> None:
    """The last line of an error about options, columns or rows names the correction, without Java frames."""
    client.set("text", "x")
    frame = spark.range(3).selectExpr(*columns)
    with pytest.raises(AnalysisException, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        write(frame, options.pop("url", real_redis.url), **options)
    assert told in last_line(caught.value)
    assert "\tat " not in str(caught.value)
    assert client.keys() == ["text"]


def test_modes_that_would_delete_are_refused(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """The modes that would delete a stream with its groups are refused."""
    fill(client, "s", 3)
    frame = spark.range(3).selectExpr("id n")
    with pytest.raises(AnalysisException, match=r"mode\('overwrite'\) would delete the stream"):
        frame.write.format("millstream").mode("overwrite").option("url", real_redis.url).option("stream", "s").save()
    source = spark.readStream.format("millstream").option("url", real_redis.url).option("stream", "s").load()
    query = (
        source.groupBy("stream").count().writeStream.format("millstream").outputMode("complete")
        .option("url", real_redis.url).option("stream", "t").option("checkpointLocation", str(tmp_path / "c")).start()
    )  # fmt: skip
    with pytest.raises(StreamingQueryException, match=r"outputMode\('complete'\) would replace all rows"):
        query.awaitTermination()
    shutil.rmtree(tmp_path / "c")
    assert client.keys() == ["s"]


def test_changed_rows_are_written_by_a_function_of_the_batch(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """The mode ``update`` works by a function of the batch, as documented, since Spark refuses it for Python sinks."""
    fill(client, "s", 3)
    source = spark.readStream.format("millstream").option("url", real_redis.url).option("stream", "s")
    totals = source.option("startingOffsets", "earliest").load().groupBy("stream").count()
    writer = totals.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.format("millstream").option("url", real_redis.url).option("stream", "t").start()
    with pytest.raises(StreamingQueryException, match="millstream does not support Update mode"):
        query.awaitTermination()
    shutil.rmtree(tmp_path / "c")

    def changed(frame: "DataFrame", batch: int) -> None:
        for _ in range(2):
            write(frame.drop("stream"), real_redis.url, stream="t", txnAppId="totals", txnVersion=str(batch))

    totals.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "c")).foreachBatch(
        changed
    ).trigger(availableNow=True).start().awaitTermination()
    assert [fields for _, fields in client.xrange("t")] == [{"count": "3"}]
