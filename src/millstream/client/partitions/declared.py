"""Look up a stream's layout on its server, and declare a stream partitioned."""

from dataclasses import replace

from redis.exceptions import NoPermissionError, ResponseError

from millstream.client.later.scripts import ServerScript
from millstream.client.line import Line
from millstream.client.partitions.drained import look_at
from millstream.client.partitions.layout import (
    HIGHEST_ID,
    Generation,
    PartitionLayout,
    damaged,
    described,
    descriptor_key,
    first_layout,
    parse_layout,
    part_key,
)
from millstream.errors import UsageError
from millstream.texts import plural

SCRIPT = ServerScript.beside("millstream.client.partitions", "partition.lua")


async def find_layout(line: Line, stream: str, *, limit: float | None = None) -> PartitionLayout | None:
    """Return the layout of a stream; None if it is not partitioned, or the user may not read the descriptor.

    Raises:
        LayoutError: Millstream did not write the descriptor.
    """
    key = descriptor_key(stream)
    try:
        found = await line.near(key).call("GET", key, timeout=limit)
    except NoPermissionError:
        return None
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise damaged(stream, "it is not a string") from None
    return parse_layout(stream, found)


async def free_generation(line: Line, stream: str, number: int) -> int:
    """Return the first free generation number: a withdrawn change and a removal leave their streams sealed."""
    while True:
        (state,) = (await look_at(line, (part_key(stream, number, 0),))).values()
        if not state.sealed:
            return number
        number += 1


async def _was_removed(line: Line, stream: str) -> bool:
    """Return True if a stream has its key without a layout, as a removal leaves it."""
    try:
        return bool((await look_at(line, (stream,)))[stream].last_id)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        return False


async def declare(line: Line, stream: str, number: int, by: str | None) -> PartitionLayout:
    """Make a stream partitioned and return its layout; a stream that has this layout already stays as it is.

    Raises:
        UsageError: the layout is invalid, the name is in use, or the stream has other partitions.
    """
    wanted = first_layout(stream, number, by)
    key = descriptor_key(stream)
    # A removed stream left its key, and so its partitions: only then the user needs rights to them
    if await find_layout(line, stream) is None and await _was_removed(line, stream):
        fresh = await free_generation(line, stream, 1)
        keys = tuple(part_key(stream, fresh, at) for at in range(number))
        wanted = replace(wanted, generations=(Generation(fresh, keys),))
    found = await SCRIPT.call(line.near(key), (key, stream), (described(wanted), HIGHEST_ID))
    if found is None:
        raise UsageError(
            f"partition({stream!r}) is invalid: the key {stream!r} is in use. Choose another name, or write "
            f"repartition({stream!r}, {number}), which keeps its entries and groups and seals it."
        )
    layout = parse_layout(stream, found)
    # An operator may have chosen another number by repartitioning, while a startup hook still declares the first one
    changed = layout is not None and layout.generations[-1].number > 1
    if layout is None or layout.by != by or (len(layout.keys) != number and not changed):
        have = f"{plural(len(layout.keys), 'partition')} by {layout.by!r}" if layout else "none"
        raise UsageError(
            f"partition({stream!r}, {number}, by={by!r}) is invalid: it has {have} already. Write these, or choose "
            "another name."
        )
    return layout
