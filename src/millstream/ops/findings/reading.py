"""Reading the facts for findings: groups with their consumers and oldest entries, and lags that a check needs."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from millstream.client.line import Command, Line, Reply
from millstream.client.partitions.layout import HIGHEST_ID
from millstream.ops.asking import NotAllowedError, NotReadableError, calls, refusal
from millstream.ops.findings.advice import Case
from millstream.ops.findings.causes import Cause, find_causes
from millstream.ops.findings.check import CheckBounds, undecided
from millstream.ops.findings.status import advice_on, servers_advice
from millstream.ops.groups.status import GroupRate
from millstream.ops.pending import reading as pending
from millstream.ops.pending.reading import pending_entry
from millstream.ops.pending.status import PendingEntry
from millstream.ops.server.reading import standing
from millstream.ops.streams.partitioned import PartitionedStream, all_consumers, read_partitioned
from millstream.ops.streams.reading import COUNT, consumer_status, count_lag, named, read_group
from millstream.ops.streams.status import ConsumerStatus, GroupSeen, GroupStatus, StreamsSeen
from millstream.ops.workers.reading import read_workers
from millstream.ops.workers.status import WorkersSeen

_GROUPS = 20  # largest number of groups counted in one check: a server that reports no lags may have thousands


async def count_undecided(
    line: Line, seen: StreamsSeen, group: str | None, bounds: CheckBounds, most: int
) -> StreamsSeen:
    """Count the lags that a check cannot decide, up to its thresholds, and return the streams with them."""
    limit = min(max(bounds.warning or 0, bounds.critical or 0), most)
    wanted = undecided(seen, group, bounds)[:_GROUPS]
    streams = []
    for stream in seen.streams:
        groups = list(stream.groups)
        for at, one in enumerate(groups):
            if one in wanted:
                with suppress(NotReadableError):  # the stream disappeared meanwhile: keep the earlier state
                    groups[at] = await count_lag(line, stream, one, limit)
        streams.append(replace(stream, groups=tuple(groups)))
    return replace(seen, streams=tuple(streams))


_LOOKED_AT = 1000
"""Limit of pending entries that findings use, the oldest first."""

_PENDING = 100  # entries read for each group, if several groups are read


async def read_case(line: Line, stream: str, name: str, *, count: int = COUNT) -> Case:
    """Read the known facts about a group: its consumers, its oldest pending entries, and its workers."""
    seen = await _group_or_sum(line, stream, name, count)
    workers, pending = await asyncio.gather(read_workers(line), _oldest(line, seen))
    return Case(seen, pending, workers)


async def _group_or_sum(line: Line, stream: str, name: str, count: int) -> GroupSeen:
    """Read a group; for a partitioned stream, sums over partitions. A plain stream costs no extra request."""
    missing: NotReadableError | None = None
    try:
        seen = await read_group(line, stream, name, count=count)
        if seen.stream.last_id != HIGHEST_ID:
            return seen
    except NotAllowedError:
        raise
    except NotReadableError as error:
        missing = error
    whole = await read_partitioned(line, stream)
    if whole is not None:
        return await _summed(line, whole, name)
    if missing is not None:
        raise missing
    return seen


async def _summed(line: Line, whole: PartitionedStream, name: str) -> GroupSeen:
    """Return a group with the sums over its partitions."""
    group = named(whole.status, name)
    try:
        return GroupSeen(whole.seen, group, tuple(await all_consumers(line, whole.status.key, name)))
    except NotReadableError as error:
        return GroupSeen(whole.seen, group, (), str(error))


async def _oldest(line: Line, seen: GroupSeen) -> tuple[PendingEntry, ...]:
    where = (seen.group.stream, seen.group.name)
    if not seen.group.pending:
        return ()
    try:
        if seen.stream.partitions is None:
            return (await pending.read_page(line, *where, count=_LOOKED_AT)).entries
        wanted = pending.PendingWanted(*where, _LOOKED_AT, payload=False)
        return (await pending.read_wanted(line, wanted))[1].entries
    except NotReadableError:  # the user may not run XPENDING; other facts are still shown
        return ()


async def read_cases(
    line: Line,
    seen: StreamsSeen,
    groups: Sequence[GroupStatus],
    done: Mapping[tuple[str, str], GroupRate],
    workers: WorkersSeen | None = None,
) -> tuple[Case, ...]:
    """Read the known facts about several groups, in one round trip, and the workers unless they are known."""
    asked: list[Command] = []
    read = [group for group in groups if group.has_readers]
    for group in read:
        asked.append(("XINFO", "CONSUMERS", group.stream, group.name))
        asked.append(("XPENDING", group.stream, group.name, "-", "+", _PENDING))
    if workers is None:
        known, answers = await asyncio.gather(read_workers(line), calls(line, asked))
    else:
        known, answers = workers, await calls(line, asked)
    streams = {stream.key: stream for stream in seen.streams}
    found = []
    replies = iter(answers)
    for group in groups:
        alone = replace(seen, streams=(streams[group.stream],))
        members, held = (next(replies), next(replies)) if group.has_readers else ([], [])
        found.append(_case(alone, group, (members, held), known, done.get((group.stream, group.name))))
    return tuple(found)


async def read_causes(line: Line, seen: StreamsSeen, groups: Sequence[GroupStatus]) -> list[Cause]:
    """Read the facts about some groups and the servers, and return the causes of their problems."""
    workers, servers = await asyncio.gather(read_workers(line), standing(line))
    cases = await read_cases(line, seen, groups, {}, workers)
    return find_causes(advice_on(cases, servers_advice(servers), workers), cases, servers)


def _case(
    seen: StreamsSeen, group: GroupStatus, answers: tuple[Reply, Reply], workers: WorkersSeen, rate: GroupRate | None
) -> Case:
    """Return the facts about one group from the replies."""
    members, held = answers
    why = refusal(members)
    consumers: tuple[ConsumerStatus, ...] = ()
    if why is None:
        consumers = tuple(consumer_status(group.stream, group.name, row) for row in members)
    pending = () if refusal(held) else tuple(pending_entry(group.stream, group.name, row) for row in held)
    return Case(GroupSeen(seen, group, consumers, why), pending, workers, rate)
