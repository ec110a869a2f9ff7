"""Hashes as rows, without Spark: the found keys, the requested fields, and their conversion to values."""

from itertools import chain

import pytest
import redis
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.errors import ConfigError, NotReachedError, UsageError
from millstream.spark.hashes import scan
from millstream.spark.hashes.options import parse
from millstream.spark.hashes.source import Hashes, HashPart
from millstream.spark.options.names import CORRUPT
from millstream.spark.source import MillstreamSource
from support.ports import free_port
from support.servers import ServerProcess

pytestmark = [pytest.mark.realserver]

TEXT = StringType()


def of(*columns: StructField) -> StructType:
    """Build a schema."""
    return StructType(list(columns))


def read(url: str, schema: StructType | None = None, **options: str) -> list[dict[str, object]]:
    """Return all rows that the tasks read, sorted."""
    source = MillstreamSource({"url": url, "hashes": "user:*"} | options)
    assert isinstance(source.special, Hashes)
    columns = source.schema()
    assert isinstance(columns, StructType)
    made = source.reader(schema or columns)
    rows = [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=str)


def test_hashes_are_rows_and_other_keys_are_not(both: ServerProcess, both_client: redis.Redis) -> None:
    """Each hash that matches the glob is one row with its fields as a map. Keys of other types are left out."""
    both_client.hset("user:1", mapping={"name": "Ada", "born": "1815"})
    both_client.hset("user:2", mapping={"name": "Alan"})
    both_client.sadd("user:3", "x")
    both_client.hset("order:1", mapping={"name": "no"})
    assert read(both.url) == [
        {"key": "user:1", "fields": [("name", "Ada"), ("born", "1815")]},
        {"key": "user:2", "fields": [("name", "Alan")]},
    ]


def test_typed_columns_are_asked_for_alone(both: ServerProcess, both_client: redis.Redis) -> None:
    """With typed columns, only these fields are requested.

    A bad value is null and in ``_corrupt``; a missing one is null.
    """
    both_client.hset("user:1", mapping={"id": "7", "name": "Ada", "born": "1815", "big": "x" * 10_000})
    both_client.hset("user:2", mapping={"id": "8", "born": "late"})
    both_client.hset("user:3", mapping={"other": "1"})
    schema = of(
        StructField("user", TEXT), StructField("id", LongType()), StructField("name", BinaryType()),
        StructField("born", IntegerType()), StructField(CORRUPT, TEXT),
    )  # fmt: skip
    both_client.config_resetstat()
    assert read(both.url, schema, keyColumn="user") == [
        {"user": "1", "id": 7, "name": b"Ada", "born": 1815, CORRUPT: None},
        {"user": "2", "id": 8, "name": None, "born": None, CORRUPT: '{"born": "late"}'},
        {"user": "3", "id": None, "name": None, "born": None, CORRUPT: None},
    ]
    assert both_client.info("commandstats")["cmdstat_hmget"]["calls"] == 3
    assert "cmdstat_hgetall" not in both_client.info("commandstats")


def test_every_task_has_its_share_and_all_have_all(both: ServerProcess, both_client: redis.Redis) -> None:
    """For any number of tasks, each hash is read by exactly one task."""
    with both_client.pipeline(transaction=False) as pipe:
        for number in range(2500):
            pipe.hset(f"user:{number}", "n", number)
        pipe.execute()
    source = MillstreamSource({"url": both.url, "hashes": "user:*", "minPartitions": "3"})
    made = source.reader(of(StructField("key", TEXT), StructField("n", LongType())))
    parts = made.partitions()
    assert parts == [HashPart(number, 3) for number in range(3)]
    found = [[row for batch in made.read(part) for row in batch["n"].to_pylist()] for part in parts]
    assert all(found)
    assert sorted(chain.from_iterable(found)) == list(range(2500))


def test_a_read_looks_for_keys_anew_without_being_planned_anew(both: ServerProcess, both_client: redis.Redis) -> None:
    """Each read scans the keys again, so a table that is planned once shows the current hashes."""
    both_client.hset("user:1", "n", "1")
    source = MillstreamSource({"url": both.url, "hashes": "user:*"})
    made = source.reader(of(StructField("key", TEXT)))
    (part,) = made.partitions()
    both_client.hset("user:2", "n", "2")
    both_client.delete("user:1")
    assert [key for batch in made.read(part) for key in batch["key"].to_pylist()] == ["user:2"]


