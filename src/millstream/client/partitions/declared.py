"""Look up a stream's layout on its server, and declare a stream partitioned."""

from redis.exceptions import NoPermissionError, ResponseError

from millstream.client.later.scripts import ServerScript
from millstream.client.line import Line
from millstream.client.partitions.layout import (
    HIGHEST_ID,
    LayoutError,
    PartitionLayout,
    described,
    descriptor_key,
    first_layout,
    parse_layout,
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
        raise LayoutError(f"{key} does not describe a partitioned stream: it is not a string") from None
    return parse_layout(stream, found)


async def declare(line: Line, stream: str, number: int, by: str | None) -> PartitionLayout:
    """Make a stream partitioned and return its layout; a stream that has this layout already stays as it is.

    Raises:
        UsageError: the layout is invalid, the name is in use, or the stream has other partitions.
    """
    wanted = first_layout(stream, number, by)
    key = descriptor_key(stream)
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
