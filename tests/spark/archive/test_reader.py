"""Archive and live stream as one table: no gap, no overlap, and only the needed files are read."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from millstream.errors import ConfigError
from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.reader import ArchivePart, ArchiveReader, PushdownReader, TailPart
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.trim import Keep
from millstream.spark.model.bounds import Bounds, narrowed
from millstream.spark.model.offsets import MAX_PART, DataLossError, Id, parse_id
from millstream.spark.options.read import parse
from millstream.spark.read import pages
from millstream.spark.source import MillstreamSource
from support.archives import RAW, archive_once, data_files
from support.servers import ServerProcess
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.realserver


@pytest.fixture
def client(both: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server."""
    with both.client(decode_responses=True) as made:
        made.flushall()
        yield made


def reader(server: ServerProcess, root: Path, schema: StructType | None = None, **options: str) -> ArchiveReader:
    """Return a reader as Spark's planner creates it."""
    source = MillstreamSource({"url": server.url, "stream": "s", "archive": str(root)} | options)
    made = source.reader(schema or source.schema())
    assert isinstance(made, ArchiveReader)
    return made


def rows(made: ArchiveReader, parts: Any = None) -> list[str]:
    """Return the ids that the tasks read, partition by partition."""
    return [
        ident
        for part in (made.partitions() if parts is None else parts)
        for batch in made.read(part)
        for ident in batch.column("id").to_pylist()
    ]


def job(server: ServerProcess, root: Path, streams: tuple[str, ...] = ("s",), **more: Any) -> None:
    archive_once(ArchiveSettings(server.url, streams, root, **more))


