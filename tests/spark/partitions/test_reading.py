"""Partitioned streams as one source: all generations, offsets by partition, and errors with corrections."""

import json
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millstream.client.partitions.layout import HIGHEST_ID, LayoutError, descriptor_key
from millstream.errors import ConfigError, MillstreamError, NotFoundError
from millstream.spark.model.offsets import DataLossError
from millstream.spark.source import BatchReader, MillstreamSource, StreamReader
from support.partitioned import partition, second_generation
from support.servers import ServerProcess
from support.streams import fill

pytestmark = [pytest.mark.realserver]

ALL = ReadAllAvailable()
KEY = descriptor_key("orders")


def reader(server: ServerProcess, **options: str) -> StreamReader:
    """Return a stream reader of the partitioned stream as Spark's driver creates it."""
    source = MillstreamSource({"url": server.url, "partitionedStream": "orders"} | options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def ends(offset: dict[str, Any]) -> dict[str, str]:
    """Return the last id of each stream in an offset."""
    return {key: at["id"] for key, at in offset.items()}


def test_partitions_join_at_their_beginning(
    real_redis: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query reads a partition completely that gets its first entry later, or that a new generation adds."""
    monkeypatch.setattr("millstream.spark.read.planner.SCAN_SECONDS", 0.0)
    partition(real_redis.url, "orders", 4)
    fill(client, "orders{0}", 3)
    fill(client, "orders{0}-not", 3)
    made = reader(real_redis)
    at = made.initialOffset()
    assert ends(at) == {"orders{0}": "3-0"}
    fill(client, "orders{2}", 2)
    second_generation(client, "orders", 2)
    fill(client, "orders~2{1}", 4)
    end = made.latestOffset(at, ALL)
    assert ends(end) == {"orders{0}": "3-0", "orders{2}": "2-0", "orders~2{1}": "4-0"}
    assert sum(part.rows for wrapped in made.partitions(at, end) for part in wrapped.ranges) == 6
    made.stop()


def test_a_query_of_a_pattern_may_change_over(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A checkpoint of a ``streamPattern`` query continues with ``partitionedStream``."""
    partition(real_redis.url, "orders", 2)
    for at in range(2):
        fill(client, f"orders{{{at}}}", 3)
    source = MillstreamSource({"url": real_redis.url, "streamPattern": "orders{*}", "startingOffsets": "earliest"})
    before = source.streamReader(source.schema())
    assert isinstance(before, StreamReader)
    at = json.loads(json.dumps(before.latestOffset(before.initialOffset(), ALL)))
    before.stop()
    fill(client, "orders{1}", 2, first=4)
    made = reader(real_redis)
    end = made.latestOffset(at, ALL)
    assert (ends(at)["orders{1}"], ends(end)["orders{1}"]) == ("3-0", "5-0")
    assert sum(part.rows for wrapped in made.partitions(at, end) for part in wrapped.ranges) == 2
    made.stop()


def test_the_logical_name_places_all_partitions(real_redis: ServerProcess, client: redis.Redis) -> None:
    """In ``startingOffsets`` and ``endingOffsets``, the stream's name covers all partitions.

    A partition's own id wins.
    """
    partition(real_redis.url, "orders", 3)
    for at in range(3):
        fill(client, f"orders{{{at}}}", 5)
    places = {"startingOffsets": '{"orders": "2-0", "orders{1}": "4-0"}'}
    made = reader(real_redis, **places)
    assert ends(made.initialOffset()) == {"orders{0}": "2-0", "orders{1}": "4-0", "orders{2}": "2-0"}
    made.stop()
    given = {"url": real_redis.url, "partitionedStream": "orders", "endingOffsets": '{"orders": "4-0"}'} | places
    source = MillstreamSource(given)
    batch = source.reader(source.schema())
    assert isinstance(batch, BatchReader)
    parts = [part for wrapped in batch.partitions() for part in wrapped.ranges]
    assert {(part.key, str(part.start), str(part.end)) for part in parts} == {
        ("orders{0}", "2-0", "4-0"),
        ("orders{2}", "2-0", "4-0"),
    }


def test_a_sealed_partition_that_was_read_may_be_removed(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A sealed partition may be removed once read, also between two runs.

    One that was not read to its end is an error.
    """
    partition(real_redis.url, "orders", 2)
    for at in range(2):
        fill(client, f"orders{{{at}}}", 3)
    made = reader(real_redis, startingOffsets="earliest")
    client.execute_command("XSETID", "orders{0}", HIGHEST_ID)
    at = json.loads(json.dumps(made.latestOffset(made.initialOffset(), ALL)))
    assert ends(at) == {"orders{0}": HIGHEST_ID, "orders{1}": "3-0"}
    made.stop()
    client.delete("orders{0}")
    fill(client, "orders{1}", 1, first=4)
    made = reader(real_redis)
    at = made.latestOffset(at, ALL)
    assert ends(at) == {"orders{1}": "4-0"}
    client.delete("orders{1}")
    made.stop()
    made = reader(real_redis)
    with pytest.raises(DataLossError, match=r"'orders\{1\}'"):
        made.latestOffset(at, ALL)
    made.stop()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stream": "orders"}, "options 'stream' and 'partitionedStream' are both given"),
        ({"streamPattern": "orders{*}"}, "options 'streamPattern' and 'partitionedStream' are both given"),
        ({"startingOffsets": '{"others": "1-0"}'}, "names stream 'others', which this query does not read"),
        ({"startingOffsets": '{"orders-x{1}": "1-0"}'}, "names stream 'orders-x{1}', which this query"),
        ({"partitionedStream": ""}, "option 'partitionedStream' is '': it must not be empty"),
    ],
)
def test_a_wrong_option_is_named(real_redis: ServerProcess, given: dict[str, str], says: str) -> None:
    """An invalid option is named before any contact with the server."""
    with pytest.raises(ConfigError, match=says.replace("{", r"\{")):
        _ = MillstreamSource({"url": real_redis.url, "partitionedStream": "orders"} | given).parsed


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"stream": "others", "hash": "crc32", "generations": [{"g": 1, "keys": ["others{0}"]}]}',
        b'{"stream": "orders", "hash": "crc32", "generations": [{"g": 1, "keys": ["secret"]}]}',
        None,
    ],
)
def test_a_damaged_descriptor_is_named_and_not_followed(
    real_redis: ServerProcess, client: redis.Redis, value: bytes | None
) -> None:
    """A damaged layout of a partitioned stream ends the query with its key, and none of its partitions is read."""
    if value is None:
        client.lpush(KEY, "x")
    else:
        client.set(KEY, value)
    made = reader(real_redis)
    with pytest.raises(LayoutError, match=r"^millstream:\{orders\}:partitions does not describe a partitioned stream"):
        made.initialOffset()
    made.stop()


def test_the_rights_that_the_reference_names_are_enough(real_redis: ServerProcess, client: redis.Redis) -> None:
    """The documented permissions are enough to read a partitioned stream. Without GET, the error names it."""
    partition(real_redis.url, "orders", 2)
    fill(client, "orders{1}", 5)
    given = {"url": real_redis.url.replace("redis://", "redis://a:p@"), "partitionedStream": "orders"}
    may = ["+echo", "+xinfo", "+xrange", "+get"]
    try:
        client.acl_setuser("a", enabled=True, reset=True, passwords=["+p"], keys=["*"], commands=may)
        source = MillstreamSource(given)
        made = source.reader(source.schema())
        assert sum(batch.num_rows for part in made.partitions() for batch in made.read(part)) == 5
        client.acl_setuser("a", enabled=True, commands=["-get"])
        with pytest.raises(MillstreamError, match=r"'get'"):
            source.reader(source.schema()).partitions()
    finally:
        client.acl_deluser("a")


def test_a_stream_that_is_not_partitioned_is_an_error(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A plain stream as ``partitionedStream`` is an error that names the right option."""
    fill(client, "orders", 3)
    made = reader(real_redis)
    with pytest.raises(NotFoundError, match=r"'orders' is not partitioned on .* plain stream by option 'stream'"):
        made.initialOffset()
    made.stop()


def test_group_mode_reads_partitions_unless_workers_do(
    real_redis: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Group mode creates groups in all partitions and claims from each. A group that workers use is refused."""
    monkeypatch.setattr("millstream.spark.group.planner.SCAN_SECONDS", 0.0)
    partition(real_redis.url, "orders", 2)
    given = {"mode": "group", "group": "lake", "queryName": "q", "startingOffsets": "earliest"}
    fill(client, "orders{0}", 3)
    source = MillstreamSource({"url": real_redis.url, "partitionedStream": "orders"} | given)
    made: Any = source.streamReader(source.schema())
    at = made.initialOffset()
    fill(client, "orders{1}", 2)
    client.xgroup_create("orders~2{0}", "lake", "0", mkstream=True)
    fill(client, "orders~2{0}", 4)
    second_generation(client, "orders", 1)
    end = made.latestOffset(at, ALL)
    held = sum(run.n for wrapped in made.partitions(at, end) for run in wrapped.runs)
    assert held == 9
    made.latestOffset(end, ALL)  # which acknowledges them
    assert [client.xpending(key, "lake")["pending"] for key in ("orders{0}", "orders~2{0}")] == [0, 0]
    made.stop()
    client.hset("millstream:{orders}:members:lake", "w1", "1:0")
    for which in ({"partitionedStream": "orders"}, {"stream": "orders{0},orders{1}"}):
        source = MillstreamSource({"url": real_redis.url} | which | given)
        made = source.streamReader(source.schema())
        with pytest.raises(MillstreamError, match="workers share group 'lake' of the partitioned stream 'orders'"):
            made.initialOffset()
        made.stop()
