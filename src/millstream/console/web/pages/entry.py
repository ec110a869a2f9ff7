"""One entry: what is in it, decoded, and how it stands in each group."""

from dataclasses import dataclass
from typing import Any

from millstream.client.line import Line
from millstream.console.model.entries import EntryView
from millstream.console.model.names import milliseconds, order
from millstream.console.model.pending import PendingEntry
from millstream.console.model.replies import entry_view, pending_entry
from millstream.console.model.streams import StreamsSeen
from millstream.console.payloads.decode import FORMS, Form
from millstream.console.payloads.entry import EntryPayload
from millstream.console.reading import streams
from millstream.console.reading.asking import calls, checked
from millstream.console.web.facts import payload_facts
from millstream.console.web.page import Asked, NoPageError, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.web.shown import in_full
from millstream.console.web.words import name


@dataclass(frozen=True, slots=True)
class Stand:
    """How an entry stands in one group: ``undelivered``, ``pending`` or ``done``."""

    group: str
    state: str
    pending: PendingEntry | None = None


@dataclass(frozen=True, slots=True)
class EntrySeen:
    """An entry as it was read, and its neighbours."""

    seen: StreamsSeen
    entry: EntryView | None
    pending: dict[str, PendingEntry]
    before: str | None
    after: str | None


async def entry_page(asked: Asked) -> WebPage:
    """An entry.

    Raises:
        MillstreamError: there is no such stream, the id is none, the server does not answer.
    """
    key, entry = asked.word("key"), asked.word("id")
    try:
        order(entry)
    except ValueError:
        raise NoPageError(f"{entry!r} is no entry's id: they look like 1763721600000-0") from None
    reading = await asked.watch.read(("entry", key, entry), lambda line: _read(line, key, entry))
    found = reading.value
    stands = [_stand(found, group.name, group.last_delivered_id, entry) for group in found.seen.streams[0].groups]
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
                "state": one.state,
                "consumer": one.pending.consumer if one.pending else None,
                "idle_ms": one.pending.idle_ms if one.pending else None,
                "deliveries": one.pending.deliveries if one.pending else None,
            }
            for one in stands
        ],
    }
    view = {
        "key": key,
        "id": entry,
        "now": found.seen.at_ms,
        "added_ms": milliseconds(entry),
        "stands": stands,
        "fields": None if payload is None else in_full(payload),
        "forms": FORMS,
        "form": as_form,
        "before": found.before,
        "after": found.after,
    }
    shell = [command_line(asked, "stream", "get", key, entry)]
    return WebPage("entry", f"{entry} in {name(key)}", facts, view, shell, **WebPage.source(reading))


async def _read(line: Line, key: str, entry: str) -> EntrySeen:
    seen = await streams.read_one(line, key)
    groups = [group.name for group in seen.streams[0].groups if group.pending]
    commands: list[tuple[str | int, ...]] = [
        ("XRANGE", key, entry, entry),
        ("XREVRANGE", key, f"({entry}", "-", "COUNT", 1),
        ("XRANGE", key, f"({entry}", "+", "COUNT", 1),
        *(("XPENDING", key, group, entry, entry, 1) for group in groups),
    ]
    rows, before, after, *held = [checked(reply, key) for reply in await calls(line, commands)]
    pending = {group: pending_entry(key, group, found[0]) for group, found in zip(groups, held, strict=True) if found}
    return EntrySeen(seen, entry_view(key, rows[0]) if rows else None, pending, _id(before), _id(after))


def _id(rows: Any) -> str | None:
    return str(rows[0][0].decode()) if rows else None


def _stand(found: EntrySeen, group: str, delivered: str, entry: str) -> Stand:
    """How the entry stands in one group.

    Args:
        found: what was read.
        group: name of the group.
        delivered: its last delivered id.
        entry: id of the entry.
    """
    pending = found.pending.get(group)
    if pending is not None:
        return Stand(group, "pending", pending)
    return Stand(group, "undelivered" if order(entry) > order(delivered) else "done")
