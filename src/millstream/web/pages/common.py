"""Common parts of several pages: rows of groups, findings, and the positions of readers in a stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from millstream.ops.actions import form_of
from millstream.ops.alerts.status import AlertsSeen, alert_facts
from millstream.ops.every import ACTIONS
from millstream.ops.findings.advice import Advice
from millstream.ops.findings.causes import Affected, Cause, cause_facts, causes_of
from millstream.ops.findings.status import by_kind, evidence_text, finding_facts, place_of
from millstream.ops.groups.status import GroupRate, is_late, is_stuck
from millstream.ops.rights import rights_on
from millstream.ops.spark.status import ArchivedStream, QueriesSeen
from millstream.ops.streams.status import GroupStatus, StreamStatus
from millstream.ops.watching.history import Point
from millstream.ops.watching.questions import Problems
from millstream.ops.watching.watch import Reading
from millstream.ops.words import Facts, command_words, count, milliseconds, name, raw_line, shell_line, span
from millstream.texts import plural
from millstream.web.charts import Standing, ground, sparkline
from millstream.web.page import Asked
from millstream.worker.registry import protocol


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as a table row."""

    group: GroupStatus  # Status of the group
    rate: GroupRate | None  # Recent rates of the group
    spark: Markup  # Chart of the lag
    late: bool  # True if the oldest unread entry is old
    stuck: bool  # True if the oldest pending entry is old, or has no consumer


def group_row(asked: Asked, group: GroupStatus, rate: GroupRate | None, now_ms: int) -> GroupRow:
    """Return a group as a table row."""
    late, stuck = is_late(group, now_ms), is_stuck(group, now_ms)
    points = asked.watch.history.lags(group.stream, group.name)
    spark = sparkline(points, trend_words(points), hot=late) if any(y for _, y in points) else Markup("")
    return GroupRow(group, rate, spark, late, stuck)


def trend_words(points: Sequence[Point]) -> str:
    """Return a trend as text for screen readers."""
    if len(points) < 2:
        return ""
    (start, first), (end, last) = points[0], points[-1]
    way = "rising" if last > first else "falling" if last < first else "level"
    return f"lag {way}, from {first:,.0f} to {last:,.0f} in {(end - start) / 1000:.0f} s"


async def closed_actions(asked: Asked, key: str) -> dict[str, str]:
    """Return the unavailable actions with the reason: the console is read-only, or the user lacks the right."""
    if not asked.settings.allow_changes:
        return {action.name: "the console is read-only: start it with --allow-changes" for action in ACTIONS}
    rights = await asked.watch.read(("rights", key), lambda line: rights_on(line, key))
    return rights.value.closed(registry=key == protocol.CONTROL)


def command_line(asked: Asked, does: str, *names: str, options: Iterable[str] = ()) -> list[str]:
    """Return the command line that shows the same facts of this server."""
    return asked.watch.server.command_line(*command_words(does, *names, options=options)[1:])


@dataclass(frozen=True, slots=True)
class ShownAdvice:
    """A finding as a page shows it."""

    advice: Advice  # Finding
    href: str  # Address of the page about its subject
    place: str  # Group and stream as text
    evidence: str  # Evidence as text
    remedy: str  # Command line of the remedy; empty if there is none
    raw: str  # Raw command of the remedy; empty if there is none, or if there is a command line
    form: str = ""  # Address of the remedy's preview; empty if it is not a change, or the console is read-only
    act: str = ""  # Address of the page with changes of the subject; empty if the console is read-only


def shown_advice(asked: Asked, advice: Advice) -> ShownAdvice:
    """Return a finding as a page shows it."""
    remedy = "" if advice.remedy is None else shell_line(asked.watch.server.command_line(*advice.remedy[1:]))
    raw = "" if remedy or not advice.raw else raw_line(advice.raw[0])
    change = form_of(advice.remedy) if advice.remedy is not None and asked.settings.allow_changes else None
    form = "" if change is None else asked.link("/change", **change)
    href = _href(asked, advice)
    about = "" if advice.remedy is None else advice.remedy[1]
    act = asked.link("/workers") if about in {"worker", "limit"} else href
    act = act if asked.settings.allow_changes else ""
    return ShownAdvice(advice, href, place_of(advice), evidence_text(advice), remedy, raw, form, act)


def _href(asked: Asked, advice: Advice) -> str:
    """Return the address of the page with the subject of a finding."""
    if advice.query is not None:
        return asked.link("/query", id=advice.query[0])
    if advice.server is not None:
        node = advice.server.removeprefix("node ")
        return asked.link("/server", node=node if node.isdecimal() else None)
    if advice.group is None:
        return asked.link("/dead", key=advice.stream)
    there = asked.link("/group", key=advice.stream, group=advice.group, consumer=advice.consumer)
    return there if advice.consumer is None else f"{there}#pending"


_AFFECTED = 6  # number of groups that a card names


