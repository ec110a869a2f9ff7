"""The results of the run: receipts on disk, streams on the server, tables in Parquet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flights import receipts
from flights.pipeline import TABLES
from flights.running.incidents import Incidents
from flights.running.sample import look
from flights.settings import DemoSettings

if TYPE_CHECKING:
    import pandas as pd
    import redis

PAGE = 5_000
"""Entries read from a stream at a time."""

Entry = tuple[str, dict[str, str]]
Rows = list[tuple[bytes, dict[bytes, bytes]]]


@dataclass
class Evidence:
    """All results that the checks use.

    Attributes:
        receipts: Every attempt of every worker.
        length: Number of entries in the stream of flights.
        first_id: Its first id.
        last_id: Its last id.
        pending: Number of the group's pending entries.
        lag: Number of entries that the group has not received.
        alerts: The stream of alerts.
        dead: The dead letters.
        routes: The last table of routes in the stream, in order of rank.
        tables: The Parquet tables by name.
        incidents: The kills of the run.
        survived: For each kill of the server, the number of events up to the last acknowledged one.
    """

    receipts: list[receipts.Receipt]
    length: int
    first_id: str
    last_id: str
    pending: int
    lag: int
    alerts: list[Entry]
    dead: list[Entry]
    routes: list[dict[str, str]]
    tables: "dict[str, pd.DataFrame]"
    incidents: Incidents
    survived: list[int]


def gather(client: "redis.Redis", settings: DemoSettings, incidents: Incidents) -> Evidence:
    """Read all results while the server still runs."""
    import pandas as pd  # noqa: PLC0415 - only the demo pays for it, and only at its end

    keys = settings.keys
    state = look(client, keys, 0.0, 0)
    routes = list(entries(client, keys.routes))
    newest = routes[-1][0].partition("-")[0] if routes else ""
    return Evidence(
        receipts=list(receipts.read(settings.receipts)),
        length=state.published,
        first_id=edge(cast("Rows", client.xrange(keys.flights, count=1))),
        last_id=edge(cast("Rows", client.xrevrange(keys.flights, count=1))),
        pending=state.pending,
        lag=state.lag,
        alerts=list(entries(client, keys.alerts)),
        dead=list(entries(client, keys.dead)),
        routes=[fields for entry_id, fields in routes if entry_id.partition("-")[0] == newest],
        tables={name: pd.read_parquet(settings.parquet / name) for name in TABLES},
        incidents=incidents,
        # Counted at the end, since the stream grows until then; a lost event would leave a permanent hole.
        survived=[sum(1 for _ in entries(client, keys.flights, last)) for last in incidents.acknowledged],
    )


def edge(rows: Rows) -> str:
    """Return the id of the first entry in the reply of a range command; empty if there is none."""
    return rows[0][0].decode() if rows else ""


def entries(client: "redis.Redis", key: str, end: str = "+") -> Iterator[Entry]:
    """Yield every entry of a stream up to ``end``, read in pages; ``+`` means the whole stream.

    After a crash, ``end`` is the last id that was acknowledged before it.
    """
    start = "-"
    while True:
        rows = cast("Rows", client.xrange(key, start, end, PAGE))
        for entry_id, fields in rows:
            yield entry_id.decode(), {name.decode(): value.decode() for name, value in fields.items()}
        if len(rows) < PAGE:
            return
        start = f"({rows[-1][0].decode()}"
