"""A partitioned stream as one stream: sums over its partitions, and the worst figures of their groups."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from millstream.client.line import Command, Line
from millstream.client.partitions.layout import (
    HIGHEST_ID,
    LayoutError,
    PartitionLayout,
    descriptor_key,
    logical,
    parse_layout,
)
from millstream.client.partitions.lease import owner_key, parse_owner
from millstream.errors import MillstreamError
from millstream.ops.asking import NotAllowedError, NotReadableError, calls, checked, refusal
from millstream.ops.streams.reading import names, read, read_consumers, read_one, read_present
from millstream.ops.streams.status import ConsumerStatus, GroupStatus, Lag, StreamsSeen, StreamStatus, oldest
from millstream.ops.words import order

Found = TypeVar("Found")
Failed = TypeVar("Failed", bound=MillstreamError)


async def read_layouts(line: Line, streams: Iterable[str]) -> dict[str, PartitionLayout]:
    """Read the layouts of those streams that are partitioned.

    A stream is left out if its descriptor is damaged or this user may not read it. Its partitions then count as
    streams.
    """
    wanted = sorted(set(streams))
    replies = await calls(line, [("GET", descriptor_key(stream)) for stream in wanted])
    found = {}
    for stream, reply in zip(wanted, replies, strict=True):
        with suppress(LayoutError):
            layout = None if refusal(reply) is not None else parse_layout(stream, reply)
            if layout is not None:
                found[stream] = layout
    return found


async def parts_of(line: Line, stream: str) -> tuple[str, ...]:
    """Return the existing partitions of a stream, the oldest generation first; none if it is not partitioned."""
    layout = (await read_layouts(line, [stream])).get(stream)
    keys = () if layout is None else layout.every_key
    there = await calls(line, [("EXISTS", key) for key in keys])
    return tuple(key for key, found in zip(keys, there, strict=True) if found == 1)


async def partitions_with(line: Line, stream: str, entry: str) -> list[str]:
    """Return the partitions of a stream that have an entry of this id, or the stream itself."""
    parts = await parts_of(line, stream)
    replies = await calls(line, [("XRANGE", key, entry, entry) for key in parts])
    found = zip(parts, replies, strict=True)
    return [key for key, rows in found if refusal(rows) is None and rows] or [stream]


def known_by(
    question: Callable[[Mapping[str, str]], Command],
) -> Callable[[Line, Sequence[Mapping[str, str]]], Awaitable[list[bool]]]:
    """Return a function that checks which of several texts have an id that exists: the command's reply is not empty."""

    async def known(line: Line, asked: Sequence[Mapping[str, str]]) -> list[bool]:
        key = asked[0]["key"]
        replies = await calls(line.near(key), [question(texts) for texts in asked])
        # Without the group, a partition has no entries for it
        return [not (refusal(reply) or "").startswith("NOGROUP") and bool(checked(reply, key)) for reply in replies]

    return known


async def partition_of(line: Line, key: str) -> str | None:
    """Return the partitioned stream of a partition's key; None if the key is not a partition."""
    found = await read_layouts(line, candidates([key]))
    return next((stream for stream, layout in found.items() if layout.has(key) and stream != key), None)


async def each_part(
    line: Line, stream: str, read: Callable[[str], Awaitable[Found]], keys: Sequence[str] | None = None
) -> list[Found]:
    """Return a reading function's results for each partition, or for the stream itself if it is not partitioned.

    A partition without the wanted object, such as a group, is left out, unless no partition has it.
    """
    found, missing = list[Found](), list[NotReadableError]()
    for key in (await parts_of(line, stream) if keys is None else keys) or (stream,):
        try:
            found.append(await read(key))
        except NotAllowedError:
            raise
        except NotReadableError as error:
            missing.append(error)
    if missing and not found:
        raise named_as(stream, missing[0])
    return found


def named_as(stream: str, error: Failed) -> Failed:
    """Return the error about a partition with the stream's name instead of the partition's key."""
    error.args = (re.sub(rf"{re.escape(stream)}(?:~\d+)?\{{\d+\}}", lambda _: stream, str(error)),)
    return error


def candidates(keys: Iterable[str]) -> set[str]:
    """Return the streams of which these keys may be partitions, by the form of the keys."""
    return {whole for key in keys if (whole := logical(key)) is not None}


