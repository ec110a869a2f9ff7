"""One stream: where each group stands in it, and its entries, by id and time, in either order, live."""

import time
from dataclasses import dataclass
from typing import Any

from millstream.client.line import Line
from millstream.console.changes.actions import BY_NAME
from millstream.console.model.entries import EntryView
from millstream.console.model.names import milliseconds
from millstream.console.model.replies import entry_view
from millstream.console.model.streams import StreamsSeen, StreamStatus
from millstream.console.payloads.entry import EntryPayload
from millstream.console.reading import streams
from millstream.console.reading.asking import calls, checked
from millstream.console.web.charts.ground import Standing, ground
from millstream.console.web.charts.small import sparkline
from millstream.console.web.facts import group_facts, payload_facts, stream_facts
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.change import closed_actions
from millstream.console.web.pages.common import GroupRow, command_line, group_row, rates_of
from millstream.console.web.pages.window import ENTRIES, MOST, Window, window
from millstream.console.web.shown import Shown, in_brief, light
from millstream.console.web.words import count, name, plural, rate, span

_GROUPS_DRAWN = 20


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry in the table."""

    id: str
    at_ms: int
    fields: list[Shown]


async def stream_page(asked: Asked) -> WebPage:
    """A stream.

    Raises:
        MillstreamError: it is not there, the words of the address are wrong, the server does not answer.
    """
    key = asked.word("key")
    now_ms = time.time_ns() // 1_000_000
    wanted = window(asked.words, now_ms, asked.count("count", ENTRIES, MOST))
    state = await asked.watch.read(("stream", key), lambda line: _state(asked, line, key))
    entries = await asked.watch.read(("entries", key, wanted), lambda line: _entries(line, key, wanted))
    seen, (views, earlier, later) = state.value, entries.value
    stream, (added, group_rates) = seen.streams[0], rates_of(state)
    groups = [group_row(asked, each, group_rates.get((key, each.name)), seen.at_ms) for each in stream.groups]
    payloads = [EntryPayload(view.fields) for view in views]
    rates = asked.watch.history.rates(key)
    facts = {
        **stream_facts(stream, seen.at_ms, added.get(key)),
        "groups": [group_facts(one.group, seen.at_ms, one.rate) for one in groups],
        "entries": [
            {"id": view.id, "added_ms": milliseconds(view.id), "fields": payload_facts(payload)}
            for view, payload in zip(views, payloads, strict=True)
        ],
    }
    view = {
        "closed": await closed_actions(asked, key),
        "actions_here": [BY_NAME[each] for each in ("group create", "stream rm")],
        "stream": stream,
        "groups": groups,
        "now": seen.at_ms,
        "added": added.get(key),
        "spark": sparkline(rates, f"entries a second, now {rate(added.get(key))}"),
        "first_ms": _ms(stream.first_entry_id),
        "last_ms": _ms(stream.last_entry_id),
        "ground": _ground(stream, groups, seen.at_ms),
        "entries": [
            EntryRow(each.id, milliseconds(each.id), in_brief(payload))
            for each, payload in zip(views, payloads, strict=True)
        ],
        "window": wanted,
        **_paging(views, wanted, earlier=earlier, later=later),
    }
    shell = [command_line(asked, "stream", "show", key), command_line(asked, "stream", "tail", key)]
    return WebPage("stream", name(key), facts, view, shell, **WebPage.source(state, entries))


async def _state(asked: Asked, line: Line, key: str) -> StreamsSeen:
    seen = await streams.read_one(line, key)
    asked.watch.history.note(seen.streams, seen.at_ms)
    return seen


async def _entries(line: Line, key: str, wanted: Window) -> tuple[list[EntryView], bool, bool]:
    """The entries of a page in its order; whether there are some before the first and behind the last."""
    (reply,) = await calls(line, [wanted.command(key)])
    rows, earlier, later = wanted.cut(checked(reply, key))
    return [light(entry_view(key, row)) for row in rows], earlier, later


def _paging(views: list[EntryView], wanted: Window, *, earlier: bool, later: bool) -> dict[str, Any]:
    """The words of the addresses of the pages before and behind this one."""
    back, on = ("after", "before") if wanted.newest_first else ("before", "after")
    nowhere = {"before": None, "after": None}
    return {
        "to_first": {**nowhere, back: views[0].id} if views and earlier else None,
        "to_next": {**nowhere, on: views[-1].id} if views and later else None,
    }


def _ground(stream: StreamStatus, groups: list[GroupRow], now_ms: int) -> Any:
    """Where each group stands; nothing for a stream without groups or entries."""
    if not groups or stream.first_entry_id is None or stream.last_entry_id is None:
        return ""
    standings = []
    for one in groups[:_GROUPS_DRAWN]:
        group = one.group
        delivered = milliseconds(group.last_delivered_id)
        pending = group.oldest_pending.id
        lag = f"{count(group.lag.entries)} behind" if group.lag.known else "lag unknown"
        held = f", {plural(group.pending, 'entry', 'entries')} pending" if group.pending else ""
        age = f", the oldest for {span(group.oldest_pending.age(now_ms))}" if pending else ""
        standings.append(Standing(name(group.name), delivered or None, _ms(pending), lag + held + age, one.stuck))
    return ground(standings, milliseconds(stream.first_entry_id), milliseconds(stream.last_entry_id))


def _ms(entry: str | None) -> int | None:
    return None if entry is None else milliseconds(entry)
