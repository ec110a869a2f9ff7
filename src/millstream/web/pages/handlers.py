"""Handlers over all workers, one handler by worker and version, and the timeline of one entry's runs."""

import asyncio
from dataclasses import replace
from typing import Any

from millstream.client.line import Line
from millstream.ops.handlers.reading import read_handlers, read_timeline
from millstream.ops.handlers.status import HandlerStatus, figure_facts, handler_facts, part_facts, spent
from millstream.ops.handlers.timeline import RunTimeline, timeline_facts
from millstream.ops.streams.partitioned import partitions_with
from millstream.ops.watching.watch import Reading
from millstream.ops.words import milliseconds, name
from millstream.web.page import Asked, NoPageError, WebPage
from millstream.web.pages.common import command_line
from millstream.web.pages.trends import TOTALS, handler_plots, mark_words, read_trends, trend_facts, trends

HANDLERS = 25
"""Number of handlers on one page, and of workers on the page of one handler."""


async def handlers_page(asked: Asked) -> WebPage:
    """Return the page of all handlers, or of the one that the address names."""
    reading, _ = await asyncio.gather(
        asked.watch.read("handlers", lambda line: read_handlers(line, cut=True)), read_trends(asked, TOTALS)
    )
    seen = reading.value.with_past(one[1:] for one in asked.watch.written.handlers)
    if "handler" in asked.words:
        wanted = tuple(asked.word(each) for each in ("key", "group", "handler"))
        one = next((each for each in seen.handlers if (each.stream, each.group, each.handler) == wanted), None)
        if one is None:
            raise NoPageError(seen.why or f"no worker has run the handler {name(wanted[2])!r} in this group")
        return await _handler_page(asked, one, reading)
    found = [one for one in seen.handlers if _is_wanted(asked, one)]
    shown, paged = asked.paged(found, HANDLERS)
    facts = {
        "handlers": [handler_facts(one) for one in shown],
        "found": len(found),
        "unknown": seen.why,
        "schedules_unknown": seen.schedules_why,
        "left_out": seen.left_out,
    }
    view = {
        "rows": [(one, spent(one.whole)) for one in shown],
        **paged,
        "seen": seen,
        "workers": len({part.worker for one in seen.handlers for part in one.parts}),
        "chosen": asked.words.get("worker") or asked.words.get("group") or asked.words.get("key"),
    }
    return WebPage("handlers", "Handlers", facts, view, [command_line(asked, "handler ls")], **WebPage.source(reading))


def _is_wanted(asked: Asked, one: HandlerStatus) -> bool:
    """Return True if the page's address selects this handler, by its stream, group or worker."""
    wanted = asked.words
    return (
        wanted.get("key", one.stream) == one.stream
        and wanted.get("group", one.group) == one.group
        and ("worker" not in wanted or any(part.worker == wanted["worker"] for part in one.parts))
    )


async def _handler_page(asked: Asked, one: HandlerStatus, reading: Reading[Any]) -> WebPage:
    """Return the page of one handler, by worker and by version, with its history."""
    plots = handler_plots([("handler", one.handler, one.stream, one.group)])
    charted, kept = await trends(asked, plots, one.stream, one.group)
    parts, versions = one.by_worker(), one.by_version()
    shown, paged = asked.paged(parts, HANDLERS)
    last = max(charted.marks, key=lambda mark: mark.at_ms, default=None)
    facts = {
        **handler_facts(one),
        "versions": [{"version": version, **figure_facts(sums)} for version, sums in versions],
        "worker_list": [part_facts(*each) for each in shown],
        "last_change": last and {"at_ms": last.at_ms, "kind": last.kind, "text": last.text},
        "history": trend_facts(charted, plots),
    }
    jobs = sorted((job for part in one.parts for job in part.sub.jobs), key=lambda job: -job.for_ms)
    view = {
        "one": one,
        "times": spent(one.whole),
        "parts": [(part, sums, spent(sums)) for part, sums in shown],
        "versions": [(version, sums, spent(sums)) for version, sums in versions[:HANDLERS]],
        "jobs": jobs[:HANDLERS],
        "trends": charted,
        "last": last and (last.at_ms, mark_words(last)),
        **paged,
    }
    shell = [command_line(asked, "handler show", one.stream, one.group, one.handler)]
    return WebPage("handler", name(one.handler), facts, view, shell, **WebPage.source(reading, kept))


async def run_page(asked: Asked) -> WebPage:
    """Return the timeline of the runs of one entry."""
    key, entry = asked.word("key"), asked.entry_id("id")

    async def work(line: Line) -> tuple[RunTimeline, list[str]]:
        first, *others = await partitions_with(line, key, entry)
        return await read_timeline(line, first, entry), others

    reading = await asked.watch.read(("run", key, entry), work)
    found, others = reading.value
    first = sorted(found.groups, key=lambda one: one.state in {"undelivered", "passed"})
    groups = [replace(one, events=one.events[:HANDLERS]) for one in first]
    view = {"run": found, "groups": groups, "key": found.stream, "id": entry, "began_ms": milliseconds(entry)}
    view["others"] = others
    shell = [command_line(asked, "handler timeline", found.stream, entry)]
    return WebPage("run", f"Runs of {entry}", timeline_facts(found), view, shell, **WebPage.source(reading))
