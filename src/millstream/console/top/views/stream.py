"""One stream: its figures, its groups, and its newest entries."""

from typing import Any

from millstream.client.line import Line
from millstream.console import words
from millstream.console.model.entries import EntryView
from millstream.console.model.facts.streams import stream_facts
from millstream.console.model.names import milliseconds
from millstream.console.model.replies import entry_view
from millstream.console.payloads.entry import EntryPayload
from millstream.console.payloads.shown import light
from millstream.console.reading.asking import calls, checked
from millstream.console.top.views.asked import GROUP_COLUMNS, TopAsked, group_row, payload_words
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place
from millstream.console.watching.questions import rates_of, stream_reading

ENTRIES = 50
"""Entries that are listed, the newest or the oldest."""

_ENTRY_COLUMNS = (ViewColumn("id"), ViewColumn("added", rank=1), ViewColumn("fields", prose=True))


async def stream_view(asked: TopAsked) -> TopView:
    """A stream.

    Raises:
        MillstreamError: it is not there, the server does not answer.
    """
    key, oldest = asked.word("key"), asked.sort == "oldest"
    reading = await stream_reading(asked.watch, key)
    entries = await asked.watch.read(("entries", key, oldest), lambda line: _entries(line, key, oldest=oldest))
    seen, done = reading.value, rates_of(reading)
    stream = seen.streams[0]
    facts: dict[str, Any] = stream_facts(stream, seen.at_ms, done[0].get(key))
    groups = [group_row(asked, group, done[1].get((key, group.name)), seen.at_ms) for group in stream.groups]
    rows = [_entry_row(key, entry, entries.at_ms) for entry in entries.value]
    return TopView(
        title=words.name(key),
        figures=(
            ("entries", words.count(stream.length)),
            ("added", words.rate(facts["added_per_second"])),
            ("ever added", words.count(facts["entries_added"])),
            ("last id", stream.last_id),
            ("groups", words.count(facts["groups"])),
            ("pending", words.count(facts["pending"])),
            ("unowned", words.count(facts["unowned"])),
        ),
        notes=tuple(f"{name} is not known: {why}" for name, why in stream.missing.items()),
        sections=(
            ViewSection("groups", GROUP_COLUMNS, tuple(groups), "No groups."),
            ViewSection(f"{'oldest' if oldest else 'newest'} entries", _ENTRY_COLUMNS, tuple(rows), "No entries."),
        ),
        command_lines=(asked.shell("stream", "show", key), asked.shell("stream", "tail", key)),
        about={"key": key},
        actions=("group create", "stream rm"),
        sorts=("newest", "oldest"),
        **asked.source(reading, entries),
    )


async def _entries(line: Line, key: str, *, oldest: bool) -> list[EntryView]:
    command = ("XRANGE", key, "-", "+") if oldest else ("XREVRANGE", key, "+", "-")
    (reply,) = await calls(line, [(*command, "COUNT", ENTRIES)])
    return [light(entry_view(key, row)) for row in checked(reply, key)]


def _entry_row(key: str, entry: EntryView, now_ms: int) -> ViewRow:
    cells = (entry.id, words.ago(now_ms - milliseconds(entry.id)), payload_words(EntryPayload(entry.fields)))
    return ViewRow(f"entry {entry.id}", cells, place("entry", key=key, id=entry.id), "", {"key": key})
