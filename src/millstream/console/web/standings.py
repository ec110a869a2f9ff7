"""All readers of a stream on one axis of ids: its groups, the Spark queries without one, and its archive. Pure."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from millstream.console.model.names import milliseconds
from millstream.console.model.spark.archive import ArchivedStream
from millstream.console.model.spark.queries import QueriesSeen
from millstream.console.model.streams import GroupStatus, StreamStatus
from millstream.console.web.charts import Standing, ground
from millstream.console.words import count, name, plural, span

MOST = 20
"""Most rows of a drawing; the number of the others is written below them."""


def group_standing(group: GroupStatus, now_ms: int, *, stuck: bool) -> Standing:
    """A group."""
    pending = group.oldest_pending.id
    delayed = f", {count(group.delayed)} of them delayed" if group.delayed else ""
    lag = f"{count(group.lag.entries)} behind" if group.lag.known else "lag unknown"
    held = f", {plural(group.pending, 'entry', 'entries')} pending" if group.pending else ""
    age = f", the oldest for {span(group.oldest_pending.age(now_ms))}" if pending else ""
    at = milliseconds(group.last_delivered_id) or None
    return Standing(
        name(group.name), at, None if pending is None else milliseconds(pending), lag + held + delayed + age, stuck
    )


def query_standings(queries: QueriesSeen, stream: str) -> list[Standing]:
    """The queries that read a stream by themselves, or should."""
    found = []
    for query, place in queries.readers(stream):
        lag = "lag unknown" if place.behind is None else f"{count(place.behind)} behind"
        lost = f", {query.state}" if query.is_lost else ""
        found.append(Standing(f"{name(query.title)} (Spark)", place.at_ms or None, None, f"Spark query{lost}, {lag}"))
    return found


def archive_standings(archived: Iterable[ArchivedStream], stream: str) -> list[Standing]:
    """The place up to which a stream is archived."""
    return [
        Standing("archive", milliseconds(one.upto) or None, None, f"{count(one.waiting)} not archived")
        for one in archived
        if one.stream == stream
    ]


def standings_drawn(stream: StreamStatus, standings: Sequence[Standing]) -> Markup:
    """The drawing; nothing for a stream without entries, or without readers."""
    if not standings or stream.first_entry_id is None or stream.last_entry_id is None:
        return Markup("")
    first_ms, last_ms = milliseconds(stream.first_entry_id), milliseconds(stream.last_entry_id)
    return ground(standings[:MOST], first_ms, last_ms, max(len(standings) - MOST, 0))
