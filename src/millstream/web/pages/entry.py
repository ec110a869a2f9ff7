"""One entry: its content, decoded, and its state in each group."""

import contextlib
from typing import Any

from millstream.client.dead_letter.letter import PREFIX
from millstream.client.line import Command, Line
from millstream.ops.asking import NotReadableError, calls, checked, together
from millstream.ops.entries.reading import find
from millstream.ops.entries.status import EntryFound
from millstream.ops.jobs.reading import job_of
from millstream.ops.jobs.status import JobSeen, group_facts
from millstream.ops.payloads.decode import FORMS, Form
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.payloads.shown import in_full, payload_facts
from millstream.ops.streams.partitioned import partitions_with
from millstream.ops.words import milliseconds, name
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import closed_actions, command_line
from millstream.web.planned import planned_here

_STATES = {"passed": "done"}
"""State -> its word in the JSON facts, which must not change."""
_LETTER = PREFIX + b"fields"  # field that each dead letter has
_FIELDS = 20  # largest number of fields on the page
_HELD = ("consumer", "idle_ms", "due_in_ms", "deliveries")  # facts of a pending entry


async def entry_page(asked: Asked) -> WebPage:
    """Return the page of an entry."""
    key, entry = asked.word("key"), asked.entry_id("id")
    reading, closed = await together(
        asked.watch.read(("entry", key, entry), lambda line: _read(line, key, entry)), closed_actions(asked, key)
    )
    found, before, after, job, others = reading.value
    key = found.stream
    as_form: Form | None = next((form for form in FORMS if form == asked.words.get("as")), None)
    payload = None if found.entry is None else EntryPayload(found.entry.fields, as_form)
    facts = {
        "stream": key,
        "id": entry,
        "added_ms": milliseconds(entry),
        "gone": found.entry is None,
        "fields": None if payload is None else payload_facts(payload),
        "groups": [
            {
                "group": one.group,
                "state": _STATES.get(one.state, one.state),
                **{name: getattr(one.pending, name, None) for name in _HELD},
            }
            for one in found.standings
        ],
        "job": None if job is None else [group_facts(one) for one in job.groups],
    }
    aside, aside_why = None, ""
    if "aside" in asked.words and asked.settings.allow_changes:
        words = {"do": "pending dead", "key": key, "group": asked.words["aside"], "ids": entry}
        words |= {"reason": asked.words["reason"]} if asked.words.get("reason") else {}
        aside, aside_why = await planned_here(asked, words)
    view = {
        "key": key,
        "others": others,
        "id": entry,
        "added_ms": milliseconds(entry),
        "stands": found.standings,
        "fields": None if payload is None else in_full(payload),
        "forms": FORMS,
        "form": as_form,
        "before": before,
        "after": after,
        "jobs": [] if job is None else [(one, group_facts(one)) for one in job.groups],
        "closed": closed if asked.settings.allow_changes else {},
        "aside": aside,
        "aside_why": aside_why,
        "letter_here": found.entry is not None and any(name == _LETTER for name, _ in found.entry.fields),
        "most": _FIELDS,
    }
    shell = [command_line(asked, "stream get", key, entry)]
    return WebPage("entry", f"{entry} in {name(key)}", facts, view, shell, **WebPage.source(reading))


async def _read(
    line: Line, key: str, entry: str
) -> tuple[EntryFound, str | None, str | None, JobSeen | None, list[str]]:
    """Return an entry as it was found, its neighbours' ids, its job if any, and further partitions with its id."""
    key, *others = await partitions_with(line, key, entry)
    found = await find(line, key, entry)
    commands: list[Command] = [
        ("XREVRANGE", key, f"({entry}", "-", "COUNT", 1),
        ("XRANGE", key, f"({entry}", "+", "COUNT", 1),
    ]
    before, after = [checked(reply, key) for reply in await calls(line, commands)]
    job = None
    with contextlib.suppress(NotReadableError):  # there is none, or this user may not read results
        job = await job_of(line, found)
    return found, _id(before), _id(after), job, others


def _id(rows: Any) -> str | None:
    return str(rows[0][0].decode()) if rows else None
