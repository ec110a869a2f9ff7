"""Spark queries: their state, their rates, their lag, and their positions next to the groups of the same streams."""

from dataclasses import asdict, dataclass

from markupsafe import Markup

from millstream.console.model.facts.marks import is_stuck
from millstream.console.model.spark.queries import QueriesSeen, QueryStatus
from millstream.console.model.streams import StreamsSeen, StreamStatus
from millstream.console.watching.questions import all_queries, some_streams
from millstream.console.web.charts import sparkline
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.web.standings import group_standing, query_standings, standings_drawn
from millstream.console.words import rate

MOST = 200
"""Queries on the page."""

_STREAMS = 8  # most streams that are drawn
_WORST_FIRST = {"failed": 0, "gone": 1, "running": 2, "stopped": 3}


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A query in the table."""

    query: QueryStatus  # Status from its driver
    spark: Markup  # Rows a second, drawn
    phase: str  # Phase that took longest in its last batch; may be empty
    lost: bool  # It should run and does not


@dataclass(frozen=True, slots=True)
class StreamDrawn:
    """A stream with all its readers."""

    stream: StreamStatus
    ground: Markup


async def queries_page(asked: Asked) -> WebPage:
    """All queries that reported to this server."""
    reading = await all_queries(asked.watch)
    seen = reading.value
    lost = seen.lost
    found = sorted(seen.queries, key=lambda query: (query not in lost, _WORST_FIRST[query.state]))[:MOST]
    keys = sorted({place.stream for query in found if query.state != "stopped" for place in query.places})[:_STREAMS]
    live = await some_streams(asked.watch, keys)
    facts = {
        "queries": [query_facts(query) for query in found],
        "found": len(seen.queries),
        "unknown": seen.why,
    }
    view = {
        "rows": [_row(query, lost=query in lost) for query in found],
        "found": len(seen.queries),
        "running": sum(query.state == "running" for query in seen.queries),
        "lost": len(lost),
        "drawn": streams_drawn(live.value, seen),
        "why": seen.why,
        "now": seen.at_ms,
    }
    shell = [command_line(asked, "spark ls")]
    return WebPage("queries", "Spark queries", facts, view, shell, **WebPage.source(reading, live))


def query_facts(query: QueryStatus) -> dict[str, object]:
    """A query in the JSON, under the names that the shell has."""
    return asdict(query)


def streams_drawn(live: StreamsSeen, queries: QueriesSeen) -> list[StreamDrawn]:
    """Each stream with its groups and queries on one axis."""
    found = []
    for stream in live.streams:
        standings = query_standings(queries, stream.key)
        standings += [group_standing(each, live.at_ms, stuck=is_stuck(each, live.at_ms)) for each in stream.groups]
        found.append(StreamDrawn(stream, standings_drawn(stream, standings)))
    return found


def _row(query: QueryStatus, *, lost: bool) -> QueryRow:
    points = [(one.at_ms, one.rows_per_second) for one in query.recent if one.rows_per_second is not None]
    running = query.state == "running"
    drawn = sparkline(points, f"rows a second, now {rate(query.rows_per_second)}") if running else Markup("")
    return QueryRow(query, drawn, next(iter(query.phases), ""), lost)
