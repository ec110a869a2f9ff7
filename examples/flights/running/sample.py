"""The state of a run at one moment, from the server: for the bars, for the page, and to detect the end."""

from dataclasses import dataclass
from typing import Any

import redis

from flights import rules
from flights.settings import Keys


@dataclass
class Sample:
    """The state at one moment.

    Attributes:
        at: seconds since the start.
        published: entries in the stream of flights.
        handled: entries that the group has acknowledged.
        pending: entries delivered and not yet acknowledged.
        lag: entries not yet delivered.
        alerts: entries in the stream of alerts.
        dead: dead letters.
        spark: events in Spark's finished batches.
    """

    at: float = 0.0
    published: int = 0
    handled: int = 0
    pending: int = 0
    lag: int = 0
    alerts: int = 0
    dead: int = 0
    spark: int = 0


@dataclass(frozen=True)
class Happening:
    """An event to mark on the time line.

    Attributes:
        at: Seconds since the start.
        kind: ``kill``, ``claim``, ``server`` or ``spark``.
        text: The event in words.
    """

    at: float
    kind: str
    text: str


def group_state(client: "redis.Redis", stream: str) -> dict[str, Any] | None:
    """Return the group's row of ``XINFO GROUPS`` with text keys; None if the stream or group does not exist yet."""
    try:
        groups: list[dict[str, Any]] = client.xinfo_groups(stream)
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return None
        raise
    for group in groups:
        if group["name"] == rules.GROUP.encode():
            return group
    return None


def look(client: "redis.Redis", keys: Keys, at: float, spark: int) -> Sample:
    """Read the state from the server; ``spark`` is the last figure that the pipeline reported.

    Raises:
        redis.ConnectionError: The server does not reply.
    """
    published = int(client.xlen(keys.flights))
    group = group_state(client, keys.flights)
    pending = int(group["pending"]) if group else 0
    # The server returns nil if it has lost count; no entry of this stream is deleted, so it never has.
    lag = int(group["lag"] or 0) if group else published
    return Sample(
        at=round(at, 3),
        published=published,
        handled=max(published - lag - pending, 0),
        pending=pending,
        lag=lag,
        alerts=int(client.xlen(keys.alerts)),
        dead=int(client.xlen(keys.dead)),
        spark=spark,
    )
