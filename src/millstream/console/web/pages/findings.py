"""What needs a person: advice about the groups that look worst, each with its evidence and the command that helps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.client.line import Command, Line
from millstream.console.changes.writing import raw_line, shell_line
from millstream.console.model import replies
from millstream.console.model.advice import Advice, Case, advise
from millstream.console.model.names import text_of
from millstream.console.model.rates import GroupRate
from millstream.console.model.streams import ConsumerStatus, GroupSeen, GroupStatus, StreamsSeen
from millstream.console.model.workers import WorkersSeen
from millstream.console.reading import fleet
from millstream.console.reading.asking import calls
from millstream.console.web.facts import Facts
from millstream.console.web.page import Asked
from millstream.console.web.pages.common import Rates, command_line
from millstream.console.web.watch import Reading
from millstream.console.web.words import DASH, brief, name, span

LOOKED_AT = 20
"""Groups that are looked into, the worst by the age of what they have not finished."""

_PENDING = 100  # entries of each, the oldest
_TEXT = 300  # letters of a fact


@dataclass(frozen=True, slots=True)
class ShownAdvice:
    """A finding as a page shows it.

    Attributes:
        advice: as it was found.
        href: the page it is about.
        place: its group and stream, in words.
        evidence: the facts that say so, in words.
        remedy: the command line that helps; empty where there is none.
        raw: the command of the server; empty where there is none, or a command line.
    """

    advice: Advice
    href: str
    place: str
    evidence: str
    remedy: str
    raw: str


async def cases(asked: Asked, seen: StreamsSeen, done: Rates) -> Reading[tuple[Case, ...]]:
    """All that advice goes by, for the groups that look worst; in two round trips.

    Args:
        asked: for whom.
        seen: all streams.
        done: how groups did of late.

    Raises:
        MillstreamError: the server does not answer.
    """
    groups = _worst(seen)
    named = tuple((group.stream, group.name) for group in groups)
    return await asked.watch.read(("cases", named), lambda line: _read(line, seen, groups, done))


def findings(asked: Asked, found: Sequence[Case]) -> list[ShownAdvice]:
    """What there is to say of them, what matters most first.

    Args:
        asked: for whom.
        found: the groups.
    """
    every = [advice for case in found for advice in advise(case)]
    levels = {"problem": 0, "warning": 1, "hint": 2}
    return [_finding(asked, advice) for advice in sorted(every, key=lambda advice: levels[advice.level])]


def finding_facts(found: ShownAdvice) -> Facts:
    """A finding in the JSON."""
    advice = found.advice
    return {
        "code": advice.code,
        "level": advice.level,
        "stream": advice.stream,
        "group": advice.group,
        "consumer": advice.consumer,
        "says": advice.says,
        "evidence": dict(advice.evidence),
        "remedy": found.remedy or None,
        "raw": [list(command) for command in advice.raw],
    }


def _worst(seen: StreamsSeen) -> list[GroupStatus]:
    """Groups with something that is not finished, the oldest first."""

    def age(group: GroupStatus) -> int:
        return max(group.oldest_pending.age(seen.at_ms) or 0, group.oldest_undelivered.age(seen.at_ms) or 0)

    every = [group for stream in seen.streams for group in stream.groups if group.pending or group.lag.worst]
    return sorted(every, key=age, reverse=True)[:LOOKED_AT]


async def _read(line: Line, seen: StreamsSeen, groups: Sequence[GroupStatus], done: Rates) -> tuple[Case, ...]:
    """The cases.

    Args:
        line: to the server.
        seen: all streams.
        groups: that are looked into.
        done: how groups did of late.
    """
    asked: list[Command] = []
    for group in groups:
        asked.append(("XINFO", "CONSUMERS", group.stream, group.name))
        asked.append(("XPENDING", group.stream, group.name, "-", "+", _PENDING))
    answers = await calls(line, asked)
    workers = await fleet.workers(line)
    streams = {stream.key: stream for stream in seen.streams}
    found = []
    for group, members, held in zip(groups, answers[::2], answers[1::2], strict=True):
        alone = replace(seen, streams=(streams[group.stream],))
        found.append(_case(alone, group, (members, held), workers, done[1].get((group.stream, group.name))))
    return tuple(found)


def _case(
    seen: StreamsSeen,
    group: GroupStatus,
    answers: tuple[replies.Reply, replies.Reply],
    workers: WorkersSeen,
    rate: GroupRate | None,
) -> Case:
    """One group's case.

    Args:
        seen: its stream.
        group: as it was read.
        answers: the replies about its consumers and its pending entries.
        workers: everybody who works.
        rate: how it did of late.
    """
    members, held = answers
    why = replies.refusal(members)
    consumers: tuple[ConsumerStatus, ...] = ()
    if why is None:
        consumers = tuple(replies.consumer_status(group.stream, group.name, row) for row in members)
    pending = (
        () if replies.refusal(held) else tuple(replies.pending_entry(group.stream, group.name, row) for row in held)
    )
    return Case(GroupSeen(seen, group, consumers, why), pending, workers, rate)


def _finding(asked: Asked, advice: Advice) -> ShownAdvice:
    words = {"key": advice.stream, "group": advice.group, "consumer": advice.consumer}
    remedy = "" if advice.remedy is None else shell_line(command_line(asked, *advice.remedy[1:]))
    raw = "" if remedy or not advice.raw else raw_line(advice.raw[0])
    place = f"{name(advice.group)} on {name(advice.stream)}"
    evidence = "; ".join(_fact(each, value) for each, value in advice.evidence.items() if value is not None)
    return ShownAdvice(advice, asked.link("/group", **words), place, evidence, remedy, raw)


def _fact(fact: str, value: object) -> str:
    """One fact in words: lengths of time have their units."""
    title = fact.removesuffix("_ms").replace("_", " ")
    if fact.endswith("_ms") and isinstance(value, int | float):
        return f"{title} {span(value)}"
    if isinstance(value, float):
        return f"{title} {value:.1f}"
    text = text_of(value) if isinstance(value, bytes) else DASH if value is None else str(value)
    return f"{title} {brief(text, _TEXT)}"