async def overview_by_stream(line: Line, pattern: str | None = None, *, limit: int | None = None) -> StreamsSeen:
    """Read streams with their groups; a partitioned stream is one row if its name matches the pattern."""
    there = await names(line, pattern)
    layouts = await read_layouts(line, candidates(there) if pattern is None else {*candidates(there), *there})
    layouts = {stream: layout for stream, layout in layouts.items() if pattern is None or stream in there}
    parts = {key: stream for stream, layout in layouts.items() for key in layout.every_key}
    left = await _leftover(line, there, parts)
    rows = sorted({parts.get(key, key) for key in there if key not in left})
    asked = [key for row in rows[:limit] for key in ((row,) if row not in layouts else {row, *layouts[row].every_key})]
    seen = await read_present(line, asked)
    return folded(replace(seen, more=limit is not None and len(rows) > limit), layouts)


async def _leftover(line: Line, there: Sequence[str], parts: Mapping[str, str]) -> set[str]:
    """Read which keys are former partitions of the other streams."""
    whole = {*there, *parts.values()}
    loose = [key for key in there if key not in parts and logical(key) in whole]
    return _former((await read_present(line, loose)).streams, whole) if loose else set()


def _former(streams: Iterable[StreamStatus], whole: set[str]) -> set[str]:
    """Return the empty sealed keys of former partitions: they only refuse publishers with an old layout."""
    return {one.key for one in streams if one.last_id == HIGHEST_ID and not one.length and logical(one.key) in whole}


async def read_owners(
    line: Line, keys: Sequence[str], groups: Iterable[str]
) -> dict[tuple[str, str], tuple[str, int, int]]:
    """Return the owner of each partition in each group: consumer, fence, and milliseconds until its lease ends."""
    places = [(key, group) for group in groups for key in keys]
    asked = [(word, owner_key(*place)) for place in places for word in ("GET", "PTTL")]
    replies = await calls(line, asked)
    found = {}
    for place, value, left in zip(places, replies[::2], replies[1::2], strict=True):
        holder = parse_owner(checked(value, place[0]))
        if holder is not None and (ends := checked(left, place[0])) >= 0:
            found[place] = (*holder, ends)
    return found


@dataclass(frozen=True, slots=True)
class PartitionedStream:
    """A partitioned stream with all its partitions, read at one moment."""

    layout: PartitionLayout  # Partitions by generation
    parts: StreamsSeen  # Existing partitions
    status: StreamStatus  # Sums over the partitions
    owners: Mapping[tuple[str, str], tuple[str, int, int]]  # Owners, as from read_owners

    @property
    def seen(self) -> StreamsSeen:
        """The stream alone, in the form of a plain stream's reading."""
        return replace(self.parts, streams=(self.status,))

    @property
    def share(self) -> dict[str, float]:
        """Each partition's share of the entries, from 0 to 1."""
        return {one.key: one.length / self.status.length if self.status.length else 0.0 for one in self.parts.streams}


async def read_partitioned(line: Line, stream: str) -> PartitionedStream | None:
    """Read a partitioned stream with its owners; None if it is not partitioned."""
    layout = (await read_layouts(line, [stream])).get(stream)
    if layout is None:
        return None
    parts = await read(line, layout.every_key)
    whole = _sum(stream, parts.streams, len(layout.keys))
    owners = await read_owners(line, layout.every_key, [group.name for group in whole.groups])
    return PartitionedStream(layout, parts, whole, owners)


async def read_stream(line: Line, stream: str) -> StreamsSeen:
    """Read one stream with the time of the reading; a partitioned one with the sums of its partitions."""
    whole = await read_partitioned(line, stream)
    return await read_one(line, stream) if whole is None else whole.seen


async def parts_seen(line: Line, stream: str) -> StreamsSeen:
    """Read the partitions of a stream separately; a stream that is not partitioned is read alone."""
    whole = await read_partitioned(line, stream)
    return await read_one(line, stream) if whole is None else whole.parts


async def all_consumers(line: Line, stream: str, group: str) -> list[ConsumerStatus]:
    """Return the consumers of a group by name, each with the sums over the partitions."""
    found: dict[str, ConsumerStatus] = {}
    for each in await each_part(line, stream, lambda key: read_consumers(line, key, group)):
        for one in each:
            before = found.get(one.name, replace(one, pending=0))
            quiet = [ms for ms in (before.inactive_ms, one.inactive_ms) if ms is not None]
            found[one.name] = replace(
                one, stream=stream, pending=before.pending + one.pending, idle_ms=min(before.idle_ms, one.idle_ms),
                inactive_ms=min(quiet, default=None),
            )  # fmt: skip
    return [found[name] for name in sorted(found)]


