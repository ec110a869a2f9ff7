"""Public data sets of flights and airports, from a stream through a Spark query to an archive and DuckDB.

DuckDB's counts in the tables equal the counts that pandas finds in the original files.
"""

import importlib.util
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import redis

import millstream.spark
from flights import data as flights
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.tables.shape import FORMATS, Wanted
from support.archives import archive_once, held
from support.lake import connected, scan, shown
from support.servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]

SOON = "2013-01-04T05:00:00Z"
"""End of the first three days in New York."""

LATE = "carrier string, origin string, dest string, distance bigint, dep_delay bigint, arr_delay bigint"
QUERY = (
    "SELECT carrier, dest, count(*), sum(distance), sum(dep_delay), min(dep_delay), sum(made_up), count(made_up) "
    "FROM {table} GROUP BY ALL ORDER BY carrier, dest"
)
COUNTRIES = (
    "SELECT country, count(*), max(elevation), count(nullif(iata, '')), min(lat), max(lon), max(name) "
    "FROM {table} GROUP BY country ORDER BY country"
)


def add_flights(client: redis.Redis, until: str) -> int:
    """Add the flights up to a time to the stream ``flights`` and return their number."""
    pipeline = client.pipeline(transaction=False)
    count = 0
    for event in takewhile(lambda event: event.fields["time_hour"] < until, flights.events()):
        pipeline.xadd("flights", event.fields, id=event.id)  # type: ignore[arg-type] # a dict of text is one
        count += 1
        if count % 5000 == 0:
            pipeline.execute()
    pipeline.execute()
    return count


def late_flights(until: str) -> list[tuple[Any, ...]]:
    """Count flights that left more than 15 minutes late, by airline and destination, with pandas."""
    frame = pd.read_csv(flights.data_file("flights.csv.zip"))
    frame = frame[(frame["time_hour"] < until) & (frame["dep_delay"] > 15)]
    frame = frame.assign(made_up=frame["dep_delay"] - frame["arr_delay"])
    groups = frame.groupby(["carrier", "dest"])
    found = pd.DataFrame(
        {
            "flights": groups.size(),
            "distance": groups["distance"].sum(),
            "delay": groups["dep_delay"].sum(),
            "least": groups["dep_delay"].min(),
            "made_up": groups["made_up"].sum(min_count=1),
            "known": groups["made_up"].count(),
        }
    ).sort_index()
    return [(*key, *map(whole, row)) for key, row in zip(found.index, found.itertuples(index=False), strict=True)]


def whole(value: Any) -> int | None:
    """Convert a pandas number to an integer, or None if missing."""
    return None if pd.isna(value) else int(value)


def pick_late(spark: "SparkSession", url: str, checkpoint: Path) -> None:
    """Run the query that copies late flights from stream to stream."""
    source = spark.readStream.format("millstream").options(url=url, stream="flights", startingOffsets="earliest")
    late = source.schema(LATE).load().where("dep_delay > 15").selectExpr("*", "dep_delay - arr_delay AS made_up")
    writer = late.writeStream.format("millstream").options(url=url, stream="late")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def airports_file() -> Path:
    """Return the CSV file of the package ``airportsdata``."""
    spec = importlib.util.find_spec("airportsdata")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("airports.csv")


def airports(rows: int | None = None) -> pd.DataFrame:
    """Read the airports with pandas, with text unchanged, including empty values and Namibia's ``NA``."""
    text = dict.fromkeys(("icao", "iata", "name", "city", "subd", "country", "tz", "lid"), str)
    return pd.read_csv(airports_file(), nrows=rows, keep_default_na=False, dtype=text)


def add_airports(client: redis.Redis, rows: int | None = None) -> list[str]:
    """Add each row of the file to the stream ``airports`` and return the ids."""
    import csv

    pipeline = client.pipeline(transaction=False)
    with airports_file().open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            if number == rows:
                break
            pipeline.xadd("airports", row, id=f"{1_700_000_000_000 + number}-0")  # type: ignore[arg-type] # as above
    return [ident.decode() for ident in pipeline.execute()]


