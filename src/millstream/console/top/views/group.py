"""One group: its lag or why it is not known, what is wrong, its consumers, and what is pending with payloads."""

from typing import Any

from millstream.console import words
from millstream.console.changes.writing import raw_line
from millstream.console.forms.makers import choice_of, choice_options
from millstream.console.model.advice import Case, advise
from millstream.console.model.facts.marks import is_idle, is_left
from millstream.console.model.facts.pending import pending_facts
from millstream.console.model.facts.streams import group_facts
from millstream.console.model.pending import PendingChoice, PendingEntry, PendingOrder
from millstream.console.model.streams import ConsumerStatus
from millstream.console.payloads.entry import EntryPayload
from millstream.console.top.views.asked import TopAsked, lag_words, payload_words, whole_findings
from millstream.console.top.views.drawing import sparkline
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place
from millstream.console.watching.questions import PendingWanted, group_reading, pending_reading

ENTRIES = 100
"""Pending entries that are listed."""

ACTIONS = ("pending claim", "pending ack", "pending nack", "group rewind", "consumer rm", "group rm")

_SORTS: dict[str, PendingOrder | None] = {"id": None, "idle": "idle", "deliveries": "deliveries"}

_CONSUMERS = (
    ViewColumn("consumer", prose=True),
    ViewColumn("pending", right=True),
    ViewColumn("idle for", right=True),
    ViewColumn("nothing new for", right=True, rank=2),
    ViewColumn("worker", rank=1),
    ViewColumn("in hand", rank=3, prose=True),
)
_PENDING = (
    ViewColumn("id"),
    ViewColumn("consumer", prose=True),
    ViewColumn("idle for", right=True),
    ViewColumn("times", right=True),
    ViewColumn("fields", prose=True),
)


async def group_view(asked: TopAsked) -> TopView:
    """A group; with ``consumer`` or ``unowned`` only of what that one, or nobody, holds.

    Raises:
        MillstreamError: it is not there, the server does not answer.
    """
    key, name = asked.word("key"), asked.word("group")
    choice = choice_of(asked.words)
    by = _SORTS.get(asked.sort)
    wanted = PendingWanted(key, name, ENTRIES, None if choice == PendingChoice() else choice, by)
    state = await group_reading(asked.watch, key, name)
    held = await pending_reading(asked.watch, wanted)
    case, page = state.value, held.value
    seen = case.seen
    found = [one for one in advise(case) if one.code != "lag-unknown"]  # which the notes say
    title = "pending entries"
    title += "" if choice.consumer is None else f" of {words.name(choice.consumer)}"
    title += ", held by nobody" if choice.unowned else ""
    title += ", gone from the stream" if choice.gone else ""
    title += f", the first {len(page.entries)} of {seen.group.pending}" if page.next is not None else ""
    options = [*choice_options(asked.words), *(("--sort", asked.sort) if by is not None else ())]
    return TopView(
        title=words.name(name),
        figures=_figures(asked, case),
        notes=_notes(case),
        sections=(
            *([whole_findings(asked, found)] if found else []),
            ViewSection("consumers", _CONSUMERS, tuple(_consumer_row(case, one) for one in seen.consumers),
                        seen.consumers_why or "No consumers."),
            ViewSection(title, _PENDING, tuple(_pending_row(one) for one in page.entries),
                        "Nothing is pending."),
        ),
        command_lines=(
            asked.shell("pending", "ls", key, name, *options, "--payload"),
            asked.shell("group", "show", key, name),
        ) if options else (
            asked.shell("group", "show", key, name),
            asked.shell("pending", "ls", key, name, "--payload"),
        ),
        about={"key": key, "group": name, **({"consumer": choice.consumer} if choice.consumer else {})},
        actions=ACTIONS,
        sorts=tuple(_SORTS),
        **asked.source(state, held),
    )  # fmt: skip


def _figures(asked: TopAsked, case: Case) -> tuple[tuple[str, str], ...]:
    group, now_ms = case.seen.group, case.seen.at_ms
    facts: dict[str, Any] = group_facts(group, now_ms, case.rate)
    trend = sparkline([moment.most for moment in asked.watch.history.lags(group.stream, group.name)], 16)
    found = [
        ("lag", lag_words(group.lag) + (" (counted)" if group.lag.known and group.lag.reason else "")),
        ("behind by", words.span(facts["undelivered_age_ms"])),
        ("pending", words.count(group.pending)),
        ("oldest", words.span(facts["pending_age_ms"])),
        ("unowned", words.count(group.unowned)),
        *([("delayed", words.count(group.delayed))] if group.delayed else []),
        ("in", words.rate(facts["added_per_second"])),
        ("out", words.rate(facts["delivered_per_second"])),
        ("done in", words.span(facts["drain_ms"])),
        ("last delivered", group.last_delivered_id),
    ]
    return tuple([*found, ("trend", trend)] if trend else found)


def _notes(case: Case) -> tuple[str, ...]:
    """Why the lag is not known, and what helps."""
    lag = case.seen.group.lag
    if not lag.why:
        return ()
    said = [f"The server does not know the lag: {lag.why}"]
    said += [] if lag.repair is None else [f"this repairs it: {raw_line(lag.repair)}"]
    return ("; ".join([*said, lag.repair_note] if lag.repair_note else said),)


def _consumer_row(case: Case, one: ConsumerStatus) -> ViewRow:
    where = (one.stream, one.group)
    worker = None if case.workers is None else case.workers.holder(*where, one.name)
    job = next((job for job in worker.jobs if (job.stream, job.group) == where), None) if worker else None
    state = "-" if worker is None else f"{worker.id} ({worker.state})"
    cells = (
        words.name(one.name) if one.name else "(nobody)",
        words.count(one.pending),
        words.span(one.idle_ms),
        words.span(one.inactive_ms),
        words.brief(state, 30),
        "-" if job is None else f"{job.id} in {words.name(job.handler)} for {words.span(job.for_ms)}",
    )
    about = {"key": one.stream, "group": one.group, "consumer": one.name}
    to = place("group", key=one.stream, group=one.group, consumer=one.name or None, unowned=None if one.name else "1")
    return ViewRow(f"consumer {one.name!r}", cells, to, "!" if is_idle(one, worker) else "", about)


def _pending_row(entry: PendingEntry) -> ViewRow:
    payload = "" if entry.entry is None else payload_words(EntryPayload(entry.entry.fields))
    facts = pending_facts(entry)
    cells = (
        entry.id,
        "(nobody)" if facts["unowned"] else words.name(entry.consumer),
        words.idle(entry.idle_ms, entry.due_in_ms),
        "fatal" if facts["fatal"] else words.count(entry.deliveries),
        "(gone from the stream)" if facts["gone"] else payload,
    )
    about = {"key": entry.stream, "group": entry.group, "ids": entry.id}
    to = place("entry", key=entry.stream, id=entry.id)
    return ViewRow(f"pending {entry.id}", cells, to, "!" if is_left(entry) else "", about)
