"""The state of the server: memory, clients, its log on disk, replicas, commands; its alerts, and changes by people."""

import asyncio
import shlex
from contextlib import aclosing
from dataclasses import asdict, replace
from datetime import datetime

from millstream.client.line import Line
from millstream.client.ranges import LAST
from millstream.ops.actions import form_of
from millstream.ops.alerts.status import Alert
from millstream.ops.asking import together
from millstream.ops.audit import AuditEntry, entries
from millstream.ops.server.reading import server
from millstream.ops.server.retention import Matched, matched, retention_facts, rule_facts
from millstream.ops.server.status import CommandCost, ServerStatus
from millstream.ops.watching import questions
from millstream.ops.words import Facts, brief, picked, raw_line
from millstream.texts import time_text
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import alerts_facts, cards, command_line, problem_facts
from millstream.web.pages.trends import SERVER, trend_facts, trends

_ALERTS = 25  # number of alerts, or of changes, on one page
_DAY = 86_400_000
_COSTS = 12  # number of commands in the table of costs
_SLOW = 10  # number of slow commands in the table, unless the address has ``slow=all``
_NAMED = 5  # number of streams that a rule of retention names
_TIER = (
    ("entries", "Cold entries", "count"),
    ("live_bytes", "Their size", "size"),
    ("bytes", "Packs on disk", "size"),
    ("hot_bytes", "Blocks in memory that can go", "size"),
    ("cache_bytes", "Cache", "size"),
    ("reads", "Reads", "count"),
    ("misses", "Reads that waited for the disk", "count"),
    ("parked_clients", "Clients that wait for the disk", "count"),
    ("last_spill_status", "Last move to a pack", "count"),
    ("spill_failures", "Failed moves", "count"),
    ("damaged_extents", "Damaged parts", "count"),
)
_FAULTS = frozenset({"last_spill_status", "spill_failures", "damaged_extents"})
_LETTERS = 160  # characters of a slow command


async def health_page(asked: Asked) -> WebPage:
    """Return the page of the server, or of one node of a cluster and a list of all."""
    trouble: questions.Problems
    reading, trouble, (shown, kept) = await together(
        asked.watch.read("server", server), questions.problems(asked.watch), trends(asked, SERVER)
    )
    nodes: list[ServerStatus] = reading.value
    keys = tuple(stream.key for stream in trouble.seen.value.streams)
    rules = [(node.retention and node.retention.text) or "" for node in nodes]
    ruled = [await asyncio.to_thread(matched, text, keys) for text in rules]
    facts: Facts = {"servers": [_facts(node, each) for node, each in zip(nodes, ruled, strict=True)]}
    facts |= {"history": trend_facts(shown, SERVER), **problem_facts(asked, trouble)}
    most = None if asked.words.get("slow") == "all" else _SLOW
    number = asked.count("node", 1, len(nodes))
    node = nodes[number - 1]
    view = {
        "nodes": nodes,
        "number": number,
        "node": node,
        "costs": _costs(node),
        "slow": [(slow, brief(raw_line(slow.words), _LETTERS)) for slow in node.slow[:most]],
        "rules": [(rule_facts(rule), there[:_NAMED], len(there)) for rule, there in ruled[number - 1]],
        "tier": _tier(node),
        "urgent": cards(asked, trouble.causes),
        "trends": shown,
    }
    shell = [command_line(asked, does) for does in ("server show", "server slow", "doctor")]
    source = WebPage.source(reading, trouble.seen, *trouble.readings, kept)
    return WebPage("health", "Server", facts, view, shell, **source)


async def alerts_page(asked: Asked) -> WebPage:
    """Return the page of open and past alerts, also of those alone that were open on one day in UTC."""
    reading = await questions.alerts_reading(asked.watch)
    day = asked.words.get("day", "")
    start = _start(day)
    found = [one for one in reading.value.alerts if start is None or _on(one, start, reading.at_ms)]
    shown, paged = asked.paged(found, _ALERTS)
    facts = {**alerts_facts(reading), "found": len(found)}
    view = {
        "alerts": shown,
        **paged,
        "day": day,
        "is_wrong": day and start is None,
        "days": [("All", None), ("Today", _date(reading.at_ms)), ("Yesterday", _date(reading.at_ms - _DAY))],
        "seen": reading.value,
    }
    return WebPage("alerts", "Alerts", facts, view, [command_line(asked, "alert ls")], **WebPage.source(reading))


async def changes_page(asked: Asked) -> WebPage:
    """Return the page of the changes by people, the newest first, each with a link to its undo."""
    end = asked.entry_id("from") if "from" in asked.words else LAST
    reading = await asked.watch.read(("changes", end), lambda line: _changes(line, end))
    found, after = reading.value[:_ALERTS], reading.value[_ALERTS:]
    facts = {"changes": [picked(one, "id change action stream group who line undo note done") for one in found]}
    rows = [(one, _undo_link(asked, one)) for one in found]
    view = {"changes": rows, "next": after[0].id if after else None, "is_first": "from" not in asked.words}
    return WebPage("changes", "Changes", facts, view, [command_line(asked, "audit ls")], **WebPage.source(reading))


async def _changes(line: Line, end: bytes | str) -> list[AuditEntry]:
    """Read one page of changes, and the first of the next page."""
    found: list[AuditEntry] = []
    async with aclosing(entries(line, end=end)) as rows:
        async for one in rows:
            found.append(replace(one, held=()))
            if len(found) > _ALERTS:
                break
    return found


def _undo_link(asked: Asked, one: AuditEntry) -> str:
    """Return the address of the preview of a change's undo; empty if there is none, or if the console is read-only."""
    try:
        words = form_of(shlex.split(one.undo)) if asked.settings.allow_changes else None
    except ValueError:  # it was cut
        return ""
    return asked.link("/change", **words) if words else ""


def _start(day: str) -> int | None:
    """Return the time at which a day begins in UTC; None if the text is not a date."""
    try:
        return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1000)
    except ValueError:
        return None


def _on(one: Alert, start_ms: int, now_ms: int) -> bool:
    """Return True if an alert was open on the day that begins at a time."""
    end = now_ms if one.closed_ms is None else one.closed_ms
    return one.began_ms < start_ms + _DAY and end >= start_ms


def _date(at_ms: int) -> str:
    return time_text(at_ms).partition("T")[0]


def _costs(node: ServerStatus) -> list[tuple[CommandCost, float]]:
    """Return the most expensive commands, each with its share of the total time in percent."""
    whole = sum(cost.microseconds for cost in node.costs) or 1
    return [(cost, 100 * cost.microseconds / whole) for cost in node.costs[:_COSTS]]


def _tier(node: ServerStatus) -> list[tuple[str, int | str, str, bool]]:
    """Return the figures about cold entries that the server reports: title, value, unit, and True for a fault."""
    return [
        (title, value, "" if isinstance(value, str) else unit, name in _FAULTS and value not in (0, "ok", "none"))
        for name, title, unit in _TIER
        if (value := node.tier.get(name)) is not None
    ]


def _facts(node: ServerStatus, ruled: Matched) -> Facts:
    return {**asdict(node), "retention": retention_facts(node.retention, ruled), "tier": dict(node.tier) or None}
