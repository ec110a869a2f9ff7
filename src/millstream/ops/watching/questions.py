"""Queries that pages and live views share: each has a name, so that one reading serves all viewers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from millstream.client.line import Line
from millstream.client.partitions.layout import HIGHEST_ID, PartitionLayout, logical
from millstream.ops.alerts.reading import read_alerts
from millstream.ops.alerts.status import AlertsSeen
from millstream.ops.asking import together
from millstream.ops.findings.advice import Advice, Case
from millstream.ops.findings.causes import Cause, find_causes
from millstream.ops.findings.partitions import uneven_streams, unowned_partitions
from millstream.ops.findings.reading import read_case, read_cases
from millstream.ops.findings.status import advice_on, letters_waiting, lost_queries, servers_advice, worst_groups
from millstream.ops.groups.owners import read_unowned
from millstream.ops.groups.status import GroupRate, rates
from millstream.ops.history.model import Subject
from millstream.ops.history.series import SeriesSeen, changes, with_marks
from millstream.ops.history.windows import TimeRange
from millstream.ops.payloads.shown import light
from millstream.ops.pending import reading as pending
from millstream.ops.pending.status import PendingEntry, PendingPage
from millstream.ops.server.reading import standing
from millstream.ops.server.status import ServerStatus
from millstream.ops.spark.reading import archive, read_queries
from millstream.ops.spark.status import ArchiveSeen, QueriesSeen
from millstream.ops.streams import reading as streams
from millstream.ops.streams.partitioned import (
    PartitionedStream,
    candidates,
    folded,
    read_layouts,
    read_partitioned,
    with_sums,
)
from millstream.ops.streams.status import StreamsSeen
from millstream.ops.streams.storage import read_tiers
from millstream.ops.watching.watch import Reading, ServerWatch
from millstream.ops.workers.reading import read_workers

_TIERED = 1000  # largest number of streams whose cold entries are asked for

Rates: TypeAlias = tuple[Mapping[str, float], Mapping[tuple[str, str], GroupRate]]
"""Entries added per second by stream, and the rates of groups by stream and group name."""


async def everything(watch: ServerWatch) -> Reading[StreamsSeen]:
    """Read all streams with their groups."""

    async def work(line: Line) -> StreamsSeen:
        keys, delayed = await asyncio.gather(streams.names(line), streams.all_due_keys(line))
        seen, layouts = await asyncio.gather(streams.read_present(line, keys, delayed), layouts_reading(watch, keys))
        _note(watch, with_sums(seen, layouts), whole=True)
        return seen

    return await watch.read("overview", work)


def _note(watch: ServerWatch, seen: StreamsSeen, *, whole: bool = False) -> None:
    """Keep the figures of a reading; the sealed stream of a partitioned one's name has no figures of its own."""
    if not whole:
        seen = replace(seen, streams=tuple(one for one in seen.streams if one.last_id != HIGHEST_ID))
    watch.history.note(seen.streams, seen.at_ms)
    if not watch.written.is_there:
        watch.own.note(seen, whole=whole)


async def history_reading(watch: ServerWatch, subjects: tuple[Subject, ...], window: TimeRange) -> Reading[SeriesSeen]:
    """Read the written history of some subjects with its marks."""

    async def work(line: Line) -> SeriesSeen:
        if watch.recorded:
            return SeriesSeen(why="a report has no history")
        seen, marks = await asyncio.gather(watch.written.read(line, subjects, window), changes(line, window))
        return with_marks(seen, marks)

    return await watch.read(("history", subjects, window.name), work)


def with_own(
    watch: ServerWatch, reading: Reading[SeriesSeen], subjects: tuple[Subject, ...], window: TimeRange
) -> Reading[SeriesSeen]:
    """Return a reading of the history, with the console's own figures until now where no figures are written.

    That is while nobody writes a history, and after the clock was set back: entries cannot have earlier ids then.
    """
    seen = reading.value
    is_back = seen.ahead_ms is not None and not window.lasting
    if watch.recorded or (seen.first_ms is not None and not is_back):
        return reading
    own = replace(watch.own.read(subjects, window), why=seen.why, ahead_ms=seen.ahead_ms)
    return replace(reading, value=with_marks(own, seen.marks))


async def layouts_reading(watch: ServerWatch, keys: Iterable[str]) -> dict[str, PartitionLayout]:
    """Read the layouts of the partitioned streams; nothing is sent if no key looks like a partition."""
    wanted = tuple(sorted(candidates(keys)))
    if not wanted:
        return {}
    return (await watch.read(("layouts", wanted), lambda line: read_layouts(line, wanted))).value


async def stream_reading(watch: ServerWatch, key: str) -> Reading[StreamsSeen]:
    """Read one stream with its groups."""

    async def work(line: Line) -> StreamsSeen:
        seen = await streams.read_one(line, key)
        _note(watch, seen)
        return seen

    return await watch.read(("stream", key), work)


async def partitioned_reading(watch: ServerWatch, key: str) -> Reading[PartitionedStream | None]:
    """Read a partitioned stream with its owners; None if it is not partitioned."""

    async def work(line: Line) -> PartitionedStream | None:
        found = await read_partitioned(line, key)
        if found is not None:
            _note(watch, replace(found.parts, streams=(*found.parts.streams, found.status)))
        return found

    return await watch.read(("partitions", key), work)


