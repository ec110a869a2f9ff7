"""Remove a partitioned stream, step by step: a removal that was interrupted continues when it is run again.

1. Each partition is sealed: a publisher gets an error, and no entry is lost unseen.
2. The schedules next to the keys, the records of the groups, the groups and the entries are removed.
3. The descriptor is removed.

The keys stay, empty and sealed: a publisher with an old layout is refused, and creates no stream that nobody reads.
:func:`free` removes them later, when all programs know of the removal.
"""

from collections.abc import Iterable, Mapping

from millstream import failpoints
from millstream.client.jobs.record import cancelled_key
from millstream.client.later import schedule
from millstream.client.line import Line
from millstream.client.partitions.changing import seal, swap, unseal
from millstream.client.partitions.drained import PartState, look_at
from millstream.client.partitions.layout import PartitionLayout
from millstream.client.partitions.lease import members_key
from millstream.client.slots import beside
from millstream.errors import UsageError

# Not the fence: a new owner of the same key needs a higher number than the owners before it
_OF_GROUPS = ("due", "tries", "held", "owner", "owned")


def schedule_keys(stream: str) -> tuple[str, ...]:
    """Return the keys of the schedules of a stream or a partition."""
    return schedule.due_key(stream), schedule.content_key(stream), schedule.placed_key(stream)


async def scheduled(line: Line, keys: Iterable[str]) -> int:
    """Return the number of entries that wait for their time to be added to some streams."""
    return sum([await line.near(key).call("ZCARD", schedule.due_key(key)) for key in keys])


async def remove(line: Line, layout: PartitionLayout, shown: Mapping[str, PartState], waiting: int) -> None:
    """Remove a stream's entries, groups and layout, if the partitions have the entries that the preview showed.

    Raises:
        UsageError: entries were added, scheduled or removed, or the layout was changed meanwhile.
    """
    keys = tuple(dict.fromkeys((*layout.every_key, layout.stream)))
    before = await look_at(line, keys)
    for key in keys:
        failpoints.reach("repartition")
        await seal(line, key)
    found = await look_at(line, keys)
    changed = [
        f"{key!r} has {state.length} entries now"
        for key, state in found.items()
        if (state.length, state.last_entry) != (shown[key].length, shown[key].last_entry)
    ]
    if not changed and (now := await scheduled(line, keys)) != waiting:
        changed = [f"{now} entries wait for their time now"]
    if changed:
        for key in layout.keys:
            if not before[key].sealed:
                await unseal(line, key, found[key])
        raise UsageError(
            f"{changed[0]}, and the preview had others. Stop the programs that publish, and run the same again."
        )
    # Before any group: an interrupted removal finds the groups' names again
    for group in sorted({group for state in found.values() for group in state.groups or ()}):
        failpoints.reach("repartition")
        await line.call("DEL", members_key(layout.stream, group))
    for key, state in found.items():
        failpoints.reach("repartition")
        await _empty(line, key, state)
    failpoints.reach("repartition")
    await swap(line, layout, None)


async def _empty(line: Line, key: str, state: PartState) -> None:
    for group in state.groups or ():
        for record in (*(beside(key, kind, group) for kind in _OF_GROUPS), cancelled_key(key, group)):
            await line.call("DEL", record)
        failpoints.reach("repartition")
        await line.call("XGROUP", "DESTROY", key, group)
    for record in schedule_keys(key):
        await line.call("DEL", record)
    await line.call("XTRIM", key, "MAXLEN", 0)


async def free(line: Line, stream: str, leftover: tuple[str, ...], length: int) -> None:
    """Remove the sealed keys that a removal left, with what was scheduled since; the stream itself goes last.

    Raises:
        UsageError: the stream has another number of entries.
    """
    if (now := (await look_at(line, (stream,)))[stream].length) != length:
        raise UsageError(f"{stream!r} has {now} entries now, and the preview had {length}. Run the same again.")
    for key in (*leftover, stream):
        failpoints.reach("repartition")
        for record in (*schedule_keys(key), key):
            await line.call("DEL", record)
