"""Expected results, computed by pandas from the source file alone.

This module shares no code with the path of the events (``data.py``, the workers, Spark), except the location of the
file and the numbers of the rules in ``rules.py``. So an error in one of the two ways shows as a failed check.
"""

from dataclasses import dataclass
from typing import Any, cast

import pandas as pd

from flights import rules
from flights.data import data_file


@dataclass(frozen=True)
class Truth:
    """Expected results for the first ``rows`` flights of the year.

    Attributes:
        rows: Number of events.
        first_id: Entry id of the first event.
        last_id: Entry id of the last event.
        ids: Every entry id, in order.
        delayed: Ids of flights that left so late that an alert is due.
        cancelled: Ids of flights that never left.
        unusable: Cancelled flights without an aircraft, by id: dead letters.
        flaky: Ids of flights whose first delivery fails on purpose and must be retried.
        airports: Per hour and origin: flights, departed, delay (sum in minutes), mean.
        carriers: Per hour and carrier: flights, departed, delay (sum in minutes), mean.
        routes: The busiest routes in order: origin, dest, flights, departed, delay, mean.
        departed: Number of flights that left.
        delay: Sum of all departure delays in minutes.
    """

    rows: int
    first_id: str
    last_id: str
    ids: list[str]
    delayed: set[str]
    cancelled: set[str]
    unusable: dict[str, str]
    flaky: set[str]
    airports: pd.DataFrame
    carriers: pd.DataFrame
    routes: pd.DataFrame
    departed: int
    delay: int


def compute(rows: int | None = None) -> Truth:
    """Compute the expected results of the first ``rows`` flights in time order; None means the whole year."""
    frame = load()
    if rows is not None:
        frame = frame.head(rows)
    late = frame["dep_delay"] >= rules.ALERT_MINUTES
    cancelled = frame["dep_time"].isna()
    unusable = frame["tailnum"].isna()
    flaky = (frame["dest"] == rules.FLAKY_DESTINATION) & ~unusable
    return Truth(
        rows=len(frame),
        first_id=frame["id"].iloc[0],
        last_id=frame["id"].iloc[-1],
        ids=frame["id"].tolist(),
        delayed=set(frame["id"][late]),
        cancelled=set(frame["id"][cancelled]),
        unusable={
            row["id"]: flight_text(row["carrier"], row["flight"], row["origin"], row["dest"])
            for row in records(frame[unusable])
        },
        flaky=set(frame["id"][flaky]),
        airports=aggregate(frame, ["time_hour", "origin"]),
        carriers=aggregate(frame, ["time_hour", "carrier"]),
        routes=_top_routes(frame),
        departed=int(frame["dep_delay"].count()),
        delay=int(frame["dep_delay"].sum()),
    )


def flight_text(carrier: str, number: int | str, origin: str, dest: str) -> str:
    """Return a flight as people write it: ``UA1545 EWR-IAH``; ``number`` is a text or a number."""
    return f"{carrier}{number} {origin}-{dest}"


def load() -> pd.DataFrame:
    """Return the source file with an ``id`` column, in time order."""
    frame = pd.read_csv(data_file("flights.csv.zip"), dtype={"tailnum": "string"})
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True).astype("datetime64[ms, UTC]")
    due = frame["time_hour"] + pd.to_timedelta(frame["minute"], unit="m")
    frame["due_ms"] = due.astype("datetime64[ms, UTC]").astype("int64")
    frame = frame.sort_values("due_ms", kind="stable").reset_index(drop=True)
    sequence = frame.groupby("due_ms").cumcount()
    frame["id"] = frame["due_ms"].astype(str) + "-" + sequence.astype(str)
    return frame


def aggregate(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return flights, departures, and sum and mean of the departure delay for each key, sorted by key."""
    grouped = frame.groupby(keys, sort=True)["dep_delay"]
    table = grouped.agg(flights="size", departed="count", delay="sum", mean="mean").reset_index()
    table["delay"] = table["delay"].astype("int64")
    return table


def _top_routes(frame: pd.DataFrame) -> pd.DataFrame:
    table = aggregate(frame, ["origin", "dest"])
    table = table.sort_values(["flights", "origin", "dest"], ascending=[False, True, True])
    return table.head(rules.TOP_ROUTES).reset_index(drop=True)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain dictionaries."""
    return cast("list[dict[str, Any]]", frame.to_dict(orient="records"))
