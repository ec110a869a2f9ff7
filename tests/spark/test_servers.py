"""Basic Spark work on the servers that other tests do not use: a cluster, Valkey and Redis 8.

The same tests on each: a query that reads and writes, a shared group, recovery by a function, and an archive.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import millstream
import millstream.spark
from millstream.spark.recovery.settle import RecoveryCounts
from support import needs
from support.clusters import Three
from support.servers import ServerProcess, redis_server
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

RunToEnd = Callable[..., list[dict[str, Any]]]
Written = Callable[[], list[str]]

STREAMS = ["{a}", "{b}", "{c}"]
"""Streams that are on three different nodes of a cluster."""

HOUR = 3_600_000


@dataclass
class Place:
    """A server or cluster for the streams.

    Attributes:
        url: URL for Spark.
        servers: All servers that hold keys.
    """

    url: str
    servers: list[ServerProcess]


@pytest.fixture(scope="module", params=["cluster", "valkey", "redis8"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield each kind of server that the machine has."""
    folder = tmp_path_factory.mktemp("servers")
    if request.param == "cluster":
        with Three(folder) as three:
            yield Place(three.url, three.nodes)
    else:
        with redis_server(folder, path=needs.other(request.param)) as server:
            yield Place(server.url, [server])


@pytest.fixture
def client(place: Place) -> Iterator[Any]:
    """Yield redis-py's client from ``millstream.connect``, with all keys flushed."""
    for server in place.servers:
        with server.client() as one:
            one.flushall()
    with millstream.connect(place.url, decode_responses=True) as found:
        yield found


def test_a_query_reads_every_stream_and_writes_to_others_once(
    place: Place, client: Any, spark: "SparkSession", tmp_path: Path
) -> None:
    """A query copies entries by pattern from three streams to three others, once each, also when it runs again."""
    for stream in STREAMS:
        fill(client, stream, 300)

    def copy() -> None:
        source = (
            spark.readStream.format("millstream").option("url", place.url).option("streamPattern", "{[abc]}")
            .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", "500").option("group", "copier")
        ).load()  # fmt: skip
        target = source.selectExpr("concat(stream, 'copy') AS stream", "fields")
        writer = target.writeStream.format("millstream").option("url", place.url)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    copy()
    fill(client, "{a}", 5, first=1001)
    copy()
    copies = {stream: [int(fields["n"]) for _, fields in client.xrange(f"{stream}copy")] for stream in STREAMS}
    wanted = list(range(1, 301))
    assert {stream: sorted(copies[stream]) for stream in STREAMS} == {
        "{a}": wanted + list(range(1001, 1006)),
        "{b}": wanted,
        "{c}": wanted,
    }
    (group,) = client.xinfo_groups("{b}")
    assert (group["name"], group["last-delivered-id"], group["lag"]) == ("copier", "300-0", 0)


def test_a_group_is_shared_and_ends_acknowledged(
    place: Place, client: Any, run_to_end: RunToEnd, written: Written
) -> None:
    """A query of a shared group processes each entry once within the cap, and a worker's pending entries stay."""
    for at, stream in enumerate(STREAMS):
        client.xgroup_create(stream, "g", "0", mkstream=True)
        fill(client, stream, 200, first=1 + 1000 * at)
        client.xreadgroup("g", "worker", {stream: ">"}, count=50)
    mode = {"mode": "group", "group": "g", "queryName": "lake", "maxEntriesPerTrigger": "250"}
    progress = run_to_end(place.url, stream=",".join(STREAMS), **mode)
    assert written() == [f"{number}-0" for at in range(3) for number in range(51 + 1000 * at, 201 + 1000 * at)]
    assert [batch["numInputRows"] for batch in progress] == [250, 200]
    for stream in STREAMS:
        assert {row["name"]: row["pending"] for row in client.xinfo_consumers(stream, "g")} == {"worker": 50}


def test_a_recovery_judges_by_a_function(place: Place, client: Any, spark: "SparkSession") -> None:
    """Tasks read a dead consumer's entries, and the function's decision settles them."""
    client.xgroup_create("{a}", "g", "0", mkstream=True)
    ids = fill(client, "{a}", 300)
    client.xreadgroup("g", "dead", {"{a}": ">"})
    client.xclaim("{a}", "g", "dead", 0, ids, idle=HOUR, justid=True)

    def judge(entries: "DataFrame") -> "DataFrame":
        words = "element_at(array('ack', 'release', 'dead'), int(fields['n']) % 3 + 1)"
        return entries.selectExpr("id", f"{words} AS verdict")

    done = millstream.spark.recover(spark, place.url, "{a}", "g", "10m", judge, slice_size=120)
    assert done == RecoveryCounts(acked=100, released=100, dead=100)
    assert client.xlen("{a}:dead") == 100
    assert client.xpending("{a}", "g")["pending"] == 100
    held = spark.read.format("millstream").option("url", place.url).option("streamPattern", "*")
    assert held.option("view", "pending").load().count() == 100
    assert held.option("view", "dead").load().where("letter_stream = '{a}:dead'").count() == 100


def test_an_archive_and_what_is_left_are_one_table(
    place: Place, client: Any, spark: "SparkSession", tmp_path: Path
) -> None:
    """An archive trims as far as a group has read. Archive and stream together hold each entry once."""
    for stream in STREAMS:
        client.xgroup_create(stream, "g", "0", mkstream=True)
        ids = fill(client, stream, 200)
        client.xreadgroup("g", "worker", {stream: ">"}, count=150)
        client.xack(stream, "g", *ids[:150])
    root = tmp_path / "archive"
    told = millstream.spark.archive(place.url, *STREAMS, to=root, spark=spark, per_batch=400)
    assert sorted((each.stream, each.trimmed) for each in told) == [(stream, 150) for stream in STREAMS]
    assert [client.xlen(stream) for stream in STREAMS] == [50, 50, 50]
    fill(client, "{b}", 30, first=1001)
    table = spark.read.format("millstream").option("url", place.url).option("stream", ",".join(STREAMS))
    found = table.option("archive", str(root)).load().groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in found} == {"{a}": 200, "{b}": 230, "{c}": 200}


def test_hashes_are_a_table_wherever_they_are(place: Place, client: Any, spark: "SparkSession") -> None:
    """A Spark table of hashes has each hash once, on a cluster from every node."""
    for number in range(60):
        client.hset(f"user:{number}", mapping={"n": number, "name": f"u{number}"})
    users = (
        spark.read.format("millstream").option("url", place.url).option("hashes", "user:*").option("keyColumn", "user")
        .option("minPartitions", "2").schema("user int, n int, name string").load()
    )  # fmt: skip
    with pytest.raises(AnalysisException, match="column 'user' must be of type string"):
        users.collect()
    users = (
        spark.read.format("millstream").option("url", place.url).option("hashes", "user:*").option("keyColumn", "user")
        .option("minPartitions", "2").schema("user string, n int, name string").load()
    )  # fmt: skip
    assert sorted(row.n for row in users.collect()) == list(range(60))
    assert users.where("user = '7'").collect() == [("7", 7, "u7")]
