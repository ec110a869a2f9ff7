"""The timeline of one entry's runs from the facts that a server and its workers hold, and the gaps in it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from millstream.client.dead_letter.letter import DeadLetter
from millstream.client.dead_letter.tries import LIMIT, FailedTry, parse_tries, tries_of
from millstream.client.jobs import record
from millstream.ops.audit import AuditEntry
from millstream.ops.entries.status import EntryFound, EntryStanding
from millstream.ops.words import Facts, is_time, milliseconds, picked
from millstream.ops.workers.status import WorkersSeen
from millstream.texts import plural, span_text
from millstream.times import score_ms

_TEXT = 2_000  # characters of an error or a value that are kept

ACKED = (
    "The entry was acknowledged, or the group was moved past it. A server keeps neither the time nor the consumer. "
    "Publish with result= to keep the end of a run."
)
EARLIER = "A server keeps the number of deliveries, not the times and consumers of the earlier ones."
ERRORS = f"The errors of the last {LIMIT} failed tries are kept. The logs of the workers have the others."
CRASHES = "No failure is on record for the earlier deliveries: their consumers ended, or they are not Millstream's."


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One known event."""

    at_ms: int | None  # Wall milliseconds; None if the time is not kept
    # published, died before, put back, delivered, failed, running, waits, passed, done, dead, cancelled, changed
    event: str
    text: str = ""  # Details, such as the error
    group: str | None = None  # Group of the event; None for the whole stream
    worker: str | None = None  # Worker or consumer, if it is known
    letter: tuple[str, str] | None = None  # Key and id of its dead letter


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """The runs of the entry in one group."""

    group: str
    state: str  # ``undelivered``, ``pending``, ``done``, ``dead``, ``cancelled`` or ``passed``
    events: tuple[TimelineEvent, ...]  # Events by time; those without a time are last, or first in a run that has ended
    unknown: tuple[str, ...]  # Facts that cannot be known, each with the reason


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """All that is known about the runs of one entry."""

    stream: str
    id: str
    gone: bool  # True if the stream does not have the entry any more
    events: tuple[TimelineEvent, ...]  # Events of the stream: its publication, earlier deaths
    groups: tuple[GroupRuns, ...]
    unknown: tuple[str, ...]  # Facts about all groups that cannot be known


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The facts that were read about an entry."""

    entry: EntryFound
    at_ms: int  # Wall milliseconds of the reading
    results: Mapping[str, bytes]  # Rows of the result's hash by group
    rows: Mapping[str, bytes | None]  # Row of the failure log by group
    cancelled: Mapping[str, bytes | None]  # Score among the cancelled entries by group
    letters: Sequence[tuple[str, str, DeadLetter]]  # Dead letters of the entry: key, id, contents
    workers: WorkersSeen
    changes: Sequence[AuditEntry] = ()  # Changes by people since the publication, the newest first
    unknown: list[str] = field(default_factory=list)  # Parts that were refused, or where reading stopped


def timeline_of(seen: FoundRuns) -> RunTimeline:
    """Return the timeline of an entry."""
    entry = seen.entry
    unknown = list(seen.unknown)
    if entry.refused is not None:
        unknown.append(f"The groups are unknown: {entry.refused}")
    if seen.workers.why is not None:
        unknown.append(f"The workers are unknown: {seen.workers.why}")
    return RunTimeline(
        entry.stream,
        entry.id,
        entry.entry is None,
        tuple(_published(seen)),
        tuple(_in_group(seen, standing) for standing in entry.standings),
        tuple(unknown),
    )


def _published(seen: FoundRuns) -> Iterator[TimelineEvent]:
    entry = seen.entry
    history: Sequence[Mapping[str, object]] = ()
    if entry.entry is not None:
        history = record.take_trailer(list(chain.from_iterable(entry.entry.fields)))[1]
    for death in history:
        error = str(death.get("error") or death.get("reason") or "")[:_TEXT]
        group = death.get("group")
        died, back = _ms(death.get("died_ms")), _ms(death.get("returned_ms"))
        name = group if isinstance(group, str) else None
        yield TimelineEvent(died, "died before", f"as {death.get('id', 'an entry')!s:.60}: {error}", name)
        yield TimelineEvent(back, "put back", "edited" if death.get("edited") is True else "", name)
    if is_time(entry.id):
        yield TimelineEvent(milliseconds(entry.id), "published", "by the time in its id")
    else:
        yield TimelineEvent(None, "published", "its id is not a time")


def _in_group(seen: FoundRuns, standing: EntryStanding) -> GroupRuns:
    group, unknown = standing.group, list[str]()
    events = [*_changes(seen, group), *_running(seen, group)]
    failures, tries = _failures(seen.rows.get(group))
    deliveries = 0
    if standing.pending is not None:
        held, deliveries = standing.pending, standing.pending.deliveries
        who, times = held.consumer, "fatal" if held.fatal else plural(deliveries, "delivery", "deliveries")
        if held.due_in_ms is not None:
            events.append(TimelineEvent(None, "waits", f"due in {span_text(held.due_in_ms)}; {times} so far"))
        elif held.idle_ms is None:
            events.append(TimelineEvent(None, "waits", f"released, without a consumer; {times} so far"))
        else:
            events.append(TimelineEvent(seen.at_ms - held.idle_ms, "delivered", f"the last of {times}", worker=who))
    letters = [one for _, _, one in seen.letters if one.group == group]
    end = record.parse_result(seen.results.get(group)) or {}
    ends = [*_letters(seen, group), *_end(end, letters)]
    tries = (*tries, *chain.from_iterable(one.tries for one in letters), *tries_of(end.get("tries")))
    errors = [TimelineEvent(one.at_ms, "failed", one.error, worker=one.consumer) for one in dict.fromkeys(tries)]
    more = [TimelineEvent(None, "failed", plural(failures, "failed try", "failed tries"))] if failures else []
    events += [*(errors or more), *ends]
    if (mark := seen.cancelled.get(group)) is not None and not ends:
        events.append(TimelineEvent(score_ms(mark), "cancelled", "ordered, not carried out yet"))
    tried = max([deliveries, *(letter.deliveries for letter in letters)])
    if tried > 1:
        unknown.append(EARLIER)
    if failures > len(errors) or (letters and tried > 1 + len(errors)):
        unknown.append(ERRORS)
    if not failures and 1 < deliveries < 2**62:
        unknown.append(CRASHES)
    if standing.state == "passed" and not ends:
        unknown.append(ACKED)
        events.append(TimelineEvent(None, "passed", "acknowledged, or the group was moved past it"))
    state = standing.state if standing.state != "passed" or not ends else ends[-1].event
    # The end of a run has a time, and what has none came before it
    ordered = sorted(events, key=lambda one: ((one.at_ms is None) != bool(ends), one.at_ms or 0))
    return GroupRuns(group, state, tuple(ordered), tuple(unknown))


def _changes(seen: FoundRuns, group: str) -> Iterator[TimelineEvent]:
    """Yield the changes by people whose recorded commands or entries name this entry."""
    named = re.compile(rf"(?<![\d-]){re.escape(seen.entry.id)}(?![\d-])")
    for one in seen.changes:
        here = one.stream == seen.entry.stream and one.group in ("", group)
        held = any(each.id == seen.entry.id for each in one.held or ())
        if here and (held or named.search(one.commands) or named.search(one.line)):
            yield TimelineEvent(milliseconds(one.id), "changed", f"{one.action} by {one.who or one.user}"[:_TEXT])


def _running(seen: FoundRuns, group: str) -> Iterator[TimelineEvent]:
    for worker in seen.workers.workers:
        for job in worker.jobs:
            if (job.stream, job.group, job.id) == (seen.entry.stream, group, seen.entry.id):
                yield TimelineEvent(job.since_ms, "running", f"in {job.handler[:_TEXT]}", worker=worker.id[:_TEXT])


def _letters(seen: FoundRuns, group: str) -> Iterator[TimelineEvent]:
    for key, ident, letter in seen.letters:
        if letter.group == group:
            times, who = plural(letter.deliveries, "delivery", "deliveries"), letter.consumer
            yield TimelineEvent(None, "delivered", f"{times}, the last to this consumer", worker=who)
            text = f"after {times}: {letter.error or letter.reason}"[:_TEXT]
            yield TimelineEvent(letter.died_ms, "dead", text, worker=who, letter=(key, ident))


def _end(end: Mapping[str, object], letters: Sequence[DeadLetter]) -> Iterator[TimelineEvent]:
    """Yield the end in the entry's result; a death that a letter shows too is not repeated."""
    if not end or (end["state"] == "dead" and letters):
        return
    about = end.get("error") if end["state"] == "dead" else end.get("value")
    yield TimelineEvent(_ms(end.get("at_ms")), str(end["state"]), "" if about is None else str(about)[:_TEXT])


def _failures(row: bytes | None) -> tuple[int, tuple[FailedTry, ...]]:
    """Return the number of failures in a row of the failure log and the last ones; none if it cannot be parsed."""
    first, *parts = (row or b"").split(b":", 3)
    count = int(first) if first.isdigit() and len(first) < 10 else 0
    return count, parse_tries(parts[2]) if len(parts) == 3 else ()


def _ms(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def event_facts(one: TimelineEvent) -> Facts:
    """Return an event as data."""
    key, ident = one.letter or (None, None)
    return {
        **picked(one, "at_ms event"),
        "text": one.text or None,
        **picked(one, "group worker"),
        "dead_letter_key": key,
        "dead_letter": ident,
    }


def timeline_facts(one: RunTimeline) -> dict[str, Any]:
    """Return a timeline as data."""
    return {
        **picked(one, "stream id gone"),
        "events": [event_facts(each) for each in one.events],
        "groups": [
            {
                **picked(each, "group state"),
                "events": [event_facts(event) for event in each.events],
                "unknown": list(each.unknown),
            }
            for each in one.groups
        ],
        "unknown": list(one.unknown),
    }
