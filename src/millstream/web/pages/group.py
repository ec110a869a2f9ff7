"""One group: its lag or the reason that it is unknown, the trend, its consumers, and pending entries with payloads."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from millstream.errors import UsageError
from millstream.ops.asking import together
from millstream.ops.every import BY_NAME
from millstream.ops.findings.advice import advise
from millstream.ops.findings.causes import find_causes
from millstream.ops.findings.status import finding_facts
from millstream.ops.groups.owners import owners_near
from millstream.ops.groups.status import STUCK, consumer_facts, group_facts, is_idle, is_left, lag_facts
from millstream.ops.history.model import Subject
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import in_brief, payload_facts
from millstream.ops.pending.choosing import CHOOSING, GONE, choice_of, choice_options
from millstream.ops.pending.reading import PendingWanted
from millstream.ops.pending.status import PendingChoice, pending_facts
from millstream.ops.streams.status import ConsumerStatus
from millstream.ops.watching.questions import group_reading, pending_reading
from millstream.ops.words import name
from millstream.ops.workers.status import RunningJob, WorkersSeen, WorkerStatus
from millstream.web.page import Asked, FilterError, WebPage, at_field
from millstream.web.pages.common import cards, closed_actions, command_line, group_row, shown_advice
from millstream.web.pages.trends import group_plots, trend_facts, trends
from millstream.worker.registry import protocol

_OWNERS = 100  # largest number of partitions in the table
_RUNS = 20  # largest number of handlers with charts; any client may report thousands

ENTRIES, MOST = 15, 500
"""Default and largest number of pending entries on a page."""

Sort: TypeAlias = Literal["id", "idle", "deliveries"]

_ACTIONS = (
    "pending claim", "pending ack", "pending nack", "pending dead", "group rewind", "consumer rm", "worker reap",
    "group rm",
)  # fmt: skip

_ORDERS = ("worker pause", "worker resume")
_SORTS: tuple[Sort, ...] = ("id", "idle", "deliveries")


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer as a table row."""

    consumer: ConsumerStatus  # Status of the consumer
    worker: WorkerStatus | None  # Worker of the consumer; None if no live worker reports it
    job: RunningJob | None  # Longest-running entry of that worker
    hot: bool  # True if it holds entries and has not sent a request for long
    other: str = ""  # Other consumer that is proposed for its entries; empty for none


async def group_page(asked: Asked) -> WebPage:
    """Return the page of a group."""
    key, group_name = asked.word("key"), asked.word("group")
    choice = _choice(asked)
    sort: Sort = next((each for each in _SORTS if each == asked.words.get("sort")), "id")
    start = asked.words.get("start", "-")
    by = None if sort == "id" else sort
    wanted = PendingWanted(key, group_name, asked.count("count", ENTRIES, MOST), choice, by, start)
    state, held, owned, closed, orders = await together(
        group_reading(asked.watch, key, group_name),
        pending_reading(asked.watch, wanted),
        asked.watch.read(("owners", key, group_name), lambda line: owners_near(line, key, group_name)),
        closed_actions(asked, key),
        closed_actions(asked, protocol.CONTROL),
    )
    whole, owners = owned.value
    seen, page, done = state.value.seen, held.value, state.value.rate
    found = advise(state.value)
    row = group_row(asked, seen.group, done, seen.at_ms)
    pending = [(one, None if one.entry is None else EntryPayload(one.entry.fields)) for one in page.entries]
    plots = group_plots(key, group_name, _runs(state.value.workers, asked.watch.written.handlers, key, group_name))
    shown, kept = await trends(asked, plots, about=key, group=group_name)
    facts = {
        **group_facts(seen.group, seen.at_ms, done),
        "findings": [finding_facts(one, shown_advice(asked, one).remedy) for one in found],
        "lag_cause": lag_facts(seen.group),
        "consumer_list": [consumer_facts(each) for each in seen.consumers],
        "consumers_unknown": seen.consumers_why,
        "pending_list": [
            pending_facts(one, None if payload is None else payload_facts(payload)) for one, payload in pending
        ],
        "pending_next": page.next,
        "pending_looked_at": page.looked_at,
        "partition_list": [asdict(each) for each in owners] or None,
        "history": trend_facts(shown, plots),
    }
    closed = {**closed, **{name: why for name, why in orders.items() if name in _ORDERS}}
    view = {
        "closed": closed,
        "pause": state.value.workers.pause_of(key, group_name) if state.value.workers else None,
        "orders_here": [BY_NAME[each] for each in _ORDERS],
        "actions_here": [BY_NAME[each] for each in _ACTIONS],
        "row": row,
        "urgent": cards(asked, find_causes(found, [state.value]), here=True),
        "group": seen.group,
        "rate": done,
        "over_ms": state.over_ms,
        "repair": None if seen.group.lag.repair is None else shlex.join(seen.group.lag.repair),
        "trends": shown,
        "consumers": [_consumer_row(each, state.value.workers, seen.consumers) for each in seen.consumers],
        "consumers_why": seen.consumers_why,
        "owners": owners[:_OWNERS],
        "owners_found": len(owners),
        "unowned_parts": sum(one.owner is None for one in owners),
        "whole": whole,
        "pending": [(one, None if payload is None else in_brief(payload), is_left(one)) for one, payload in pending],
        "next": page.next if sort == "id" else None,
        "looked_at": page.looked_at,
        "choice": choice,
        "sort": sort,
        "sorts": _SORTS,
        "start": start,
    }
    shell = [
        command_line(asked, "group show", key, group_name),
        command_line(asked, "pending ls", key, group_name, options=_options(asked, sort)),
    ]
    if owners:
        shell.append(command_line(asked, "group owners", whole, group_name))
    source = WebPage.source(state, held, owned, kept)
    return WebPage("group", f"{name(group_name)} on {name(key)}", facts, view, shell, **source)


