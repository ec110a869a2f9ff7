"""Reading the facts for a change of a group: its present position, its new position, its consumers."""

from dataclasses import dataclass

from millstream.client.line import Line
from millstream.ops.groups.status import Ahead, Between, GroupReaders, readers
from millstream.ops.parameters import StreamPlace
from millstream.ops.pending.reading import held_by
from millstream.ops.plan import Counting, HeldEntry, TargetMissingError
from millstream.ops.streams import measuring
from millstream.ops.streams.reading import read_consumers, read_group
from millstream.ops.streams.status import ConsumerStatus, GroupStatus, StreamStatus
from millstream.ops.words import NEVER, order
from millstream.ops.workers.reading import read_workers


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """The known facts about a consumer before its removal."""

    status: ConsumerStatus  # State of the consumer, from the server
    held: tuple[HeldEntry, ...]  # Pending entries of the consumer; only the first ones if an undo cannot keep all
    others: tuple[str, ...] = ()  # Names of the group's other consumers


async def removed_consumer(line: Line, stream: str, group: str, consumer: str) -> ConsumerFacts:
    """Read the known facts about a consumer before its removal."""
    found = {each.name: each for each in await read_consumers(line, stream, group)}
    if consumer not in found:
        has = f"its consumers are: {', '.join(sorted(found)[:10])}" if found else "it has none"
        raise TargetMissingError(f"the group {group!r} of {stream!r} has no consumer {consumer!r}; {has}")
    held = await held_by(line, stream, group, consumer)
    return ConsumerFacts(found[consumer], tuple(held), tuple(name for name in sorted(found) if name != consumer))


@dataclass(frozen=True, slots=True)
class RewindFacts:
    """The facts that a rewind needs."""

    stream: StreamStatus  # State of the stream
    group: GroupStatus  # State of the group
    here: Ahead  # Present position of the group
    there: Ahead  # New position of the group
    between: Between  # Entries between the two positions
    read_by: GroupReaders  # Readers of the group


async def rewind_facts(
    line: Line,
    stream: str,
    group: str,
    place: StreamPlace,
    *,
    most: int = measuring.MOST_COUNTED,
    tell: Counting | None = None,
) -> RewindFacts:
    """Resolve a new position for a group, and count the entries between it and the present position."""
    seen = await read_group(line, stream, group)
    status, found = seen.streams.streams[0], seen.group
    near = line.near(stream)
    here, there = found.last_delivered_id, await measuring.resolved(near, status, place, found.last_delivered_id)
    low, high = sorted((here, there), key=order)
    inside = await measuring.count_between(near, stream, low, min(high, status.last_id, key=order), most, tell)
    beyond = await measuring.count_after(near, status, high, most)
    after = {high: beyond, low: None if beyond is None or inside.more else beyond + inside.entries}
    nexts = {
        low: inside.first or await measuring.next_entry(near, stream, low),
        high: await measuring.next_entry(near, stream, high),
    }
    held, more = (
        await measuring.pending_between(line, stream, group, low, high) if found.pending and low != high else (0, False)
    )
    between = Between(inside.entries, held, inside.more, more)
    read_by = readers(seen, await read_workers(line))
    here_ahead, there_ahead = (Ahead(each, after[each], nexts[each]) for each in (here, there))
    return RewindFacts(status, found, here_ahead, there_ahead, between, read_by)


async def place_facts(
    line: Line, status: StreamStatus | None, place: StreamPlace, *, most: int = measuring.MOST_COUNTED
) -> Ahead:
    """Resolve the position of a group that is to be created."""
    if status is None:
        return Ahead(place.id or NEVER, 0, None)
    near = line.near(status.key)
    there = await measuring.resolved(near, status, place, NEVER)
    return Ahead(
        there,
        await measuring.count_after(near, status, there, most),
        await measuring.next_entry(near, status.key, there),
    )