def test_a_hash_that_goes_while_it_is_read_is_no_row(
    both: ServerProcess, both_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that is deleted or replaced between the scan and the read is not a row."""
    for number in (1, 2, 3):
        both_client.hset(f"user:{number}", "n", number)
    asked = scan.hashes_of

    def late(*args: object) -> object:
        both_client.delete("user:1", "user:2")
        both_client.set("user:2", "text")
        return asked(*args)  # type: ignore[arg-type] # those of the function

    monkeypatch.setattr(scan, "hashes_of", late)
    for schema in (None, of(StructField("key", TEXT), StructField("n", TEXT))):
        assert [row["key"] for row in read(both.url, schema)] == ["user:3"]
        both_client.hset("user:1", "n", 1)


def test_the_server_that_is_not_there_is_named() -> None:
    """An unreachable server is named in one line when the read is planned."""
    with pytest.raises(NotReachedError, match=r"option 'url': cannot connect to redis://127.0.0.1"):
        read(f"redis://127.0.0.1:{free_port()}/0")


def test_a_user_without_the_right_is_told_which(both: ServerProcess, both_client: redis.Redis) -> None:
    """If the user lacks a permission, the error names the command and the option."""
    both_client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+echo", "+dbsize", "+hgetall")
    try:
        with pytest.raises(UsageError, match=r"option 'hashes': .* refused SCAN"):
            read(both.url.replace("://", "://reader:pw@"))
    finally:
        both_client.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hashes": ""}, "option 'hashes' is '': it must not be empty"),
        ({"hashes": "u*", "stream": "s"}, "option 'stream' does nothing in a read of hashes: leave it out"),
        ({"hashes": "u*", "zzz": "1"}, "unknown option 'zzz': the options are url, minPartitions, hashes, keyColumn"),
        ({"hashes": "u?*", "keyColumn": "id"}, r"option 'hashes' is 'u\?\*': it must be a prefix and a star"),
        ({"hashes": "u:1", "keyColumn": "id"}, "it must be a prefix and a star, such as user:"),
        ({"hashes": "u*", "keyColumn": "fields"}, "'keyColumn' is 'fields', which is another column"),
        ({"hashes": "u*", "key.column": "id"}, "did you mean 'keyColumn'"),
        ({"hashes": "u*", "minPartitions": "0"}, "option 'minPartitions' is '0'"),
        ({"hashes": "u*", "url": "memory://"}, "lives in one process"),
    ],
)
def test_a_wrong_option_is_named_with_its_cure(given: dict[str, str], told: str) -> None:
    """An invalid option is named in one line with a correction."""
    with pytest.raises(ConfigError, match=told) as caught:
        parse({name.lower(): value for name, value in ({"url": "redis://h:1/0"} | given).items()})
    assert "\n" not in str(caught.value)


def test_other_uses_are_refused() -> None:
    """Hashes as a stream and as a target are refused, and so is a key column without hashes."""
    source = MillstreamSource({"url": "redis://h:1/0", "hashes": "u*"})
    with pytest.raises(ConfigError, match=r"a state and not a stream. Use spark.read, and join that with a stream"):
        source.streamReader(of(StructField("key", TEXT))).initialOffset()
    with pytest.raises(ConfigError, match="'hashes' are for reading: leave them out of a write"):
        _ = source.parsed_sink
    with pytest.raises(ConfigError, match="option 'keyColumn' is for reading hashes"):
        MillstreamSource({"url": "redis://h:1/0", "stream": "s", "keyColumn": "k"}).schema()
    with pytest.raises(ConfigError, match="column 'key' must be of type string"):
        source.reader(of(StructField("key", LongType())))
    with pytest.raises(ConfigError, match="column 'fields' must be map<string,string>"):
        source.reader(of(StructField("fields", MapType(TEXT, TimestampType()))))
