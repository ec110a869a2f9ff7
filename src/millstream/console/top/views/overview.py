"""What needs a person first, then every stream with its groups, the worst first; and what a name leads to."""

from typing import Any

from millstream.console import words
from millstream.console.model.advice import LEVELS, Advice
from millstream.console.model.facts.findings import advice_on, letters_waiting, lost_queries
from millstream.console.model.facts.overview import SORTS, sorted_streams, totals
from millstream.console.model.facts.search import search
from millstream.console.model.facts.streams import refused_lines, stream_facts
from millstream.console.model.streams import StreamsSeen, StreamStatus
from millstream.console.top.views.asked import GROUP_COLUMNS, TopAsked, all_findings, findings_section, group_row
from millstream.console.top.views.drawing import sparkline
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place
from millstream.console.watching.questions import (
    Rates,
    all_queries,
    everything,
    on_servers,
    rates_of,
    server_standing,
    worst_cases,
)
from millstream.console.watching.watch import Reading

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
    advice, sources = await _advice(asked, reading)
    found = sorted_streams(seen, asked.sort)
    rows = [row for stream in found[:STREAMS] for row in _rows(asked, stream, done, seen.at_ms)]
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
        **sources,
    )


async def findings_view(asked: TopAsked) -> TopView:
    """Everything that needs a person or is good to know, one by one with the facts that say so.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """
    reading = await everything(asked.watch)
    found, sources = await _advice(asked, reading)
    return TopView(
        title="findings",
        figures=tuple((level, words.count(sum(one.level == level for one in found))) for level in LEVELS),
        sections=(all_findings(asked, found, "findings"),) if found else (),
        notes=() if found else (_well(totals(reading.value, {})),),
        command_lines=(asked.shell("group", "ls"),),
        **sources,
    )


async def _advice(asked: TopAsked, reading: Reading[StreamsSeen]) -> tuple[list[Advice], dict[str, Any]]:
    """What there is to say of all streams, and what a view says of the readings it is made of.

    Raises:
        MillstreamError: the server does not answer.
    """
    seen = reading.value
    looked = await worst_cases(asked.watch, seen, rates_of(reading))
    queries = await all_queries(asked.watch)
    servers = await server_standing(asked.watch)
    besides = [*on_servers(servers), *lost_queries(queries.value, seen), *letters_waiting(seen)]
    return advice_on(looked.value, besides), asked.source(reading, looked, queries, servers)


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
        command_lines=(asked.shell("stream", "find", wanted),),
        **asked.source(reading),
    )
