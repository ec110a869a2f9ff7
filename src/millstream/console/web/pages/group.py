"""One group: its lag or why it is not known, the trend, its consumers, and what is pending, with payloads."""

import shlex
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.console.changes.actions import BY_NAME
from millstream.console.model.advice import Case
from millstream.console.model.pending import PendingChoice, PendingEntry, PendingPage
from millstream.console.model.streams import ConsumerStatus
from millstream.console.model.workers import RunningJob, WorkersSeen, WorkerStatus
from millstream.console.payloads.entry import EntryPayload
from millstream.console.reading import pending
from millstream.console.reading.case import read_case
from millstream.console.web.charts.trend import trend
from millstream.console.web.facts import consumer_facts, group_facts, lag_facts, pending_facts
from millstream.console.web.page import Asked, NoPageError, WebPage
from millstream.console.web.pages.change import closed_actions
from millstream.console.web.pages.common import STUCK, command_line, group_row, rates_of, trend_words
from millstream.console.web.pages.findings import finding_facts, findings
from millstream.console.web.shown import Shown, in_brief, light
from millstream.console.web.watch import Reading
from millstream.console.web.words import name

ENTRIES, MOST = 50, 500
"""Pending entries of a page, and at most."""

Sort: TypeAlias = Literal["id", "idle", "deliveries"]

_ACTIONS = ("pending claim", "pending ack", "pending nack", "group rewind", "consumer rm", "group rm")

