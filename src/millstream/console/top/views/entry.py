"""One entry: how it stands in each group, and its fields decoded, whole."""

from millstream.console import words
from millstream.console.changes.positions import entry_id
from millstream.console.model.entry.standing import EntryStanding
from millstream.console.model.names import milliseconds
from millstream.console.payloads.entry import EntryPayload
from millstream.console.payloads.shown import Shown, in_full
from millstream.console.reading.entries import find
from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place

_LINES = 400  # of a value
_WIDE = 1000  # letters of one of them

_STANDINGS = (
    ViewColumn("group", prose=True),
    ViewColumn("state"),
    ViewColumn("consumer", prose=True),
    ViewColumn("idle for", right=True),
    ViewColumn("times", right=True),
)


async def entry_view(asked: TopAsked) -> TopView:
    """An entry.

    Raises:
        MillstreamError: there is no such stream, the id is not valid, the server does not answer.
    """
    key, entry = asked.word("key"), entry_id(asked.word("id"))
    reading = await asked.watch.read(("entry found", key, entry), lambda line: find(line, key, entry))
    found = reading.value
    fields = [] if found.entry is None else in_full(EntryPayload(found.entry.fields))
    notes = [f"Its groups are not known: {found.refused}"] if found.refused else []
    standings = tuple(_row(key, entry, one) for one in found.standings)
    return TopView(
        title=entry,
        figures=(("stream", words.name(key)), ("added", words.ago(reading.at_ms - milliseconds(entry)))),
        notes=tuple(notes),
        sections=(
            ViewSection("in each group", _STANDINGS, standings, "No groups."),
            fields_section(fields, "It is no longer in the stream." if found.entry is None else "It has no fields."),
        ),
        command_lines=(asked.shell("stream", "get", key, entry),),
        about={"key": key},
        **asked.source(reading),
    )


def fields_section(fields: list[Shown], empty: str) -> ViewSection:
    """The fields of an entry, laid out over lines.

    Args:
        fields: decoded.
        empty: what is said where there are none.
    """
    rows = []
    for number, one in enumerate(fields):
        lines = one.text.split("\n")
        under = [line[:_WIDE] for line in lines[:_LINES]] if len(lines) > 1 else []
        under += [f"... and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
        under += [f"... and {one.cut} more letters"] if one.cut else []
        under += [one.note] if one.note else []
        first = lines[0] if len(lines) == 1 else ""
        cells = (words.name(one.name), one.form, words.size(one.size), first)
        rows.append(ViewRow(f"field {number}", cells, under=tuple(under)))
    columns = (ViewColumn("field", prose=True), ViewColumn("form", rank=1), ViewColumn("size", right=True, rank=2),
               ViewColumn("value", prose=True))  # fmt: skip
    return ViewSection("fields", columns, tuple(rows), empty)


def _row(key: str, entry: str, one: EntryStanding) -> ViewRow:
    held = one.pending
    cells = (
        words.name(one.group),
        {"passed": "done, or skipped"}.get(one.state, one.state),
        words.DASH if held is None else "(nobody)" if held.unowned else words.name(held.consumer),
        words.DASH if held is None else words.idle(held.idle_ms, held.due_in_ms),
        words.count(None if held is None else held.deliveries),
    )
    about = {"key": key, "group": one.group, **({"ids": entry} if held is not None else {})}
    return ViewRow(f"standing {one.group!r}", cells, place("group", key=key, group=one.group), "", about)
