"""The source and sink in Spark: found by name, equal to XRANGE, and exactly once through stops, kills and retries."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import AnalysisException, StreamingQueryException

from millstream.spark.monitoring.error_text import last_words
from support.servers import ServerProcess, redis_server
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

Reading = Callable[..., "DataFrame"]
RunToEnd = Callable[..., list[dict[str, Any]]]
Written = Callable[[], list[str]]


def last_line(error: BaseException) -> str:
    """Return the last line of an error before Spark's SQLSTATE."""
    lines = [line for line in str(error).splitlines() if line.strip() and "SQLSTATE" not in line]
    return lines[-1]


# --- batch reads -----------------------------------------------------------------------------------------------------


def test_a_batch_read_is_xrange(both: ServerProcess, both_client: redis.Redis, reading: Reading) -> None:
    """A batch read by format name returns the entries of XRANGE, also with line breaks and changing fields."""
    both_client.xadd("s", {"n": "1", "text": "line\r\nbreak"}, id="1700000000000-0")
    both_client.xadd("s", {"other": "ü", "n": ""}, id="1700000000000-1")
    for number in range(3000):
        both_client.xadd("s", {"n": str(number)}, id=f"{1_700_000_000_001 + number}-0")
    found = reading(both.url, stream="s", minPartitions="3")
    assert found.rdd.getNumPartitions() == 3
    rows = {row.id: row.fields for row in found.collect()}
    assert rows == dict(both_client.xrange("s"))
    assert found.count() == 3002
    first = found.orderBy("timestamp", "id").first()
    assert first is not None
    assert (first.stream, first.timestamp.isoformat()) == ("s", "2023-11-14T22:13:20")


def test_bytes_come_through_unharmed(real_redis: ServerProcess, client: redis.Redis, reading: Reading) -> None:
    """A binary value can be read from a binary column or by a cast."""
    client.xadd("s", {"raw": b"\xff\x00\r\n", "n": "1"})
    row = reading(real_redis.url, "raw binary, n int", stream="s").first()
    assert row is not None
    assert (bytes(row.raw), row.n) == (b"\xff\x00\r\n", 1)
    cast = reading(real_redis.url, stream="s").selectExpr("cast(fields['raw'] as binary) raw").first()
    assert cast is not None
    assert bytes(cast.raw) == b"\xff\x00\r\n"


def test_typed_columns_and_what_does_not_fit_them(
    real_redis: ServerProcess, client: redis.Redis, reading: Reading
) -> None:
    """A schema types the fields. A bad value is null and kept next to the row."""
    client.xadd("s", {"delay": "11", "when": "2013-01-01T10:00:00Z", "tags": '["a","b"]', "price": "3.50"})
    client.xadd("s", {"delay": "NA", "price": ""})
    schema = "delay int, when timestamp, tags array<string>, price decimal(8,2), stream string, _corrupt string"
    rows = reading(real_redis.url, schema, stream="s").orderBy("delay", ascending=False).collect()
    assert [(row.delay, row.tags, row.stream) for row in rows] == [(11, ["a", "b"], "s"), (None, None, "s")]
    assert (str(rows[0].price), rows[0].when.isoformat()) == ("3.50", "2013-01-01T10:00:00")
    assert [row._corrupt for row in rows] == [None, '{"delay": "NA"}']  # noqa: SLF001 - a column, not an attribute


