"""Spark queries: which run, how fast, how far behind, and which should run and do not."""

from millstream.console import words
from millstream.console.model.spark.queries import QueryStatus
from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.drawing import sparkline
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection
from millstream.console.watching.questions import all_queries

_QUERIES = (
    ViewColumn("query", prose=True),
    ViewColumn("state"),
    ViewColumn("lag", right=True),
    ViewColumn("rows", right=True, rank=1),
    ViewColumn("batch", right=True, rank=3),
    ViewColumn("it took", right=True, rank=2),
    ViewColumn("told", right=True, rank=4),
    ViewColumn("trend", rank=5),
    ViewColumn("reads", rank=6, prose=True),
)


async def queries_view(asked: TopAsked) -> TopView:
    """All queries that reported to this server, those that should run and do not first.

    Raises:
        MillstreamError: the server does not answer.
    """
    reading = await all_queries(asked.watch)
    seen = reading.value
    found = sorted(seen.queries, key=lambda query: (not query.is_lost, query.state == "stopped"))
    lost = sum(query.is_lost for query in found)
    return TopView(
        title="queries",
        figures=(
            ("running", words.count(sum(query.state == "running" for query in found))),
            ("failed or gone", words.count(lost)),
            ("in all", words.count(len(found))),
        ),
        notes=(f"They are not known: {seen.why}",) if seen.why else (),
        sections=(
            ViewSection(
                "Spark queries", _QUERIES, tuple(_row(query, seen.at_ms) for query in found), "No Spark queries."
            ),
        ),
        command_lines=(asked.shell("spark", "ls"),),
        **asked.source(reading),
    )


def _row(query: QueryStatus, now_ms: int) -> ViewRow:
    recent = [each.rows_per_second for each in query.recent if each.rows_per_second is not None]
    cells = (
        words.name(query.title),
        query.state,
        words.count(query.lag),
        words.rate(query.rows_per_second),
        words.count(query.batch),
        words.span(query.batch_ms),
        words.ago(None if query.at_ms is None else now_ms - query.at_ms),
        sparkline(recent),
        ", ".join(words.name(place.stream) for place in query.places) or words.DASH,
    )
    under = (f"Last error: {words.brief(query.error, 400)}",) if query.error else ()
    return ViewRow(f"query {query.id!r}", cells, mark="!" if query.is_lost else "", under=under)
