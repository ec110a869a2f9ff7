"""The present and past queries: reports of drivers to the server, in a few keys that any client can read.

::

    millstream:spark:progress       stream: an entry when a query starts and ends, and one a second at most while it
                                    goes on; trimmed to about 10,000 entries

    millstream:spark:queries        hash: query id -> JSON, its last report; removed 30 days after it

    millstream:spark:driver:<id>    string, which expires soon after the driver's last heartbeat

A driver that was killed reports nothing more: a query that should run but has no living driver is shown as ``gone``.
"""

import json
import logging
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast

import redis

from millstream.client.connect import connect
from millstream.client.jsontext import parse_record
from millstream.client.url import check_remote, find_url, unreached
from millstream.errors import Disconnected, MillstreamError
from millstream.spark.monitoring.record import fits
from millstream.texts import said

logger = logging.getLogger("millstream.spark")

PREFIX = "millstream:spark:"
PROGRESS = f"{PREFIX}progress"
QUERIES = f"{PREFIX}queries"

HISTORY = 10_000
"""Approximate length of the history stream, in entries."""

HEARTBEAT_SECONDS = 5.0
TTL_MS = 20_000
"""Seconds between two heartbeats of a driver, and milliseconds for which it counts as alive after the last one."""

FORGET_MS = 30 * 86_400_000

NEW: dict[str, Any] = {
    "id": None, "name": None, "run": None, "driver": None, "host": None, "pid": None, "state": "running",
    "started_ms": None, "at_ms": None, "batch": None, "rows": None, "total_rows": 0, "rows_per_second": None,
    "input_rows_per_second": None, "batch_ms": None, "phases": None, "lag": None, "places": None, "watermark_ms": None,
    "state_rows": None, "recent": None, "error": None,
}  # fmt: skip
"""Every field of a query's record, with its default.

``rows`` are those of the last batch, ``total_rows`` those of the run. ``progress.py`` makes ``phases``, ``places`` and
``recent``, and limits their length.
"""

_IN_THE_HASH = ("places", "recent")  # omitted from the history, to keep its entries small

STATES = ("running", "stopped", "failed", "gone")


class QueriesError(MillstreamError):
    """The server refuses to show the records of queries; the message gives the reason.

    What to do: give the user the right to read the keys `millstream:spark:*`.
    """

    exit_code: ClassVar[int] = 5


class NoQueryError(MillstreamError):
    """No query has that name.

    What to do: list the queries (`millstream spark ls`) and use one of those names.
    """

    exit_code: ClassVar[int] = 4


def driver_key(driver: str) -> str:
    """Return the key that exists as long as a driver lives."""
    return f"{PREFIX}driver:{driver}"


def write(client: "redis.Redis", facts: Mapping[str, Any], event: str | None) -> None:
    """Store a query's last report, and add an event to the history if there is one."""
    with client.pipeline(transaction=False) as pipe:
        pipe.hset(QUERIES, str(facts["id"]), json.dumps(facts))
        if event is not None:
            fields = {"event": event} | {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in facts.items()
                if value is not None and name not in _IN_THE_HASH
            }
            pipe.xadd(PROGRESS, cast("Any", fields), maxlen=HISTORY, approximate=True)
        pipe.execute()


def forget(client: "redis.Redis", now_ms: int) -> None:
    """Drop queries without a report for 30 days."""
    kept = [(name, query_facts(value)) for name, value in _hash(client).items()]
    old = [name for name, facts in kept if facts is not None and now_ms - facts.get("at_ms", 0) > FORGET_MS]
    if old:
        client.hdel(QUERIES, *old)


def found(client: "redis.Redis") -> list[dict[str, Any]]:
    """Return the record of every query, the latest report first."""
    queries = recorded(_hash(client))
    return settled(queries, {driver for driver, key in driver_keys(queries).items() if client.exists(key)})


def recorded(kept: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """Return the queries in the server's hash, with every field of :data:`NEW`."""
    return [NEW | facts for facts in map(query_facts, kept.values()) if facts is not None]


def driver_keys(queries: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return, for each driver, the key that exists while it lives."""
    drivers = sorted({str(facts["driver"]) for facts in queries})
    # A name with a lone surrogate cannot be sent. No driver has such a name, so use a key that does not exist
    return {driver: driver_key(driver).encode(errors="backslashreplace") for driver in drivers}


def settled(queries: Sequence[Mapping[str, Any]], alive: Container[str]) -> list[dict[str, Any]]:
    """Return the queries, the latest report first; a running one is ``gone`` if its driver is."""
    gone = [facts["state"] == "running" and str(facts["driver"]) not in alive for facts in queries]
    found = [{**facts, "state": "gone" if lost else facts["state"]} for facts, lost in zip(queries, gone, strict=True)]
    return sorted(found, key=lambda facts: -(facts["at_ms"] or 0))


def look(url: str | None) -> list[dict[str, Any]]:
    """Connect to a server and return the record of every query, the latest report first."""
    where = check_remote(find_url(url))
    try:
        with connect(where, socket_timeout=10, socket_connect_timeout=10) as client:
            return found(client)
    except redis.AuthenticationError as error:
        raise QueriesError(unreached(where, error)) from None
    except redis.exceptions.RedisClusterException as error:  # its text ends with the last node's error
        lost = OSError(f"no node of the cluster answers: {str(error).rpartition('node: ')[2]}")
        raise Disconnected(unreached(where, lost)) from None
    except redis.ConnectionError as error:
        raise Disconnected(unreached(where, error)) from None
    except redis.RedisError as error:
        raise QueriesError(f"the queries cannot be read: {said(error)}") from None


def find(url: str | None, query: str) -> dict[str, Any]:
    """Return the record of one query."""
    every = look(url)
    named = [facts for facts in every if query in {facts["name"], facts["id"]}]
    for facts in named or (facts for facts in every if query and facts["id"].startswith(query)):
        return facts
    raise NoQueryError(f"no query {query!r} has reported to this server: `millstream spark ls` shows those that did")


def _hash(client: "redis.Redis") -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", client.hgetall(QUERIES))


def query_facts(value: bytes) -> dict[str, Any] | None:
    """Parse a query's report; None, with a warning, for a value that another client has written."""
    try:
        facts = parse_record(value)
        known = {name: facts[name] for name in NEW if facts.get(name) is not None}
        complete = known.keys() >= {"id", "driver"} and known.get("state", "running") in STATES
        if complete and all(fits(name, fact) for name, fact in known.items()):
            return dict(known)
    except (ValueError, AttributeError):
        pass
    _warn(value[:80])
    return None


@lru_cache(maxsize=100)
def _warn(begins: bytes) -> None:
    """Log a warning once for each value: the console reads all of them every second."""
    logger.warning("a record in %s was not written by a query, and is passed over: %r", QUERIES, begins)
