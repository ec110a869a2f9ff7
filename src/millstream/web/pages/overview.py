"""The first page, with all streams and problems, and the search by name."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

from markupsafe import Markup

from millstream.ops.asking import together
from millstream.ops.entries.reading import streams_with
from millstream.ops.groups.status import SORTS, group_facts, sorted_streams, totals
from millstream.ops.server.status import ServerStatus
from millstream.ops.streams.partitioned import folded
from millstream.ops.streams.status import GroupStatus, Hit, StreamStatus, refused_lines, search, stream_facts
from millstream.ops.watching import questions
from millstream.ops.words import Facts, name
from millstream.ops.words import rate as rate_words
from millstream.web.charts import sparkline
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import GroupRow, alerts_facts, cards, command_line, group_row, problem_facts
from millstream.web.pages.schedules import note_recurring
from millstream.web.pages.trends import TOTALS, read_trends, trend_facts, trends

_ALERTS = 5  # number of alerts on the overview; the page of alerts has more

STREAMS = 100
"""Largest number of streams on one page."""

ROWS, _LEAST_ROWS = 15, 6
"""Largest and smallest number of rows that a page without ``count=`` shows: each cause takes the height of two."""

_GROUPS = 3  # largest number of groups of a stream on the page, the worst first
_FEW = 12  # number of streams up to which idle ones are not folded
_IDLE_MS = 3_600_000  # milliseconds without a new entry after which a stream can be idle
_IDLE = 100  # largest number of idle streams that are named


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream as a table row."""

    stream: StreamStatus  # Status of the stream
    groups: list[GroupRow]  # Groups of the stream
    added: float | None  # Entries added per second
    spark: Markup  # Chart of that rate
    quiet_ms: int | None  # Milliseconds since the newest entry was added; None if there is no entry


async def overview_page(asked: Asked) -> WebPage:
    """Return the page of all streams."""
    trouble: questions.Problems
    trouble, history, alerts, _ = await together(
        questions.problems(asked.watch),
        read_trends(asked, TOTALS),
        questions.alerts_reading(asked.watch),
        note_recurring(asked),
    )
    reading = trouble.seen.mapped(lambda seen: folded(seen, trouble.layouts))
    seen, done = reading.value, questions.rates_of(reading)
    sort = asked.words.get("sort", "worst")
    found = sorted_streams(seen, sort)
    listed = asked.count("count", STREAMS, STREAMS)
    every, paged = asked.paged(found, listed)
    rows = [_row(asked, stream, seen.at_ms, done) for stream in every]
    urgent, hints = (cards(asked, trouble.causes, hints=each) for each in (False, True))
    rows_here = max(ROWS + 1 - 2 * min(len(urgent), 4), _LEAST_ROWS)
    shown = _shown(asked, found, seen.at_ms, done, min(rows_here, ROWS))
    whole = totals(seen, done[0])
    charted, kept = await trends(asked, TOTALS, read=history)  # after the streams: its own figures include theirs
    facts: Facts = {
        "totals": whole,
        **problem_facts(asked, trouble),
        **alerts_facts(alerts),
        "streams": [_stream_facts(row, seen.at_ms, trouble.tiers) for row in rows],
        "refused": dict(seen.refused),
        "first": paged["first"],
        "history": trend_facts(charted, TOTALS),
        "beside": (besides := _beside(asked, trouble)),
    }
    view = {
        **shown,
        "needing": sum(map(len, urgent)),
        "urgent": urgent,
        "hints": hints,
        "alerts": alerts.value.alerts[:_ALERTS],
        "more_alerts": max(len(alerts.value.alerts) - _ALERTS, 0),
        "open_alerts": sum(one.closed_ms is None for one in alerts.value.alerts),
        "alerts_note": alerts.value.note,
        "totals": whole,
        "over_ms": reading.over_ms,
        "trends": charted,
        "refused": refused_lines(seen.refused),
        "sort": sort,
        "sorts": SORTS,
        "besides": besides,
        "tiers": trouble.tiers,
    }
    shell = [command_line(asked, "stream ls"), command_line(asked, "group ls")]
    source = WebPage.source(reading, *trouble.readings, alerts, kept)
    return WebPage("overview", "Overview", facts, view, shell, **source)


def _beside(asked: Asked, trouble: questions.Problems) -> Facts:
    """Return what else is on the server, from readings that were made for the problems; null for what is unknown."""
    workers, servers = trouble.readings[1].value, trouble.readings[-1].value
    seen = workers if workers.why is None else None
    limits = [limit for worker in seen.workers for sub in worker.subscribers for limit in sub.limits] if seen else []
    kept = [one.retention for one in servers if one.retention is not None]
    return {
        "limits": len({limit.name for limit in limits}) if seen else None,
        "limits_waiting": sum(limit.waiting for limit in limits) if seen else None,
        "recurring_schedules": asked.watch.recurring,
        "retention_removed": sum(one.removed or 0 for one in kept) if kept else None,
        "retention_removed_unread": sum(one.removed_unread or 0 for one in kept) if kept else None,
        **{f"cold_{name}": _cold(servers, name) for name in ("entries", "live_bytes")},
    }


