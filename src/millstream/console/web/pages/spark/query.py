"""One Spark query: its rates and the time of its batches, phase by phase, and its position in its streams."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from millstream.console.model.spark.queries import QueryStatus
from millstream.console.reading.asking import NotReadableError
from millstream.console.watching.history import TrendPoint
from millstream.console.watching.questions import all_queries, some_streams
from millstream.console.web.charts import trend
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.web.pages.spark.queries import query_facts, streams_drawn
from millstream.console.words import name


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the last batch; ``share`` is its part of the whole, in percent."""

    name: str
    ms: int
    share: float


async def query_page(asked: Asked) -> WebPage:
    """A query."""
    wanted = asked.word("id")
    reading = await all_queries(asked.watch)
    seen = reading.value
    query = next((each for each in seen.queries if each.id == wanted), None)
    if query is None:
        why = f"no query {wanted!r} has reported to this server; one is forgotten after 30 days"
        raise NotReadableError(seen.why or why)
    live = await some_streams(asked.watch, [place.stream for place in query.places])
    view = {
        "query": query,
        "phases": _phases(query),
        "drawn": streams_drawn(live.value, seen),
        "rates": _drawn(((one.at_ms, one.rows_per_second) for one in query.recent), "Rows processed a second"),
        "times": _drawn(((one.at_ms, one.batch_ms) for one in query.recent), "Time of a batch", spans=True),
        "now": seen.at_ms,
    }
    shell = [command_line(asked, "spark show", query.id)]
    return WebPage("query", name(query.title), query_facts(query), view, shell, **WebPage.source(reading, live))


def _phases(query: QueryStatus) -> list[PhaseRow]:
    whole = max(sum(query.phases.values()), query.batch_ms or 0, 1)
    return [PhaseRow(phase, ms, 100 * ms / whole) for phase, ms in query.phases.items()]


def _drawn(points: Iterable[tuple[float, float | None]], label: str, *, spans: bool = False) -> Markup:
    """A figure of the last batches."""
    known = [TrendPoint(at, value, value, value) for at, value in points if value is not None]
    return trend(known, label, spans=spans) if any(one.most for one in known) else Markup("")