def countries(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Count airports by country with pandas."""
    found = []
    for country, rows in frame.groupby("country"):
        numbers = (len(rows), rows["elevation"].max(), int((rows["iata"] != "").sum()))
        found.append((country, *numbers, rows["lat"].min(), rows["lon"].max(), max(rows["name"])))
    return sorted(found)


@pytest.fixture
def raw(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server that returns entries as bytes."""
    with real_redis.client() as made:
        made.flushall()
        yield made


@pytest.mark.spark
def test_late_flights_of_three_days_through_spark(
    real_redis: ServerProcess, raw: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """2,700 flights pass through a Spark query into tables of each format without loss."""
    assert add_flights(raw, SOON) > 2500
    pick_late(spark, real_redis.url, tmp_path / "checkpoint")
    expected = late_flights(SOON)
    assert sum(row[2] for row in expected) == raw.xlen("late") > 300
    for form in FORMATS:
        root = tmp_path / form
        if form == "delta":
            millstream.spark.archive(real_redis.url, "late", to=root, spark=spark, format=form, trim=False)
        else:
            where = ArchiveSettings(real_redis.url, ("late",), root, trim=False, wanted=Wanted(form))
            archive_once(where)
        assert connected().sql(QUERY.format(table=scan(root, "late"))).fetchall() == expected


def test_airports_are_what_pandas_counts(real_redis: ServerProcess, raw: redis.Redis, tmp_path: Path) -> None:
    """3,000 airports with names of all languages and empty fields have the same counts by country in each format."""
    ids = add_airports(raw, 3000)
    there = [(ident.decode(), tuple(fields.items())) for ident, fields in raw.xrange("airports")]
    expected = countries(airports(3000))
    assert len(ids) == sum(row[1] for row in expected) == 3000
    for form in FORMATS:
        archive_once(ArchiveSettings(real_redis.url, ("airports",), tmp_path / form, trim=False, wanted=Wanted(form)))
        assert connected().sql(COUNTRIES.format(table=scan(tmp_path / form, "airports"))).fetchall() == expected
        assert held(tmp_path / form, "airports") == there


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(2700)
def test_a_year_of_flights_and_all_airports_through_spark(
    real_redis: ServerProcess, raw: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """336,776 flights of a public data set pass through a Spark query into a table of each format without loss."""
    assert add_flights(raw, "2015") == flights.TOTAL_ROWS
    ids = add_airports(raw)
    pick_late(spark, real_redis.url, tmp_path / "checkpoint")
    streams = ("late", "airports", "flights")
    frame = pd.read_csv(flights.data_file("flights.csv.zip"))
    by_month = list(frame["time_hour"].str[:7].value_counts().sort_index().items())
    of_all = (len(frame), len(frame), int(frame["distance"].sum()), int(frame["tailnum"].count()))
    late, by_country = late_flights("2015"), countries(airports())
    for form in FORMATS:
        root, trim = tmp_path / form, form == FORMATS[-1]
        form_of = {"format": form, "partition": "month", "trim": trim}
        millstream.spark.archive(real_redis.url, *streams, to=root, spark=spark, **form_of)
        database = connected()
        table = {stream: scan(root, stream) for stream in streams}
        assert database.sql(QUERY.format(table=table["late"])).fetchall() == late
        assert database.sql(COUNTRIES.format(table=table["airports"])).fetchall() == by_country
        assert shown(root, "airports") == ids
        months = f"SELECT strftime(timestamp, '%Y-%m') AS m, count(*) FROM {table['flights']} GROUP BY m ORDER BY m"
        assert database.sql(months).fetchall() == by_month
        sums = f"SELECT count(*), count(DISTINCT id), sum(distance), count(tailnum) FROM {table['flights']}"
        assert database.sql(sums).fetchone() == of_all
    assert [raw.xlen(stream) for stream in streams] == [0, 0, 0]