def test_one_table_over_both(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Archived rows equal those of a live read: ids, times, maps, named fields and typed columns."""
    fill(client, "s", 50)
    client.execute_command("XADD", "s", "61-0", "n", "1", "kind", "a", "n", "x")
    columns = [("n", IntegerType()), ("id", StringType()), ("_corrupt", StringType())]
    typed = StructType([StructField(name, kind) for name, kind in columns])
    ways: list[tuple[dict[str, str], StructType | None]] = [({}, None), ({"fields": "kind,none"}, None), ({}, typed)]

    def table(options: dict[str, str], schema: StructType | None, **archive: str) -> list[Any]:
        source = MillstreamSource({"url": both.url, "stream": "s"} | options | archive)
        made = source.reader(schema or source.schema())
        batches = [batch for part in made.partitions() for batch in made.read(part)]
        return pa.Table.from_batches(batches).to_pylist()

    live = [table(options, schema) for options, schema in ways]
    assert len(live[0]) == 51
    job(both, tmp_path / "a", keep=Keep(entries=30))
    client.xadd("s", {"n": "1"}, id="1000-0")
    for (options, schema), wanted in zip(ways, live, strict=True):
        assert table(options, schema, archive=str(tmp_path / "a"))[:-1] == wanted


def test_live_entries_follow_the_archive(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A read over archive and stream returns entries that are in both once, for several streams too."""
    ids = fill(client, "s", 100)
    fill(client, "t", 10)
    job(both, tmp_path / "a", keep=Keep(entries=40))
    assert client.xlen("s") == 40
    ids += fill(client, "s", 20, first=200)
    assert rows(reader(both, tmp_path / "a")) == ids
    assert rows(reader(both, tmp_path / "a", liveTail="false")) == ids[:100]
    found = rows(reader(both, tmp_path / "a", stream="s,t"))
    assert sorted(found) == sorted(ids + [f"{number}-0" for number in range(1, 11)])
    pattern = MillstreamSource({"url": both.url, "streamPattern": "[st]", "archive": str(tmp_path / "a")})
    assert len(rows(pattern.reader(pattern.schema()))) == 130  # type: ignore[arg-type] # it is an ArchiveReader
    with pytest.raises(ConfigError, match=r"'nope' is neither on redis://.* nor in the archive"):
        reader(both, tmp_path / "a", stream="nope").partitions()
    with pytest.raises(ConfigError, match=r"option 'archive': .* is not an archive"):
        reader(both, tmp_path / "b").partitions()


def test_patterns_are_the_servers_own(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Patterns such as ``[^t]`` and a backslash match archived streams in the same way as SCAN."""
    for stream in ("s1", "t1", "s*"):
        fill(client, stream, 3)
    job(both, tmp_path / "a", streams=("s1", "t1", "s*"))
    client.delete("s1", "t1", "s*")
    for pattern, found in (("[^t]1", ["s1"]), (r"s\*", ["s*"]), ("s?", ["s*", "s1"])):
        source = MillstreamSource({"url": both.url, "streamPattern": pattern, "archive": str(tmp_path / "a")})
        parts = source.reader(source.schema()).partitions()
        assert [part.stream for part in parts if isinstance(part, ArchivePart)] == found, pattern
    given = {"url": both.url, "streamPattern": r"s\*", "startingOffsets": '{"s*": "1-0"}'}
    assert MillstreamSource(given).parsed.pattern == r"s\*"


def test_places_and_parts(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Start and end options mean the same as in a live read. The partitions do not overlap and leave nothing out."""
    ids = fill(client, "s", 100)
    job(both, tmp_path / "a", per_batch=20, target_bytes=1)
    ids += fill(client, "s", 20, first=200)
    made = reader(both, tmp_path / "a", minPartitions="4")
    parts = made.partitions()
    assert len(parts) >= 4
    assert rows(made, parts) == ids
    assert rows(made, list(reversed(parts))) != ids
    some = {"startingOffsets": '{"s": "15-0"}', "endingOffsets": '{"s": "205-0"}'}
    assert rows(reader(both, tmp_path / "a", **some)) == ids[15:106]
    assert rows(reader(both, tmp_path / "a", startingTimestamp="90", endingTimestamp="202")) == ids[89:102]
    assert rows(reader(both, tmp_path / "a", startingOffsets="latest")) == []


def test_archived_and_trimmed_after_planning(
    both: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a job archives and trims entries between planning and reading, or between two pages, the read has no gap."""
    monkeypatch.setattr(pages, "FIRST_COUNT", 10)
    monkeypatch.setattr(pages, "MOST_COUNT", 10)
    ids = fill(client, "s", 50)
    job(both, tmp_path / "a")
    ids += fill(client, "s", 50, first=51)
    made = reader(both, tmp_path / "a", minPartitions="3")
    parts = made.partitions()
    job(both, tmp_path / "a")
    assert client.xlen("s") == 0
    assert rows(made, parts) == ids
    ids += fill(client, "s", 100, first=101)
    made = reader(both, tmp_path / "a")
    parts = made.partitions()
    (tail,) = [part for part in parts if isinstance(part, TailPart)]
    reading = made.read(tail)
    found = next(reading).column("id").to_pylist()
    job(both, tmp_path / "a", keep=Keep(entries=35))
    ids += fill(client, "s", 30, first=301)
    for batch in reading:
        found += batch.column("id").to_pylist()
        if len(found) == 70:
            job(both, tmp_path / "a")
    assert found == ids[100:200]
    assert rows(made, parts) == ids[:200]


def test_files_merged_after_planning(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If files are merged after planning, a partition still reads exactly its own rows."""
    ids = fill(client, "s", 70)
    job(both, tmp_path / "a", per_batch=10)
    made = reader(both, tmp_path / "a", minPartitions="7")
    parts = made.partitions()
    before = data_files(tmp_path / "a")
    fill(client, "s", 10, first=71)
    job(both, tmp_path / "a", per_batch=10)
    assert not before & data_files(tmp_path / "a")
    assert len([part for part in parts if isinstance(part, ArchivePart)]) > 3
    assert rows(made, parts) == ids
    (lost,) = data_files(tmp_path / "a")
    (tmp_path / "a" / lost).unlink()
    with pytest.raises(FileNotFoundError):
        rows(made, parts)


def test_read_while_a_job_runs(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """During a running job, each read returns each entry once up to its planned end."""
    done = threading.Event()
    failed: list[Exception] = []
    root = tmp_path / "a"
    fill(client, "s", 50)
    job(both, root)

    def work() -> None:
        try:
            for run in range(12):
                fill(client, "s", 60, first=51 + 60 * run)
                job(both, root, per_batch=25)
        except Exception as reason:  # noqa: BLE001 - the test's own thread shows it
            failed.append(reason)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    reads = 0
    while not done.is_set():
        with both.client(decode_responses=True) as other:
            least = int(other.xinfo_stream("s")["entries-added"])
        found = rows(reader(both, root, minPartitions="2"))
        assert found == [f"{number}-0" for number in range(1, len(found) + 1)]
        assert len(found) >= least
        reads += 1
    thread.join()
    assert failed == []
    assert reads > 3


def test_what_others_took_is_missed(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Entries that were trimmed before they were archived, and a recreated stream, are errors that name the gap."""
    ids = fill(client, "s", 20)
    job(both, tmp_path / "a")
    ids += fill(client, "s", 20, first=21)
    made = reader(both, tmp_path / "a")
    parts = made.partitions()
    client.xtrim("s", maxlen=5, approximate=False)
    with pytest.raises(DataLossError, match="there is a gap: stream 's': 15 entries after 20-0 and before 36-0"):
        rows(made, parts)
    with pytest.raises(DataLossError, match="there is a gap: stream 's': 15 entries after 20-0 and before 36-0"):
        reader(both, tmp_path / "a").partitions()
    assert rows(reader(both, tmp_path / "a", failOnDataLoss="false")) == ids[:20] + ids[35:]
    client.delete("s")
    with pytest.raises(DataLossError, match=r"does not follow on its archive.* no longer exists.*'liveTail' to"):
        reader(both, tmp_path / "a").partitions()
    assert rows(reader(both, tmp_path / "a", liveTail="false")) == ids[:20]


# --- filters ---------------------------------------------------------------------------------------------------------

HOUR = 3_600_000
BEGIN = 1_700_002_800_000  # on the hour


def hours(client: redis.Redis, first: int, last: int) -> list[str]:
    """Add two entries per hour."""
    return [
        client.xadd("s", {"n": str(hour)}, id=f"{BEGIN + hour * HOUR + minutes * 60_000}-0")
        for hour in range(first, last)
        for minutes in (0, 30)
    ]


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def filtered(server: ServerProcess, root: Path, *filters: tuple[str, str, Any]) -> tuple[list[str], int, int]:
    """Return the ids that are read under the filters, with the number of files and of live ranges."""
    from pyspark.sql import datasource

    options = {"url": server.url, "stream": "s", "archive": str(root)}
    made = PushdownReader(parse(options), MillstreamSource(options).schema())
    asked = [getattr(datasource, name)((column,), value) for name, column, value in filters]
    assert list(made.pushFilters(asked)) == asked  # Spark goes over the rows once more
    parts = made.partitions()
    files = sum(len(part.paths) for part in parts if isinstance(part, ArchivePart))
    live = sum(len(part.ranges) for part in parts if isinstance(part, TailPart))
    return rows(made, parts), files, live


def test_only_wanted_files_and_ranges_are_read(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Filters on times and ids limit the files and the live ranges that are read."""
    root = tmp_path / "a"
    ids = hours(client, 0, 24)
    job(both, root, wanted=RAW)
    ids += hours(client, 24, 26)
    assert filtered(both, root) == (ids, 24, 1)
    hour = BEGIN + 5 * HOUR
    day = [("GreaterThanOrEqual", "timestamp", at(hour)), ("LessThan", "timestamp", at(hour + 2 * HOUR))]
    kept = Folder(root).read().of("s", Id(hour - 1, MAX_PART), Id(hour + 2 * HOUR - 1, MAX_PART))
    wanted = {file.path for file in kept}
    asked = int(client.info("commandstats")["cmdstat_xrange"]["calls"])
    for path in data_files(root) - wanted:
        (root / path).write_bytes(b"not to be read")
    assert filtered(both, root, *day) == (ids[10:14], 2, 0)
    assert int(client.info("commandstats")["cmdstat_xrange"]["calls"]) == asked
    assert filtered(both, root, ("EqualTo", "id", ids[11])) == ([ids[11]], 1, 0)
    assert filtered(both, root, ("In", "id", (ids[50], ids[51]))) == (ids[50:52], 0, 1)
    assert filtered(both, root, ("GreaterThan", "timestamp", at(BEGIN + 24 * HOUR))) == (ids[49:], 0, 1)
    assert filtered(both, root, ("GreaterThan", "id", ids[49])) == (ids[49:], 0, 1)  # by its milliseconds
    assert filtered(both, root, ("EqualTo", "stream", "other")) == ([], 0, 0)
    client.xadd("s", {"n": "late"}, id="99999999999999-0")
    with pytest.raises(Exception, match="Parquet"):  # ids of another length: their letters say nothing
        filtered(both, root, ("GreaterThan", "id", ids[49]))


moments = st.integers(0, 5_000_000)
texts = st.builds(lambda ms, seq: f"{ms}-{seq}", st.integers(10**12, 10**12 + 20), st.integers(0, 20))
filters = st.one_of(
    st.tuples(
        st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
        st.just("timestamp"),
        moments.map(lambda micros: at(10**12) + timedelta(microseconds=micros // 250)),
    ),
    st.tuples(
        st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
        st.just("id"),
        texts | st.sampled_from(["", "1000000000005", "5", "x", "1000000000005-"]),
    ),
    st.tuples(st.just("In"), st.just("id"), st.tuples(texts, texts)),
)
COMPARE = {
    "EqualTo": lambda one, other: one == other,
    "GreaterThan": lambda one, other: one > other,
    "GreaterThanOrEqual": lambda one, other: one >= other,
    "LessThan": lambda one, other: one < other,
    "LessThanOrEqual": lambda one, other: one <= other,
    "In": lambda one, other: one in other,
}


@settings(deadline=None)
@given(st.lists(filters, max_size=3), st.lists(texts, min_size=1, max_size=8, unique=True))
def test_no_row_that_a_filter_takes_is_left_out(asked: list[tuple[str, str, Any]], ids: list[str]) -> None:
    """The pushed bounds include every row that Spark's own evaluation of the filters accepts."""
    places = sorted(map(parse_id, ids))
    bounds = narrowed(asked)
    after, until = bounds.range([places[0], places[-1]])
    for place in places:
        row = {"id": str(place), "timestamp": at(place.ms)}
        if all(COMPARE[name](row[column], value) for name, column, value in asked):
            assert after < place <= until


def test_filters_that_say_nothing_change_nothing() -> None:
    """Filters on other columns, of other kinds or on times without a zone limit nothing."""
    assert (
        narrowed(
            [
                ("EqualTo", "n", "5"),
                ("StringStartsWith", "id", "17"),
                ("GreaterThan", "timestamp", at(5).replace(tzinfo=None)),
                ("EqualTo", "id", "no id"),
                ("EqualNullSafe", "id", None),
            ]
        )
        == Bounds()
    )


# --- in Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_pushes_its_filters(real_redis: ServerProcess, spark: "SparkSession", tmp_path: Path) -> None:
    """Spark pushes its filters, so that files outside of them are never opened."""
    root = tmp_path / "a"
    with real_redis.client(decode_responses=True) as client:
        ids = hours(client, 0, 12)
        job(real_redis, root, wanted=RAW)
        ids += hours(client, 12, 14)
    reading = spark.read.format("millstream").option("url", real_redis.url).option("stream", "s")
    reading = reading.option("archive", str(root))
    day = f"timestamp >= timestamp_millis({BEGIN + 3 * HOUR}) AND timestamp < timestamp_millis({BEGIN + 5 * HOUR})"
    wanted = {file.path for file in Folder(root).read().files[3:5]}
    kept = {path: (root / path).read_bytes() for path in data_files(root) - wanted}
    for path in kept:
        (root / path).write_bytes(b"not to be read")
    with pytest.raises(AnalysisException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        reading.option("pushdown", "true").load().collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = reading.option("pushdown", "true").load().where(day).where("fields['n'] <> '4'")
        assert [row.id for row in found.collect()] == ids[6:8]
        for path, content in kept.items():
            (root / path).write_bytes(content)
        table = reading.option("pushdown", "false").load()
        assert [row.id for row in table.where(day).collect()] == ids[6:10]
        assert table.count() == len(ids)  # Spark would give it the rows of the query before
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    times = {"startingTimestamp": str(BEGIN + 3 * HOUR), "endingTimestamp": str(BEGIN + 5 * HOUR)}
    for path in kept:
        (root / path).write_bytes(b"not to be read")
    assert [row.id for row in reading.options(**times).load().collect()] == ids[6:10]