def _runs(workers: WorkersSeen | None, before: Iterable[Subject], key: str, group: str) -> list[Subject]:
    """Return handlers of a group as subjects of the history: of living workers, and then of earlier ones."""
    where = (key if workers is None else workers.named(key, group), group)
    alive = () if workers is None else [one for worker in workers.workers for one in worker.subscribers]
    now = {one.handler for one in alive if (one.stream, one.group) == where}
    names = [*sorted(now), *sorted({one[1] for one in before if one[2:] == where} - now)]
    return [("handler", name, *where) for name in sorted(names[:_RUNS])]


def _choice(asked: Asked) -> PendingChoice | None:
    """Return the filter for pending entries from the address; None for all."""
    try:
        found = choice_of({name: text for name, text in asked.words.items() if text})  # the others were left empty
    except UsageError as error:
        raise FilterError(*at_field((*CHOOSING, GONE), str(error))) from None
    return None if found == PendingChoice() else found


def _options(asked: Asked, sort: str) -> list[str]:
    """Return the filter as options of the command line."""
    return ["--payload", *(["--sort", sort] if sort != "id" else []), *choice_options(asked.words)]


def _consumer_row(
    consumer: ConsumerStatus, workers: WorkersSeen | None, every: Sequence[ConsumerStatus]
) -> ConsumerRow:
    """Return a consumer with the report of its worker."""
    others = [one for one in every if one.reads and one.name != consumer.name and one.name.isprintable()]
    other = _heir([(one, _worker(one, workers)) for one in others])
    where = (consumer.stream, consumer.group)
    worker = _worker(consumer, workers)
    job = next((job for job in worker.jobs if (job.stream, job.group) == where), None) if worker else None
    return ConsumerRow(consumer, worker, job, is_idle(consumer, worker), other)


def _worker(consumer: ConsumerStatus, workers: WorkersSeen | None) -> WorkerStatus | None:
    """Return the live worker that reports a consumer."""
    return None if workers is None else workers.holder(consumer.stream, consumer.group, consumer.name)


def _heir(others: Sequence[tuple[ConsumerStatus, WorkerStatus | None]]) -> str:
    """Return the consumer to propose for a claim: one of a worker that runs, and then one that asked recently."""
    fit = [
        (worker is None, one.idle_ms, one.name)
        for one, worker in others
        if (one.idle_ms < STUCK if worker is None else worker.state == "running" and not worker.ordered)
        and not is_idle(one, worker)
    ]
    return min(fit)[2] if fit else ""
