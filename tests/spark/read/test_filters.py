"""Filters of a query on live streams: excluded entries are not read, and no other entry is left out."""

from datetime import UTC, datetime

import pytest
import redis
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    StringContains,
)

from millstream.spark.source import BatchReader, FilteredReader, MillstreamSource
from support.servers import ServerProcess

pytestmark = [pytest.mark.realserver]

BEGIN = 1_700_000_000_000
EACH = 1000
"""Entries per stream, one a second."""


@pytest.fixture
def streams(client: redis.Redis) -> redis.Redis:
    """Fill the streams a, b and c."""
    with client.pipeline() as pipe:
        for key in "abc":
            for at in range(EACH):
                pipe.xadd(key, {"n": str(at)}, id=f"{BEGIN + at * 1000}-0")
        pipe.execute()
    return client


def at(second: int) -> datetime:
    """Return a time as Spark passes it."""
    return datetime.fromtimestamp(BEGIN / 1000 + second, UTC)


def read(server: ServerProcess, *filters: Filter, **options: str) -> list[tuple[str, str]]:
    """Return the stream and id of every row that the tasks read."""
    source = MillstreamSource({"url": server.url, "stream": "a,b,c", "pushdown": "true"} | options)
    made = source.reader(source.schema())
    assert isinstance(made, FilteredReader)
    assert list(made.pushFilters(list(filters))) == list(filters)  # Spark applies all of them again
    found = []
    for partition in made.partitions():
        for batch in made.read(partition):
            found += list(zip(batch["stream"].to_pylist(), batch["id"].to_pylist(), strict=True))
    return found


@pytest.mark.parametrize(
    ("filters", "streams_read", "seconds"),
    [
        ([], "abc", range(EACH)),
        ([EqualTo(("stream",), "b")], "b", range(EACH)),
        ([In(("stream",), ("a", "c", "x"))], "ac", range(EACH)),
        ([GreaterThanOrEqual(("timestamp",), at(990))], "abc", range(990, EACH)),
        ([GreaterThan(("timestamp",), at(10)), LessThan(("timestamp",), at(14))], "abc", range(11, 14)),
        ([EqualTo(("id",), f"{BEGIN + 5000}-0"), EqualTo(("stream",), "a")], "a", range(5, 6)),
        ([GreaterThanOrEqual(("id",), f"{BEGIN + 998_000}-0")], "abc", range(998, EACH)),
        ([LessThan(("timestamp",), at(-1))], "", range(0)),
        ([IsNotNull(("id",)), StringContains(("id",), "1700"), EqualTo(("fields", "n"), "5")], "abc", range(EACH)),
    ],
)
def test_only_what_the_filters_leave_is_read(
    real_redis: ServerProcess, streams: redis.Redis, filters: list[Filter], streams_read: str, seconds: range
) -> None:
    """Rows that a filter on ids, times or streams excludes are not transferred. Other filters exclude nothing."""
    wanted = [(key, f"{BEGIN + second * 1000}-0") for key in streams_read for second in seconds]
    assert sorted(read(real_redis, *filters)) == sorted(wanted)


def test_filters_and_options_both_hold(real_redis: ServerProcess, streams: redis.Redis) -> None:
    """Filters and options apply together: no filter brings back rows that the options exclude."""
    found = read(
        real_redis,
        GreaterThanOrEqual(("timestamp",), at(10)),
        stream="a",
        startingTimestamp=str(BEGIN + 500_000),
        endingTimestamp=str(BEGIN + 503_000),
    )
    assert [ident for _, ident in found] == [f"{BEGIN + second * 1000}-0" for second in (500, 501, 502)]


def test_nothing_is_pushed_down_unless_asked_for(real_redis: ServerProcess, streams: redis.Redis) -> None:
    """Filters are pushed down only with the option, since Spark reuses a filtered reader for other queries."""
    source = MillstreamSource({"url": real_redis.url, "stream": "a"})
    made = source.reader(source.schema())
    assert type(made) is BatchReader
    assert type(made).pushFilters is DataSourceReader.pushFilters