def test_named_fields_become_columns(real_redis: ServerProcess, client: redis.Redis, reading: Reading) -> None:
    """The option ``fields`` gives text columns without a schema. Together with a schema it is refused."""
    fill(client, "s", 2)
    assert [
        tuple(row) for row in reading(real_redis.url, stream="s", fields="kind,none").drop("timestamp").collect()
    ] == [("s", "1-0", "odd", None), ("s", "2-0", "even", None)]
    with pytest.raises(AnalysisException, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        reading(real_redis.url, "kind string", stream="s", fields="kind").collect()
    assert "option 'fields' and .schema(...) both choose the columns" in last_line(caught.value)


def test_two_streams_and_an_empty_one(real_redis: ServerProcess, client: redis.Redis, reading: Reading) -> None:
    """Rows of several streams name their stream, and an empty stream has none."""
    fill(client, "a", 3)
    fill(client, "b", 2)
    client.xgroup_create("c", "g", "$", mkstream=True)
    counted = reading(real_redis.url, stream="a,b,c").groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in counted} == {"a": 3, "b": 2}
    assert reading(real_redis.url, stream="c").count() == 0
    assert reading(real_redis.url, streamPattern="[ab]").count() == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": "s", "strem": "s"}, "ConfigError: unknown option 'strem': did you mean 'stream'?"),
        ({"stream": "nope"}, "NotFoundError: option 'stream': 'nope' does not exist on redis://"),
        (
            {"stream": "s", "minPartitions": "x"},
            "ConfigError: option 'minPartitions' is 'x': it must be a whole number",
        ),
        (
            {"stream": "s", "startingOffsets": "first"},
            "ConfigError: option 'startingOffsets' is 'first': it must be earliest, latest, or a JSON such as",
        ),
        (
            {"stream": "s", "startingOffsets": '{"s": "noon"}'},
            "ConfigError: option 'startingOffsets' is '{\"s\": \"noon\"}': ",
        ),
        (
            {"stream": "s", "endingOffsets": '{"t": "5-0"}'},
            "ConfigError: option 'endingOffsets' names stream 't', which this query does not read",
        ),
        ({"stream": "s", "url": "http://127.0.0.1"}, "ConfigError: option 'url' must start with one of redis://"),
        (
            {"stream": "s", "url": "redis://127.0.0.1:1/0"},
            "NotReachedError: option 'url': cannot connect to redis://127.0.0.1:1/0",
        ),
        ({"stream": "s", "schema": "id int"}, "ConfigError: schema: column 'id' is that of the entry, of type string"),
    ],
)
def test_the_last_line_of_an_error_says_what_to_mend(
    real_redis: ServerProcess, client: redis.Redis, reading: Reading, options: dict[str, str], told: str
) -> None:
    """The last line of an error names the option and a correction, without Java stack frames."""
    fill(client, "s", 1)
    with pytest.raises(AnalysisException, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        reading(**{"url": real_redis.url, **options}).collect()
    assert told in last_line(caught.value)
    assert "\tat " not in str(caught.value)


def test_the_last_words_of_a_query_say_what_to_mend(
    real_redis: ServerProcess, client: redis.Redis, run_to_end: RunToEnd
) -> None:
    """``millstream spark ls`` and the log of ``millstream run`` show the cause of a failed query in one line."""
    with pytest.raises(StreamingQueryException) as caught:
        run_to_end(real_redis.url, stream="nope")
    assert last_words(caught.value).startswith("NotFoundError: option 'stream': 'nope' does not exist on redis://")
    assert (
        last_words("[SOME_ERROR] what Spark says. SQLSTATE: 42000\n\tat org.apache") == "[SOME_ERROR] what Spark says."
    )


def test_the_last_words_of_spark_itself() -> None:
    """If no Python code failed, the cause is taken from Spark's first line."""
    text = (
        "[STREAM_FAILED] Query [id = fd46f536-aae9, runId = 7726a948-dbb9] terminated with exception: Python worker "
        "failed to connect back. SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = fd46f536-aae9, runId = "
        "7726a948-dbb9]\nCurrent Committed Offsets: {}\nCurrent Available Offsets: {}\n\nCurrent State: INITIALIZING\n"
        "Thread State: RUNNABLE"
    )
    assert last_words(text) == "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingOffsets": "latest"}, "ConfigError: option 'endingOffsets' does nothing in a streaming query"),
        ({"view": "groups"}, "ConfigError: option 'view' is 'groups'"),
        ({"schema": "id int"}, "ConfigError: schema: column 'id' is that of the entry, of type string"),
        ({"mode": "group", "group": "g", "consumer": "w"}, "ConfigError: option 'consumer' is for spark.read"),
    ],
)
def test_a_query_that_cannot_be_says_why(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    options: dict[str, str],
    told: str,
) -> None:
    """If a query's reader cannot be created, the error states the cause instead of Spark's ``UnboundLocalError``."""
    fill(client, "s", 1)
    source = spark.readStream.format("millstream").option("url", real_redis.url).option("stream", "s")
    made = source.schema(options.pop("schema")) if "schema" in options else source
    query = (
        made.options(**options).load().writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert last_words(caught.value).startswith(told)
    assert "UnboundLocalError" not in str(caught.value)


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.either_server
def test_a_stopped_query_goes_on_where_it_was(
    both: ServerProcess,
    both_client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    run_to_end: RunToEnd,
    written: Written,
) -> None:
    """A query stopped in a backlog and restarted reads each entry once, within the cap, and shows its lag."""
    ids = fill(both_client, "a", 2500) + fill(both_client, "b", 500, first=5000)
    options = {"stream": "a,b", "startingOffsets": "earliest", "maxEntriesPerTrigger": "500", "group": "lake"}
    query = (
        spark.readStream.format("millstream").option("url", both.url).options(**options).load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )  # fmt: skip
    eventually((tmp_path / "checkpoint" / "commits" / "1").exists, 60, what="two batches are committed")
    query.stop()
    assert 0 < len(written()) < 3000
    progress = run_to_end(both.url, **options)
    assert max(batch["numInputRows"] for batch in progress) <= 500
    assert written() == ids
    for stream, count in (("a", 2500), ("b", 500)):
        (group,) = both_client.xinfo_groups(stream)
        assert (group["name"], group["entries-read"], group["lag"], group["pending"]) == ("lake", count, 0, 0)
    more = fill(both_client, "b", 7, first=9000)
    run_to_end(both.url, **options)
    assert written() == ids + more


DRIVER = """
import sys
from pathlib import Path

import millstream.spark

url, folder = sys.argv[1], Path(sys.argv[2])
failed = folder / "failed"


def fails_once(batches):
    for number, batch in enumerate(batches):
        if not failed.exists():
            failed.write_text(str(batch.num_rows))
            raise RuntimeError("the first attempt of the first task ends here")
        yield batch


spark = millstream.spark.session("killed", quick=True, master="local[2,4]", spark__log__level="OFF")
source = (
    spark.readStream.format("millstream").option("url", url).option("stream", "s")
    .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", "1000").load()
)
query = (
    source.mapInArrow(fails_once, source.schema).writeStream.format("parquet").option("path", str(folder / "out"))
    .option("checkpointLocation", str(folder / "checkpoint")).start()
)
query.awaitTermination()
"""


def test_a_killed_driver_and_a_failed_task_lose_and_double_nothing(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, run_to_end: RunToEnd, written: Written
) -> None:
    """After a failed task and a killed driver, a query's sink has each entry exactly once.

    A task fails after its read and is retried. Then the driver is killed between the offset log and the commit log of a
    batch, and the query is started again.
    """
    ids = fill(client, "s", 20_000)
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, real_redis.url, str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # the Java machine is killed with it
        )

    def under_way() -> int | None:
        assert driver.poll() is None, (tmp_path / "driver.log").read_text(errors="replace")[-3000:]
        logged = [int(path.name) for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        newest = max(logged, default=0)
        return newest if newest >= 2 and not (tmp_path / "checkpoint" / "commits" / str(newest)).exists() else None

    try:
        batch = eventually(under_way, 60, what="a batch is logged and not committed")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(timeout=30)
    assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists(), "the kill came too late to prove anything"
    assert (tmp_path / "failed").exists(), "no task has failed"
    logged = json.loads((tmp_path / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2])
    assert logged["s"]["n"] < 20_000
    run_to_end(real_redis.url, stream="s", maxEntriesPerTrigger="8000")
    assert written() == ids


def test_a_server_killed_in_the_midst_of_a_batch_is_waited_for(spark: "SparkSession", tmp_path: Path) -> None:
    """If the server is killed during a batch, Spark's tasks continue when it is back, in the source and the sink.

    The task reports when it has passed on some rows and staged some, and waits. The server is killed and started, and
    the task continues.
    """
    half, back = tmp_path / "half", tmp_path / "back"
    os.mkfifo(back)

    def waits(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for number, batch in enumerate(batches):
            if number == 12:
                half.touch()
                back.read_text()  # a pipe opens when its other end does
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    server = redis_server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    try:
        with server, server.client(decode_responses=True) as client:
            for first in range(0, 12_000, 1000):
                pipeline = client.pipeline(transaction=False)
                for number in range(first, first + 1000):  # together more than all sockets on the way can hold
                    pipeline.xadd("s", {"n": str(number), "pad": "x" * 8000})
                pipeline.execute()
            source = spark.readStream.format("millstream").options(url=server.url, stream="s", group="lake")
            rows = source.option("startingOffsets", "earliest").schema("n long, pad string").load()
            query = (
                rows.mapInArrow(waits, rows.schema).writeStream.format("millstream")
                .options(url=server.url, stream="out", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip

            asked: list[int] = []

            def under_way() -> bool:
                if (died := query.exception()) is not None:
                    raise died
                asked.append(client.info("commandstats").get("cmdstat_xrange", {}).get("calls", 0))
                # The reader continues until each pipe and socket is full: one that is not blocked would read again.
                held_up = len(asked) > 40 and len(set(asked[-40:])) == 1
                return held_up and half.exists() and bool(client.keys("millstream:{out}:staged:*"))

            try:
                eventually(under_way, 120, what="the task waits, and has staged some rows")
                assert client.xlen("out") == 0
                server.kill()
                server.start()
                assert "cmdstat_xrange" not in client.info("commandstats")
                back.write_text("")
                query.awaitTermination()
            finally:
                query.stop()
            assert "cmdstat_xrange" in client.info("commandstats"), "all rows had been read before"
            assert [int(fields["n"]) for _, fields in client.xrange("out")] == list(range(12_000))
            assert client.keys("millstream:*staged*") == []
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_stream_that_lost_entries_ends_its_query(
    real_redis: ServerProcess, client: redis.Redis, run_to_end: RunToEnd
) -> None:
    """A stream that lost unread entries ends its Spark query with an error that names them."""
    fill(client, "s", 10)
    options = {"stream": "s", "startingOffsets": "earliest"}
    run_to_end(real_redis.url, **options)
    fill(client, "s", 10, first=11)
    client.xtrim("s", maxlen=5, approximate=False)
    told = (
        "DataLossError: stream 's': 5 entries after 10-0 and before 16-0 were trimmed away.*'failOnDataLoss' to 'false'"
    )
    with pytest.raises(StreamingQueryException, match=told):
        run_to_end(real_redis.url, **options)
    client.delete("s")
    with pytest.raises(StreamingQueryException, match="went back"):
        run_to_end(real_redis.url, **options, failOnDataLoss="false")


@pytest.mark.parametrize("more", [0, 5])
def test_a_stream_restored_from_a_backup_ends_its_query(
    tmp_path: Path, run_to_end: RunToEnd, written: Written, more: int
) -> None:
    """A stream restored from a backup ends its query, even if newer entries hide the gap."""
    server = redis_server(tmp_path / "redis", "--appendonly", "yes")
    options = {"stream": "s", "startingOffsets": "earliest"}
    with server:
        with server.client(decode_responses=True) as client:
            ids = fill(client, "s", 10)
        server.stop()
        shutil.copytree(tmp_path / "redis", tmp_path / "backup")
        server.start()
        with server.client(decode_responses=True) as client:
            ids += fill(client, "s", 10, first=11)
        run_to_end(server.url, **options)
        assert written() == ids
        server.kill()
        shutil.rmtree(tmp_path / "redis")
        shutil.copytree(tmp_path / "backup", tmp_path / "redis")
        server.start()
        with server.client(decode_responses=True) as client:
            assert client.xlen("s") == 10
            fill(client, "s", more, first=21)
        with pytest.raises(StreamingQueryException) as caught:
            run_to_end(server.url, **options, failOnDataLoss="false")
    told = "DataLossError: stream 's' went back: this query has read up to 20-0 (entry 20), but "
    assert last_words(caught.value).startswith(told)
    assert written() == ids


def test_a_view_in_sql_reads_and_a_table_of_named_columns_says_why_it_cannot(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary view reads a stream. A table with named columns is refused, since Spark drops its options."""
    for variable in ("MILLSTREAM_URL", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    fill(client, "s", 3)
    using = f"USING millstream OPTIONS (url '{real_redis.url}', stream 's')"
    spark.sql(f"CREATE TEMPORARY VIEW entries_of_s {using}")
    assert spark.sql("SELECT count(*) FROM entries_of_s").collect() == [(3,)]
    spark.catalog.dropTempView("entries_of_s")
    told = "leave the columns out and write CREATE TABLE orders USING millstream OPTIONS"
    spark.sql(f"CREATE TABLE table_of_s (stream string, n string) {using}")
    try:
        with pytest.raises(AnalysisException, match=told):
            spark.sql("SELECT * FROM table_of_s").collect()
        with pytest.raises(AnalysisException, match="INSERT INTO orders WITH"):
            spark.sql("INSERT INTO table_of_s VALUES ('s', '4')")
    finally:
        spark.sql("DROP TABLE table_of_s")
    with pytest.raises(AnalysisException, match="INSERT INTO orders WITH"):
        spark.sql("SELECT 's' AS stream, '4' AS n").write.format("millstream").mode("append").save()
    assert client.xlen("s") == 3


def test_looking_for_the_format_is_cheap() -> None:
    """Spark's search for the format does not import Redis, Arrow or numpy."""
    code = (
        "import pyspark.sql.datasource, sys; before = set(sys.modules); import pyspark_millstream; "
        "print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "millstream.spark.source" in loaded
    assert not {"redis", "hiredis", "pyarrow", "numpy", "pandas", "millstream.spark.read.planner"} & set(loaded)
