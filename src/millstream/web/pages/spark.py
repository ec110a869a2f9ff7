"""The Spark pages: all queries, one query, one archive."""

from collections.abc import Iterable
from dataclasses import asdict

from markupsafe import Markup

from millstream.ops.asking import NotReadableError
from millstream.ops.groups.status import is_stuck
from millstream.ops.history.windows import StepValue, TimeRange
from millstream.ops.spark.status import QueriesSeen, QueryStatus
from millstream.ops.streams.status import StreamsSeen, StreamStatus
from millstream.ops.watching.questions import all_queries, archive_reading, some_streams
from millstream.ops.words import command_words, name, picked, rate
from millstream.web.charts import sparkline
from millstream.web.page import Asked, NoPageError, WebPage
from millstream.web.pages.common import command_line, group_standing, query_standings, standings_drawn
from millstream.web.plots import PlotLine, Unit, plot

MOST = 200
"""Largest number of queries on the page."""

_STREAMS = 8  # largest number of streams that are drawn
_WORST_FIRST = {"failed": 0, "gone": 1, "running": 2, "stopped": 3}


async def queries_page(asked: Asked) -> WebPage:
    """Return the page of all queries that reported to this server."""
    reading = await all_queries(asked.watch)
    seen = reading.value
    lost = seen.lost
    found = sorted(seen.queries, key=lambda query: (query not in lost, _WORST_FIRST[query.state]))[:MOST]
    keys = sorted({place.stream for query in found if query.state != "stopped" for place in query.places})[:_STREAMS]
    live = await some_streams(asked.watch, keys)
    facts = {"queries": [asdict(query) for query in found], "found": len(seen.queries), "unknown": seen.why}
    view = {
        "rows": [(query, query in lost, _trend(query), next(iter(query.phases), "")) for query in found],
        "found": len(seen.queries),
        "running": sum(query.state == "running" for query in seen.queries),
        "lost": len(lost),
        "drawn": streams_drawn(live.value, seen),
        "why": seen.why,
    }
    shell = [command_line(asked, "spark ls")]
    return WebPage("queries", "Spark queries", facts, view, shell, **WebPage.source(reading, live))


def streams_drawn(live: StreamsSeen, queries: QueriesSeen) -> list[tuple[StreamStatus, Markup]]:
    """Return each stream with the chart of its groups and queries on one axis."""
    found = []
    for stream in live.streams:
        standings = query_standings(queries, stream.key)
        standings += [group_standing(each, live.at_ms, stuck=is_stuck(each, live.at_ms)) for each in stream.groups]
        found.append((stream, standings_drawn(stream, standings)))
    return found


def _trend(query: QueryStatus) -> Markup:
    """Return the chart of the rows per second; empty unless the query runs."""
    points = [(one.at_ms, one.rows_per_second) for one in query.recent if one.rows_per_second is not None]
    running = query.state == "running"
    return sparkline(points, f"rows a second, now {rate(query.rows_per_second)}") if running else Markup("")


async def query_page(asked: Asked) -> WebPage:
    """Return the page of a query."""
    wanted = asked.word("id")
    reading = await all_queries(asked.watch)
    seen = reading.value
    query = next((each for each in seen.queries if each.id == wanted), None)
    if query is None:
        why = f"no query {wanted!r} has reported to this server; queries are removed after 30 days"
        raise NotReadableError(seen.why or why)
    live = await some_streams(asked.watch, [place.stream for place in query.places])
    view = {
        "query": query,
        "phases": _phases(query),
        "drawn": streams_drawn(live.value, seen),
        "rates": _drawn(((one.at_ms, one.rows_per_second) for one in query.recent), "Rows processed", "rate"),
        "times": _drawn(((one.at_ms, one.batch_ms) for one in query.recent), "Time of a batch", "ms"),
    }
    shell = [command_line(asked, "spark show", query.id)]
    return WebPage("query", name(query.title), asdict(query), view, shell, **WebPage.source(reading, live))


def _phases(query: QueryStatus) -> list[tuple[str, int, float]]:
    """Return the phases of the last batch, each with its milliseconds and its share of the batch in percent."""
    whole = max(sum(query.phases.values()), query.batch_ms or 0, 1)
    return [(phase, ms, 100 * ms / whole) for phase, ms in query.phases.items()]


def _drawn(points: Iterable[tuple[float, float | None]], title: str, unit: Unit) -> Markup:
    """Return the chart of one figure over the last batches; empty for fewer than two."""
    known = [StepValue(round(at), value, value, value) for at, value in points if value is not None]
    if len(known) < 2 or not any(one.most for one in known):
        return Markup("")
    return plot(title, unit, [PlotLine(title, known)], (), TimeRange("", known[0].at_ms, known[-1].at_ms, 1, fine=True))


async def archive_page(asked: Asked) -> WebPage:
    """Return the page of the archive that the console was started with."""
    path = asked.settings.archive
    if path is None:
        raise NoPageError("this console was started without an archive: start it with --archive DIR")
    reading = await archive_reading(asked.watch, path)
    seen = reading.value
    facts = {
        **picked(seen, "path changed_ms generation"),
        "streams": [asdict(one) for one in seen.streams],
        "runs": [asdict(one) for one in seen.runs],
        "files": [{**asdict(one), "first": str(one.first), "last": str(one.last)} for one in seen.newest],
        "unknown": seen.why,
    }
    view = {"seen": seen, "size": sum(one.bytes for one in seen.streams)}
    names = (asked.watch.server.argument, *([one.stream for one in seen.streams] or ["STREAM"]))
    shell = [command_words("archive", *names, options=("--to", seen.path, "--dry-run"))]
    return WebPage("archive", "Archive", facts, view, shell, **WebPage.source(reading))
