"""The overview: what needs a person, how much there is in all, and every stream with its groups, the worst first."""

from dataclasses import dataclass

from markupsafe import Markup

from millstream.console.model.streams import StreamsSeen, StreamStatus
from millstream.console.web.charts.small import sparkline
from millstream.console.web.facts import Facts, group_facts, stream_facts
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import (
    GroupRow,
    Rates,
    command_line,
    everything,
    group_row,
    is_late,
    is_stuck,
    rates_of,
)
from millstream.console.web.pages.findings import cases, finding_facts, findings
from millstream.console.web.words import rate as rate_words

STREAMS = 100
"""Streams of one page."""

SORTS = ("worst", "name", "length", "pending")


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream in the table.

    Attributes:
        stream: as it was read.
        groups: its groups.
        added: entries a second that come to it.
        spark: that as a drawing.
        quiet_ms: since the newest entry was added; None where it has none.
    """

    stream: StreamStatus
    groups: list[GroupRow]
    added: float | None
    spark: Markup
    quiet_ms: int | None


async def overview_page(asked: Asked) -> WebPage:
    """All streams.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """
    reading = await everything(asked)
    seen, done = reading.value, rates_of(reading)
    sort = asked.words.get("sort", "worst")
    found = _sorted(seen, sort if sort in SORTS else "worst")
    first = (asked.count("page", 1, 1 + len(found) // STREAMS) - 1) * STREAMS
    rows = [_row(asked, stream, seen.at_ms, done) for stream in found[first : first + STREAMS]]
    totals = _totals(seen, done)
    looked = await cases(asked, seen, done)
    noted = findings(asked, looked.value)
    facts: Facts = {
        "totals": totals,
        "findings": [finding_facts(one) for one in noted],
        "streams": [_stream_facts(row, seen.at_ms) for row in rows],
        "refused": dict(seen.refused),
        "first": first,
    }
    view = {
        "rows": rows,
        "urgent": [one for one in noted if one.advice.level != "hint"],
        "hints": [one for one in noted if one.advice.level == "hint"],
        "totals": totals,
        "now": seen.at_ms,
        "refused": seen.refused,
        "sort": sort,
        "sorts": SORTS,
        "first": first,
        "size": STREAMS,
    }
    shell = [command_line(asked, "stream", "ls"), command_line(asked, "group", "ls")]
    return WebPage("overview", "Overview", facts, view, shell, **WebPage.source(reading, looked))


def _sorted(seen: StreamsSeen, sort: str) -> list[StreamStatus]:
    """The streams in their order; the worst are those with the oldest entry that nobody has finished."""

    def rank(stream: StreamStatus) -> tuple[float, float, str]:
        if sort == "name":
            return 0, 0, stream.key
        if sort == "length":
            return -stream.length, 0, stream.key
        if sort == "pending":
            return -stream.pending, 0, stream.key
        age = max(stream.oldest_pending.age(seen.at_ms) or 0, stream.oldest_undelivered.age(seen.at_ms) or 0)
        return -age, -stream.pending, stream.key

    return sorted(seen.streams, key=rank)


def _row(asked: Asked, stream: StreamStatus, now_ms: int, done: Rates) -> StreamRow:
    added = done[0].get(stream.key)
    groups = [group_row(asked, group, done[1].get((stream.key, group.name)), now_ms) for group in stream.groups]
    points = asked.watch.history.rates(stream.key)
    spark = sparkline(points, f"entries a second, now {rate_words(added)}") if any(y for _, y in points) else Markup("")
    last = stream.last_entry_id
    quiet = None if last is None else max(now_ms - int(last.partition("-")[0]), 0)
    return StreamRow(stream, groups, added, spark, quiet)


def _totals(seen: StreamsSeen, done: Rates) -> Facts:
    """The figures over all streams."""
    groups = [group for stream in seen.streams for group in stream.groups]
    waits = [age for group in groups if (age := group.oldest_undelivered.age(seen.at_ms)) is not None]
    holds = [age for group in groups if (age := group.oldest_pending.age(seen.at_ms)) is not None]
    return {
        "streams": len(seen.streams),
        "groups": len(groups),
        "entries": sum(stream.length for stream in seen.streams),
        "added_per_second": round(sum(done[0].values()), 1) if done[0] else None,
        "pending": sum(group.pending for group in groups),
        "unowned": sum(group.unowned or 0 for group in groups),
        "undelivered_age_ms": max(waits, default=0),
        "pending_age_ms": max(holds, default=0),
        "waiting": sum(is_late(group, seen.at_ms) or is_stuck(group, seen.at_ms) for group in groups),
        "lag_unknown": sum(not group.lag.known for group in groups),
    }


def _stream_facts(row: StreamRow, now_ms: int) -> Facts:
    facts = stream_facts(row.stream, now_ms, row.added)
    return {**facts, "groups": [group_facts(one.group, now_ms, one.rate) for one in row.groups]}
