"""What needs a person first, then every stream with its groups, the worst first; and what a name leads to."""

from typing import Any

from millstream.console import words
from millstream.console.model.facts.findings import advice_on, letters_waiting
from millstream.console.model.facts.overview import SORTS, sorted_streams, totals
from millstream.console.model.facts.search import search
from millstream.console.model.facts.streams import refused_lines, stream_facts
from millstream.console.model.streams import StreamStatus
from millstream.console.top.views.asked import GROUP_COLUMNS, TopAsked, findings_section, group_row
from millstream.console.top.views.drawing import sparkline
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place
from millstream.console.watching.questions import Rates, everything, rates_of, worst_cases

STREAMS = 200
"""Streams that are listed; a filter, or the way by a name, leads to the others."""

_FOUND = 100


async def overview_view(asked: TopAsked) -> TopView:
    """All streams.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """
    reading = await everything(asked.watch)
    seen, done = reading.value, rates_of(reading)
    looked = await worst_cases(asked.watch, seen, done)
    found = sorted_streams(seen, asked.sort)
    rows = [row for stream in found[:STREAMS] for row in _rows(asked, stream, done, seen.at_ms)]
    advice = advice_on(looked.value, letters_waiting(seen))
    urgent = [one for one in advice if one.level != "hint"]
    hints = [one for one in advice if one.level == "hint"]
    sections = [findings_section(asked, urgent)] if urgent else []
    sections.append(ViewSection("streams and groups", GROUP_COLUMNS, tuple(rows), "There are no streams."))
    if hints:
        sections.append(findings_section(asked, hints, "hints"))
    notes = refused_lines(seen.refused)
    notes += (
        [f"{len(found) - STREAMS} more streams: `:` and a part of a name finds them"] if len(found) > STREAMS else []
    )
    return TopView(
        title="overview",
        figures=_figures(totals(seen, done[0])),
        notes=tuple(notes) if urgent else (*notes, _well(totals(seen, done[0]))),
        sections=tuple(sections),
        command_lines=(asked.shell("group", "ls"), asked.shell("stream", "ls")),
        actions=("audit undo",),
        sorts=SORTS,
        **asked.source(reading, looked),
    )


def _figures(facts: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        ("streams", words.count(facts["streams"])),
        ("groups", words.count(facts["groups"])),
        ("entries", words.count(facts["entries"])),
        ("added", words.rate(facts["added_per_second"])),
        ("pending", words.count(facts["pending"])),
        ("unowned", words.count(facts["unowned"])),
        ("behind by", words.span(facts["undelivered_age_ms"])),
        ("oldest pending", words.span(facts["pending_age_ms"])),
    )


def _well(facts: dict[str, Any]) -> str:
    """That nothing needs a person, where that is so."""
    if facts["waiting"]:
        return f"Nothing is stuck, but {words.plural(facts['waiting'], 'group has', 'groups have')} entries that wait."
    return "Nothing needs a person."


def _rows(asked: TopAsked, stream: StreamStatus, done: Rates, now_ms: int) -> list[ViewRow]:
    """A stream, and its groups below it.

    Args:
        asked: for whom.
        stream: as it was read.
        done: how streams and groups did of late.
        now_ms: wall milliseconds of the reading.
    """
    facts: dict[str, Any] = stream_facts(stream, now_ms, done[0].get(stream.key))
    rates = sparkline([rate for _, rate in asked.watch.history.rates(stream.key)])
    cells = (
        words.name(stream.key),
        words.plural(stream.length, "entry", "entries"),
        "",
        "",
        "",
        "",
        words.rate(facts["added_per_second"]),
        "",
        rates,
    )
    groups = [group_row(asked, group, done[1].get((stream.key, group.name)), now_ms) for group in stream.groups]
    to = place("stream", key=stream.key)
    return [ViewRow(f"stream {stream.key!r}", cells, to, "", {"key": stream.key}), *groups]


async def find_view(asked: TopAsked) -> TopView:
    """Streams, groups and consumers with a part of a name.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """
    wanted = asked.words.get("name", "")
    reading = await everything(asked.watch)
    hits = search(reading.value, wanted)
    rows = []
    for number, hit in enumerate(hits[:_FOUND]):
        to = place("stream" if hit.group is None else "group", key=hit.stream, group=hit.group, consumer=hit.consumer)
        cells = (hit.kind, words.name(hit.text), words.name(hit.stream), words.name(hit.group) if hit.group else "")
        rows.append(ViewRow(f"hit {number}", cells, to, "", to.names))
    columns = (
        ViewColumn("what"),
        ViewColumn("name", prose=True),
        ViewColumn("stream", prose=True),
        ViewColumn("group"),
    )
    return TopView(
        title=f"find {words.brief(wanted)}",
        sections=(ViewSection(f"{len(hits)} found", columns, tuple(rows), "No name has this in it."),),
        command_lines=(asked.shell("stream", "ls", f"*{wanted}*"),),
        **asked.source(reading),
    )