_SORTS: tuple[Sort, ...] = ("id", "idle", "deliveries")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which pending entries a page shows."""

    key: str
    group: str
    choice: PendingChoice | None
    sort: Sort
    start: str
    count: int


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A pending entry in the table."""

    entry: PendingEntry
    fields: list[Shown] | None
    hot: bool


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer in the table.

    Attributes:
        consumer: as it was read.
        worker: it belongs to; None where none that is alive says so.
        job: what its worker has in hand for longest.
        hot: it holds entries and has asked for nothing for long.
    """

    consumer: ConsumerStatus
    worker: WorkerStatus | None
    job: RunningJob | None
    hot: bool


async def group_page(asked: Asked) -> WebPage:
    """A group.

    Raises:
        MillstreamError: there is none, the words of the address are wrong, the server does not answer.
    """
    key, group_name = asked.word("key"), asked.word("group")
    choice = _choice(asked)
    sort: Sort = next((each for each in _SORTS if each == asked.words.get("sort")), "id")
    start = asked.words.get("start", "-")
    wanted = Wanted(key, group_name, choice, sort, start, asked.count("count", ENTRIES, MOST))
    state = await asked.watch.read(("group", key, group_name), lambda line: _state(asked, line, key, group_name))
    held = await asked.watch.read(wanted, lambda line: _pending(line, wanted))
    seen, page = state.value.seen, held.value
    done = rates_of(_streams_of(state))[1].get((key, group_name))
    noted = findings(asked, [replace(state.value, rate=done)])
    row = group_row(asked, seen.group, done, seen.at_ms)
    moments = asked.watch.history.lags(key, group_name)
    most = [moment.most for moment in moments]
    facts = {
        **group_facts(seen.group, seen.at_ms, done),
        "findings": [finding_facts(one) for one in noted],
        "lag_cause": lag_facts(seen.group),
        "consumer_list": [consumer_facts(each) for each in seen.consumers],
        "consumers_unknown": seen.consumers_why,
        "pending_list": [pending_facts(each) for each in page.entries],
        "pending_next": page.next,
        "pending_looked_at": page.looked_at,
    }
    view = {
        "closed": await closed_actions(asked, key),
        "actions_here": [BY_NAME[each] for each in _ACTIONS],
        "row": row,
        "urgent": [one for one in noted if one.advice.level != "hint"],
        "group": seen.group,
        "stream": seen.stream,
        "now": seen.at_ms,
        "rate": done,
        "repair": None if seen.group.lag.repair is None else shlex.join(seen.group.lag.repair),
        "trend": trend(moments, f"Lag of {name(group_name)}: {trend_words(moments)}") if any(most) else "",
        "unsure": any(moment.value is None for moment in moments),
        "watched_ms": moments[-1].at_ms - moments[0].at_ms if moments else 0,
        "consumers": [_consumer_row(each, state.value.workers) for each in seen.consumers],
        "consumers_why": seen.consumers_why,
        "pending": [_pending_row(each) for each in page.entries],
        "next": page.next if sort == "id" else None,
        "looked_at": page.looked_at,
        "choice": choice,
        "sort": sort,
        "sorts": _SORTS,
        "start": start,
    }
    shell = [
        command_line(asked, "group", "show", key, group_name),
        command_line(asked, "pending", "ls", key, group_name, *_options(asked, choice, sort)),
    ]
    return WebPage("group", f"{name(group_name)} on {name(key)}", facts, view, shell, **WebPage.source(state, held))


async def _state(asked: Asked, line: Line, key: str, group_name: str) -> Case:
    found = await read_case(line, key, group_name)
    asked.watch.history.note(found.seen.streams.streams, found.seen.at_ms)
    return found


async def _pending(line: Line, wanted: "Wanted") -> PendingPage:
    """A page of pending entries with their payloads."""
    words = (line, wanted.key, wanted.group)
    if wanted.sort == "id":
        found = await pending.page(*words, start=wanted.start, count=wanted.count, choice=wanted.choice, payload=True)
    else:
        found = await pending.worst(*words, by=wanted.sort, count=wanted.count, choice=wanted.choice, payload=True)
    return replace(found, entries=tuple(_light(each) for each in found.entries))


def _light(entry: PendingEntry) -> PendingEntry:
    """A pending entry without the rest of its long values."""
    return entry if entry.entry is None else replace(entry, entry=light(entry.entry))


def _choice(asked: Asked) -> PendingChoice | None:
    """Which pending entries the address asks for; None for all.

    Raises:
        NoPageError: a word is no length of time, or no number.
    """
    idle, deliveries = asked.words.get("idle", "").strip(), asked.words.get("deliveries", "").strip()
    try:
        idle_ms = times.span(idle) if idle else None
    except ValueError as reason:
        raise NoPageError(f"idle {idle!r}: {reason}") from None
    if deliveries and not (deliveries.isascii() and deliveries.isdigit() and len(deliveries) < 19):
        raise NoPageError(f"deliveries {deliveries!r} is no number")
    found = PendingChoice(
        asked.words.get("consumer") or None, idle_ms, int(deliveries) if deliveries else None, "unowned" in asked.words
    )
    return None if found == PendingChoice() else found


def _options(asked: Asked, choice: PendingChoice | None, sort: str) -> list[str]:
    """The same choice as options of the shell."""
    found = ["--payload"] + (["--sort", sort] if sort != "id" else [])
    if choice is None:
        return found
    found += ["--consumer", choice.consumer] if choice.consumer is not None else []
    found += ["--idle", asked.words["idle"].strip()] if choice.idle_ms is not None else []
    found += ["--deliveries", str(choice.deliveries)] if choice.deliveries is not None else []
    return found + (["--unowned"] if choice.unowned else [])


def _streams_of(state: Reading[Case]) -> Reading[Any]:
    """The same reading, of the stream alone."""
    before = None if state.before is None else Reading(state.before.value.seen.streams, state.before.at_ms, 0, (), 0)
    return Reading(state.value.seen.streams, state.at_ms, 0, (), 0, before=before)


def _consumer_row(consumer: ConsumerStatus, workers: WorkersSeen | None) -> ConsumerRow:
    """A consumer, and what its worker says.

    Args:
        consumer: as it was read.
        workers: everybody who works; None where nobody knows.
    """
    where = (consumer.stream, consumer.group)
    worker = None if workers is None else workers.holder(*where, consumer.name)
    job = next((job for job in worker.jobs if (job.stream, job.group) == where), None) if worker else None
    stuck = consumer.pending > 0 and consumer.idle_ms >= STUCK
    return ConsumerRow(consumer, worker, job, stuck or (worker is not None and worker.blocked_at is not None))


def _pending_row(entry: PendingEntry) -> PendingRow:
    fields = None if entry.entry is None else in_brief(EntryPayload(entry.entry.fields))
    return PendingRow(entry, fields, entry.unowned or (entry.idle_ms or 0) >= STUCK)