@dataclass(frozen=True, slots=True)
class ShownCause:
    """A cause as a card shows it."""

    cause: Cause  # Cause
    head: ShownAdvice  # Its remedy, its evidence and its page
    place: str  # Group and stream as text; empty if the card or its page names them elsewhere
    noticed_ms: int | None  # Time at which this console first saw it, if its beginning is unknown
    affects: list[tuple[str, str]]  # Groups that it holds up, as text, each with the address of its page
    more: int  # Number of further groups
    effects: list[ShownAdvice]  # Findings folded below it


def cards(asked: Asked, causes: Sequence[Cause], *, hints: bool = False, here: bool = False) -> list[list[ShownCause]]:
    """Return hints, or all other causes, as cards; those of one kind that explain nothing else are together.

    Cards on the page of the only group that they concern (``here``) do not name it.
    """
    heads = {id(one.head): one for one in causes if (one.level == "hint") is hints}
    kinds = by_kind([one.head for one in heads.values()], apart=[id(one.head) for one in causes if one.effects])
    return [[_card(asked, heads[id(head)], here=here) for head in kind] for kind in kinds]


def _card(asked: Asked, cause: Cause, *, here: bool) -> ShownCause:
    head = shown_advice(asked, cause.head)
    affects = [(one.text(), _place_href(asked, one)) for one in cause.affects[:_AFFECTED]]
    if here or cause.kind == "other" or [text for text, _ in affects] == [head.place]:  # the title names it
        affects = []
    if here and head.act == head.href:
        head = replace(head, act="")
    place = "" if here or affects else head.place
    noticed = asked.watch.noticed.get(cause.id) if cause.head.since_ms is None else None
    effects = [_effect(asked, one, cause) for one in cause.effects]
    return ShownCause(cause, head, place, noticed, affects, max(len(cause.affects) - _AFFECTED, 0), effects)


def _effect(asked: Asked, one: Advice, cause: Cause) -> ShownAdvice:
    """Return a folded finding; one that states the same as the card shows its place and its entries alone."""
    shown = shown_advice(asked, one)
    if one.says != cause.findings[0].says:
        return shown
    held = one.evidence.get("pending")
    evidence = f"{plural(held, 'entry', 'entries')} pending" if isinstance(held, int) else ""
    return replace(shown, advice=replace(one, says=""), evidence=evidence)


def _place_href(asked: Asked, one: Affected) -> str:
    if one.group is None or one.partitions:
        return asked.link("/stream", key=one.stream)
    return asked.link("/group", key=one.stream, group=one.group)


def alerts_facts(seen: Reading[AlertsSeen]) -> Facts:
    """Return open and past alerts as data."""
    alerts = [alert_facts(one, seen.at_ms) for one in seen.value.alerts]
    return {"alerts": alerts, "alerts_unknown": seen.value.why, "alerts_left_out": seen.value.note or None}


def problem_facts(asked: Asked, seen: Problems) -> Facts:
    """Return findings and their causes as data."""
    of = causes_of(seen.causes)
    return {
        "findings": [
            finding_facts(one, shown_advice(asked, one).remedy) | {"cause": of.get(id(one))} for one in seen.found
        ],
        "causes": [cause_facts(one, shown_advice(asked, one.head).remedy) for one in seen.causes],
    }


MOST_DRAWN = 20
"""Largest number of rows in a chart. The number of further rows is shown below."""


def group_standing(group: GroupStatus, now_ms: int, *, stuck: bool) -> Standing:
    """Return the progress of a group."""
    pending = group.oldest_pending.id
    delayed = f", {count(group.delayed)} of them delayed" if group.delayed else ""
    lag = f"{count(group.lag.entries)} behind" if group.lag.known else "lag unknown"
    held = f", {plural(group.pending, 'entry', 'entries')} pending" if group.pending else ""
    age = f", the oldest for {span(group.oldest_pending.age(now_ms))}" if pending else ""
    at = milliseconds(group.last_delivered_id) or None
    return Standing(
        name(group.name), at, None if pending is None else milliseconds(pending), lag + held + delayed + age, stuck
    )


def query_standings(queries: QueriesSeen, stream: str) -> list[Standing]:
    """Return the progress of the Spark queries that read a stream without a group."""
    found = []
    for query, place in queries.readers(stream):
        lag = "lag unknown" if place.behind is None else f"{count(place.behind)} behind"
        lost = f", {query.state}" if query.is_lost else ""
        found.append(Standing(f"{name(query.title)} (Spark)", place.at_ms or None, None, f"Spark query{lost}, {lag}"))
    return found


def archive_standings(archived: Iterable[ArchivedStream], stream: str) -> list[Standing]:
    """Return the position up to which a stream is archived."""
    return [
        Standing("archive", milliseconds(one.upto) or None, None, f"{count(one.waiting)} not archived")
        for one in archived
        if one.stream == stream
    ]


def standings_drawn(stream: StreamStatus, standings: Sequence[Standing]) -> Markup:
    """Return the chart of all readers; empty for a stream without entries or without readers."""
    if not standings or stream.first_entry_id is None or stream.last_entry_id is None:
        return Markup("")
    first_ms, last_ms = milliseconds(stream.first_entry_id), milliseconds(stream.last_entry_id)
    return ground(standings[:MOST_DRAWN], first_ms, last_ms, max(len(standings) - MOST_DRAWN, 0))