async def group_reading(watch: ServerWatch, key: str, group: str) -> Reading[Case]:
    """Read one group with its stream, consumers, oldest pending entries, workers and rate."""

    async def work(line: Line) -> Case:
        found = await read_case(line, key, group)
        _note(watch, found.seen.streams)
        return found

    found = await watch.read(("group", key, group), work)
    before = None if found.before is None else found.before.value.seen.streams
    rate = _between(before, found.value.seen.streams)[1].get((key, group))
    return replace(found, value=replace(found.value, rate=rate))


async def pending_reading(watch: ServerWatch, wanted: pending.PendingWanted) -> Reading[PendingPage]:
    """Read pending entries with their payloads; long values are cut."""

    async def work(line: Line) -> PendingPage:
        _, found = await pending.read_wanted(line, wanted)
        return replace(found, entries=tuple(map(_light, found.entries)))

    return await watch.read(wanted, work)


async def all_queries(watch: ServerWatch) -> Reading[QueriesSeen]:
    """Read the last report of every Spark query."""
    return await watch.read("queries", read_queries)


@dataclass(frozen=True, slots=True)
class Problems:
    """The causes of all problems of a server, with the readings that they come from."""

    seen: Reading[StreamsSeen]  # All streams, each partition alone
    layouts: Mapping[str, PartitionLayout]  # Layouts of partitioned streams
    found: list[Advice]  # All findings
    causes: list[Cause]  # Their causes
    tiers: Mapping[str, tuple[int, int]]  # Bytes of each stream's entries in memory and in packs, if the server has any
    readings: tuple[Reading[Any], ...]  # The other readings


async def problems(watch: ServerWatch) -> Problems:
    """Read all that findings need, and return them with their causes."""
    reading: Reading[StreamsSeen]
    reading, workers, queries, servers = await together(
        everything(watch), watch.read("workers", read_workers), all_queries(watch), watch.read("standing", standing)
    )
    seen, groups, done = reading.value, worst_groups(reading.value, workers.value), rates_of(reading)[1]
    named = tuple((group.stream, group.name) for group in groups)
    layouts, looked, tiers = await asyncio.gather(
        layouts_reading(watch, [one.key for one in seen.streams]),
        watch.read(("cases", named), lambda line: read_cases(line, seen, groups, done, workers.value)),
        _tiers(watch, seen, servers.value),
    )
    # The findings about servers also compare the progress of replicas with that of the previous reading
    on_servers = servers_advice(servers.value, () if servers.before is None else servers.before.value)
    besides = [*on_servers, *lost_queries(queries.value, seen), *letters_waiting(folded(seen, layouts))]
    unowned = unowned_partitions(seen, layouts, await _unowned(watch, seen, layouts))
    found = advice_on(looked.value, [*besides, *uneven_streams(seen, layouts), *unowned], workers.value)
    causes = find_causes(found, looked.value, servers.value, workers.value)
    if not watch.written.is_there:
        watch.own.note_besides(workers.value.workers, servers.value)
    watch.noticed = {one.id: watch.noticed.get(one.id, seen.at_ms) for one in causes}
    return Problems(reading, layouts, found, causes, tiers, (looked, workers, queries, servers))


async def _unowned(
    watch: ServerWatch, seen: StreamsSeen, layouts: Mapping[str, PartitionLayout]
) -> Mapping[tuple[str, str], int]:
    """Read for how long partitions have had no owner; nothing is sent without partitioned streams."""
    if not layouts:
        return {}
    reading = await watch.read(("unowned", tuple(layouts)), lambda line: read_unowned(line, seen, layouts.values()))
    return reading.value


async def _tiers(
    watch: ServerWatch, seen: StreamsSeen, servers: Sequence[ServerStatus]
) -> Mapping[str, tuple[int, int]]:
    """Read the bytes of hot and cold entries of the first streams; nothing is sent unless a server reports a tier."""
    keys = [one.key for one in seen.streams[:_TIERED]] if any(one.tier for one in servers) else []
    if not keys:
        return {}
    found = (await watch.read(("tiers", tuple(keys)), lambda line: read_tiers(line, keys))).value
    sums: dict[str, tuple[int, int]] = {}
    for key, (hot, cold) in found.items():
        if (whole := logical(key)) is not None:
            before = sums.get(whole, (0, 0))
            sums[whole] = (before[0] + hot, before[1] + cold)
    return found | sums


async def alerts_reading(watch: ServerWatch) -> Reading[AlertsSeen]:
    """Read open and past alerts."""
    return await watch.read("alerts", read_alerts)


async def some_streams(watch: ServerWatch, keys: Sequence[str]) -> Reading[StreamsSeen]:
    """Read some streams with their groups; ``refused`` has the reason for each missing stream."""
    return await watch.read(("streams", tuple(keys)), lambda line: streams.read(line, keys))


async def archive_reading(watch: ServerWatch, path: Path | str) -> Reading[ArchiveSeen]:
    """Read an archive and the number of entries in its streams that it lacks."""
    return await watch.read(("archive", path), lambda line: archive(line, path))


def rates_of(reading: Reading[StreamsSeen]) -> Rates:
    """Return the rates of streams and groups between a reading and the one before; empty for a first reading."""
    return _between(None if reading.before is None else reading.before.value, reading.value)


def _between(before: StreamsSeen | None, now: StreamsSeen) -> Rates:
    return ({}, {}) if before is None or before.at_ms >= now.at_ms else rates(before, now)


def _light(entry: PendingEntry) -> PendingEntry:
    """Return a pending entry with its long values cut."""
    return entry if entry.entry is None else replace(entry, entry=light(entry.entry))