def folded(seen: StreamsSeen, layouts: Mapping[str, PartitionLayout]) -> StreamsSeen:
    """Return the streams with one row for each partitioned stream with readable keys."""
    there = {one.key: one for one in seen.streams}
    whole: dict[str, StreamStatus] = {}
    gone: set[str] = set()
    for stream, layout in layouts.items():
        keys = {stream, *layout.every_key}  # a sealed stream with the plain name also exists
        if (parts := [one for key, one in there.items() if key in keys]) and not keys & seen.refused.keys():
            whole[stream] = _sum(stream, parts, len(layout.keys))
            gone |= keys
    gone |= _former(seen.streams, {*there, *layouts})
    kept = [one for one in seen.streams if one.key not in gone]
    return replace(seen, streams=tuple(sorted([*kept, *whole.values()], key=lambda one: one.key)))


def with_sums(seen: StreamsSeen, layouts: Mapping[str, PartitionLayout]) -> StreamsSeen:
    """Return a reading in which the sum of the partitions replaces each sealed stream of their name; they stay."""
    there = {one.key: one for one in seen.streams}
    sums = {}
    for stream, layout in layouts.items():
        parts = [there[key] for key in dict.fromkeys((stream, *layout.every_key)) if key in there]
        if stream in there and len(parts) > 1:
            sums[stream] = _sum(stream, parts, len(layout.keys))
    return replace(seen, streams=tuple(sums.get(one.key, one) for one in seen.streams))


def _sum(stream: str, parts: Sequence[StreamStatus], number: int) -> StreamStatus:
    groups: dict[str, list[GroupStatus]] = {}
    for part in parts:
        for group in part.groups:
            groups.setdefault(group.name, []).append(group)
    added = [one.entries_added for one in parts]
    return StreamStatus(
        key=stream,
        length=sum(one.length for one in parts),
        last_id=max((one.last_id for one in parts if one.last_id != HIGHEST_ID), key=order, default=HIGHEST_ID),
        first_entry_id=_edge(min, (one.first_entry_id for one in parts)),
        last_entry_id=_edge(max, (one.last_entry_id for one in parts)),
        entries_added=_total(added),
        max_deleted_id=_edge(max, (one.max_deleted_id for one in parts)),
        groups=tuple(_group(stream, held) for _, held in sorted(groups.items())),
        missing={fact: why for one in parts for fact, why in one.missing.items()},
        partitions=number,
    )


def _group(stream: str, parts: Sequence[GroupStatus]) -> GroupStatus:
    held: dict[str, int] = {}
    for one in parts:
        for consumer, pending in (one.held or {}).items():
            held[consumer] = held.get(consumer, 0) + pending
    return GroupStatus(
        stream=stream,
        name=parts[0].name,
        consumers=max(one.consumers for one in parts),  # a process has the same consumer name in each partition
        pending=sum(one.pending for one in parts),
        last_delivered_id=min((one.last_delivered_id for one in parts), key=order),
        entries_read=_total(one.entries_read for one in parts),
        lag=_lag([one.lag for one in parts]),
        unowned=_total(one.unowned for one in parts),
        oldest_pending=oldest(one.oldest_pending for one in parts),
        oldest_undelivered=oldest(one.oldest_undelivered for one in parts),
        held=held,
        delayed=_total(one.delayed for one in parts if one.pending),
    )


def _lag(parts: Sequence[Lag]) -> Lag:
    unknown = next((one for one in parts if one.reason is not None), None)
    return Lag(
        entries=_total(one.entries for one in parts),
        server=_total(one.server for one in parts),
        reason=None if unknown is None else unknown.reason,
        at_least=sum(one.at_least for one in parts),
        at_most=_total(one.at_most for one in parts),
        why="" if unknown is None else unknown.why,
    )


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


def _edge(choose: Callable[..., str], ids: Iterable[str | None]) -> str | None:
    """Return the lowest or highest of the ids that are not None."""
    return choose((one for one in ids if one is not None), key=order, default=None)
