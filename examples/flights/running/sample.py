"""The state of a run at one moment, as the server tells it: for the bars, for the page, and to know when it is over."""

from dataclasses import dataclass
from typing import Any

import redis

from flights import rules
from flights.settings import Keys


@dataclass
class Sample:
    """One look.

    Attributes:
        at: seconds since the start.
        published: entries in the stream of flights.
        handled: entries that the group has acknowledged.
        pending: entries delivered and not yet acknowledged.
        lag: entries not yet delivered.
        alerts: entries in the stream of alerts.
        dead: dead letters.
        spark: events that Spark's finished batches have counted.
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
    """Something worth a mark on the time line.

    Attributes:
        at: seconds since the start.
        kind: ``kill``, ``claim``, ``server`` or ``spark``.
        text: what happened.
    """

    at: float
    kind: str
    text: str


def group_state(client: "redis.Redis", stream: str) -> dict[str, Any] | None:
    """The group's line of ``XINFO GROUPS`` with text keys; None if there is no stream or no group yet."""
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
    """Ask the server.

    Args:
        client: connected to it.
        keys: the run's streams.
        at: seconds since the start.
        spark: what the pipeline has told so far.

    Raises:
        redis.ConnectionError: it is away.
    """
    published = int(client.xlen(keys.flights))
    group = group_state(client, keys.flights)
    pending = int(group["pending"]) if group else 0
    # The server says nil where it cannot know; nothing is ever deleted from this stream, so here it always knows.
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