def _cold(servers: Sequence[ServerStatus], name: str) -> int | None:
    """Return the sum of a figure about cold entries over all servers; None if none reports it."""
    known = [value for one in servers if isinstance(value := one.tier.get(name), int)]
    return sum(known) if known else None


def _row(asked: Asked, stream: StreamStatus, now_ms: int, done: questions.Rates) -> StreamRow:
    added = done[0].get(stream.key)
    groups = [group_row(asked, group, done[1].get((stream.key, group.name)), now_ms) for group in stream.groups]
    points = asked.watch.history.rates(stream.key)
    spark = sparkline(points, f"entries a second, now {rate_words(added)}") if any(y for _, y in points) else Markup("")
    last = stream.last_entry_id
    quiet = None if last is None else max(now_ms - int(last.partition("-")[0]), 0)
    return StreamRow(stream, groups, added, spark, quiet)


def _shown(
    asked: Asked, found: Sequence[StreamStatus], now_ms: int, done: questions.Rates, most: int
) -> dict[str, object]:
    """Return the template values of the table: the streams of the page, and the idle ones, which are folded."""
    idle = [one for one in found if _is_idle(one, now_ms, done[0])] if len(found) > _FEW else []
    folded = {one.key for one in idle}
    busy = [one for one in found if one.key not in folded]
    shown, paged = asked.paged(busy, asked.count("count", _fitting(busy, most), STREAMS))
    return {
        "rows": [_row(asked, _worst_first(stream, now_ms), now_ms, done) for stream in shown],
        **paged,
        "idle": idle[:_IDLE],
        "idle_found": len(idle),
        "most_groups": _GROUPS,
    }


def _worst_first(stream: StreamStatus, now_ms: int) -> StreamStatus:
    """Return a stream with its groups in the order of their oldest entry, if some of them are left out."""
    if len(stream.groups) <= _GROUPS:
        return stream

    def oldest(group: GroupStatus) -> int:
        return max(group.oldest_pending.age(now_ms) or 0, group.oldest_undelivered.age(now_ms) or 0)

    return replace(stream, groups=tuple(sorted(stream.groups, key=oldest, reverse=True)))


def _is_idle(stream: StreamStatus, now_ms: int, added: Mapping[str, float]) -> bool:
    """Return True if no group waits or holds entries, and no entry was added for long."""
    last = stream.last_entry_id
    old = last is None or now_ms - int(last.partition("-")[0]) >= _IDLE_MS
    waits = any(one.pending or not one.lag.known or one.lag.entries or one.unowned for one in stream.groups)
    return old and not waits and not added.get(stream.key) and "groups" not in stream.missing


def _fitting(found: Sequence[StreamStatus], most: int) -> int:
    """Return the number of streams for one page: as many as have this number of rows, the worst first."""
    rows = [max(min(len(one.groups), _GROUPS + 1), 1) for one in found]
    return max(next((at for at, whole in enumerate(accumulate(rows)) if whole > most), len(rows)), 1)


def _stream_facts(row: StreamRow, now_ms: int, tiers: Mapping[str, tuple[int, int]]) -> Facts:
    facts = stream_facts(row.stream, now_ms, row.added)
    facts["hot_bytes"], facts["cold_bytes"] = tiers.get(row.stream.key, (None, None))
    return {**facts, "groups": [group_facts(one.group, now_ms, one.rate) for one in row.groups]}


_MOST = 100


async def search_page(asked: Asked) -> WebPage:
    """Return the page with the names that match ``q``, or the entries of that id. Consumers hold entries.

    A name that fits alone, or that is the only one equal to ``q``, leads to its page.
    """
    wanted = asked.words.get("q", "")
    reading = await questions.everything(asked.watch)
    seen = reading.value
    looked = await asked.watch.read(("entries with", wanted), lambda line: streams_with(line, seen, wanted.strip()))
    entries = looked.value
    every = search(seen, wanted)
    found = every[:_MOST]
    facts: Facts = {"query": wanted, "found": len(every), "hits": [asdict(hit) for hit in found]}
    facts["entries"] = None if entries is None else [{"stream": key, "id": entry} for key, entry in entries]
    view = {"hits": [(hit, _place(asked, hit)) for hit in found], "entries": entries, "every": len(every)}
    shell = [command_line(asked, "stream find", wanted)]
    title = f"Find {name(wanted)}" if wanted else "Find"
    named = [hit for hit in every if hit.text == wanted] or every
    alone = _place(asked, named[0]) if len(named) == 1 and not entries else ""
    source = WebPage.source(reading, looked)
    return WebPage("search", title, facts, {**view, "wanted": wanted}, shell, **source, live=False, location=alone)


def _place(asked: Asked, hit: Hit) -> str:
    """Return the address of the page of a stream, a group or a consumer."""
    if hit.kind == "stream":
        return asked.link("/stream", key=hit.stream)
    return asked.link("/group", key=hit.stream, group=hit.group, consumer=hit.consumer)
