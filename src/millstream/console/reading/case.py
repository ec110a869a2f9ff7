"""All facts that advice about a group needs, in a few round trips for any number of pending entries."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.client.line import Command, Line
from millstream.console.model import replies
from millstream.console.model.advice import Case
from millstream.console.model.pending import PendingEntry
from millstream.console.model.rates import GroupRate
from millstream.console.model.streams import ConsumerStatus, GroupSeen, GroupStatus, StreamsSeen
from millstream.console.model.workers import WorkersSeen
from millstream.console.reading import fleet, pending
from millstream.console.reading.asking import NotReadableError, calls
from millstream.console.reading.counting import COUNT
from millstream.console.reading.groups import read_group

_LOOKED_AT = 1000
"""Pending entries that advice goes by, the oldest."""

_PENDING = 100  # entries of each group, where several are read


async def read_case(line: Line, stream: str, name: str, *, count: int = COUNT) -> Case:
    """The known facts about a group: its consumers, its oldest pending entries, and its workers."""
    case = Case(await read_group(line, stream, name, count=count), workers=await fleet.workers(line))
    return replace(case, pending=await _oldest(line, stream, name)) if case.seen.group.pending else case


async def _oldest(line: Line, stream: str, name: str) -> tuple[PendingEntry, ...]:
    try:
        return (await pending.page(line, stream, name, count=_LOOKED_AT)).entries
    except NotReadableError:  # this user may not run XPENDING, and may see the rest
        return ()


async def read_cases(
    line: Line, seen: StreamsSeen, groups: Sequence[GroupStatus], done: Mapping[tuple[str, str], GroupRate]
) -> tuple[Case, ...]:
    """The known facts about several groups, in two round trips."""
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
        found.append(_case(alone, group, (members, held), workers, done.get((group.stream, group.name))))
    return tuple(found)


def _case(
    seen: StreamsSeen,
    group: GroupStatus,
    answers: tuple[replies.Reply, replies.Reply],
    workers: WorkersSeen,
    rate: GroupRate | None,
) -> Case:
    """One group's case."""
    members, held = answers
    why = replies.refusal(members)
    consumers: tuple[ConsumerStatus, ...] = ()
    if why is None:
        consumers = tuple(replies.consumer_status(group.stream, group.name, row) for row in members)
    pending = (
        () if replies.refusal(held) else tuple(replies.pending_entry(group.stream, group.name, row) for row in held)
    )
    return Case(GroupSeen(seen, group, consumers, why), pending, workers, rate)
