"""One stream: the position of each group in it, and its entries by id and time, in either order, live."""

from collections.abc import Sequence

from millstream.client.partitions.layout import HIGHEST_ID
from millstream.ops.asking import together
from millstream.ops.every import ACTIONS, BY_NAME
from millstream.ops.groups.status import group_facts
from millstream.ops.later.status import schedule_facts, stream_schedules_facts
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import in_brief, payload_facts
from millstream.ops.server.retention import rule_text
from millstream.ops.streams.partitioned import PartitionedStream
from millstream.ops.streams.status import StreamsSeen, StreamStatus, stream_facts
from millstream.ops.streams.storage import StreamStorage, read_storage, storage_facts
from millstream.ops.watching.questions import (
    all_queries,
    archive_reading,
    partitioned_reading,
    rates_of,
    stream_reading,
)
from millstream.ops.words import EntryView, Facts, milliseconds, name, rate
from millstream.web.charts import sparkline
from millstream.web.entries import ENTRIES, KINDS, MOST, Window, filters, listed_entries, paging, window
from millstream.web.page import Asked, WebPage
from millstream.web.pages import common
from millstream.web.pages.schedules import scheduled
from millstream.web.pages.trends import stream_plots, trend_facts, trends

_OPEN = 8  # largest number of drawn positions that are not folded
_LAGS = 4  # largest number of lags in the chart of a partitioned stream

_ACTIONS = (
    *(one for one in ACTIONS if one.noun == "stream" and one.name != "stream add"),
    BY_NAME["group create"],
    BY_NAME["worker reap"],
)


async def stream_page(asked: Asked) -> WebPage:
    """Return the page of a stream."""
    key = asked.word("key")
    now_ms = asked.watch.line.wall_time()
    wanted, sought = window(asked.words, now_ms, asked.count("count", ENTRIES, MOST)), filters(asked.words)
    path, question = asked.settings.archive, ("entries", key, wanted, sought)
    whole, state, later, entries, queries, closed, *archived = await together(
        partitioned_reading(asked.watch, key),
        stream_reading(asked.watch, key),
        asked.watch.read(("scheduled", key), lambda line: scheduled(line, key)),
        asked.watch.read(question, lambda line: listed_entries(line, key, wanted, sought)),
        all_queries(asked.watch),
        common.closed_actions(asked, key),
        *([] if path is None else [archive_reading(asked.watch, path)]),
    )
    seen: StreamsSeen = state.value
    parted: PartitionedStream | None = whole.value
    summed = () if parted is None else [group.name for group in parted.status.groups[:_LAGS]]
    plots = stream_plots(key, summed)
    keys = () if parted is None else tuple(one.key for one in parted.parts.streams)
    receiving = () if parted is None else parted.layout.keys
    stored, (shown, kept) = await together(
        asked.watch.read(("storage", key), lambda line: read_storage(line, key, keys, receiving)),
        trends(asked, plots, about=key),
    )
    found, views = entries.value, entries.value.entries
    if parted is not None:
        state = whole.mapped(lambda one: seen if one is None else one.seen)
    seen, (added, group_rates) = state.value, rates_of(state)
    stream = seen.streams[0]
    groups = [common.group_row(asked, each, group_rates.get((key, each.name)), seen.at_ms) for each in stream.groups]
    payloads = [EntryPayload(view.fields) for view in views]
    rates = asked.watch.history.rates(key)
    facts = {
        **stream_facts(stream, seen.at_ms, added.get(key)),
        **storage_facts(stored.value),
        "retention_differs": stored.value.differs,
        "groups": [group_facts(one.group, seen.at_ms, one.rate) for one in groups],
        "partition_list": None if parted is None else [_partition(parted, one) for one in parted.parts.streams],
        "entries": [
            {"id": view.id, "added_ms": milliseconds(view.id), "fields": payload_facts(payload)}
            for view, payload in zip(views, payloads, strict=True)
        ],
        "scheduled": stream_schedules_facts(later.value)
        | {"first": [schedule_facts(one, later.value.at_ms) for one in later.value.schedules]},
        "history": trend_facts(shown, plots),
        "looked_at": found.looked_at,
        "looked_up_to": found.last,
        "more": found.further,
    }
    standings = [
        *(standing for one in archived for standing in common.archive_standings(one.value.streams, key)),
        *common.query_standings(queries.value, key),
        *(common.group_standing(one.group, seen.at_ms, stuck=one.stuck) for one in groups),  # a table has it too
    ]
    view = {
        "closed": closed,
        "actions_here": [one for one in _ACTIONS if one.name != "stream unseal" or _sealed(parted)],
        "stream": stream,
        "trends": shown,
        "stored": stored.value,
        "kept": _kept(stored.value),
        "parted": parted,
        "sealed_id": HIGHEST_ID,
        "groups": groups,
        "added": added.get(key),
        "over_ms": state.over_ms,
        "spark": sparkline(rates, f"entries a second, now {rate(added.get(key))}"),
        "first_ms": _ms(stream.first_entry_id),
        "last_ms": _ms(stream.last_entry_id),
        "ground": common.standings_drawn(stream, standings),
        "many": len(standings) > _OPEN,
        "entries": [
            (view.id, milliseconds(view.id), in_brief(payload)) for view, payload in zip(views, payloads, strict=True)
        ],
        "later": later.value,
        "laters": [(one, in_brief(one.payload)) for one in later.value.schedules],
        "window": wanted,
        "sought": sought,
        "found": found,
        "pinned": _pinned(views, wanted),
        "files": [(kind, asked.link(f"/stream.{kind}", **asked.kept)) for kind in KINDS],
        **paging(found, wanted),
    }
    shell = [common.command_line(asked, "stream show" if parted is None else "stream balance", key)]
    shell += [common.command_line(asked, "stream tail", key, options=sought.words)]
    source = WebPage.source(state, stored, later, entries, queries, *archived, kept)
    return WebPage("stream", name(key), facts, view, shell, **source)


def _kept(stored: StreamStorage) -> str:
    """Return the retention in words; empty if the stream keeps everything, or if the rules are unknown."""
    if stored.differs:
        return "the partitions have different rules of retention"
    return "" if stored.rule is None else rule_text(stored.rule, holds=stored.holds)


def _sealed(parted: PartitionedStream | None) -> bool:
    """Return True if the number of partitions was changed, so that the change can be withdrawn."""
    return parted is not None and any(part.last_id == HIGHEST_ID for part in parted.parts.streams)


def _partition(parted: PartitionedStream, part: StreamStatus) -> Facts:
    """Return the facts of one partition."""
    names, none = ("owner", "fence", "lease_ms"), (None, None, None)
    return {
        "key": part.key,
        "sealed": part.last_id == HIGHEST_ID,
        "length": part.length,
        "share": parted.share[part.key],
        "groups": [
            {
                "group": group.name,
                "lag": group.lag.entries,
                "pending": group.pending,
                **dict(zip(names, parted.owners.get((part.key, group.name), none), strict=True)),
            }
            for group in part.groups
        ],
    }


def _pinned(views: Sequence[EntryView], wanted: Window) -> dict[str, str | None]:
    """Return the parameters of a lasting link to exactly these entries; empty if there are none."""
    if not views:
        return {}
    first, last = (views[-1].id, views[0].id) if wanted.newest_first else (views[0].id, views[-1].id)
    return {"from": first, "to": last, "before": None, "after": None}


def _ms(entry: str | None) -> int | None:
    return None if entry is None else milliseconds(entry)
