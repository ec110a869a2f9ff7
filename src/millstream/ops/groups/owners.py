"""The present owners of a partitioned stream's partitions in one group, from the server."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.drained import to_read
from millstream.client.partitions.layout import PartitionLayout, logical
from millstream.client.partitions.lease import owned_key, owner_key, parse_owner
from millstream.errors import MillstreamError
from millstream.ops.asking import NotReadableError, calls, refusal
from millstream.ops.streams.partitioned import read_layouts, read_owners
from millstream.ops.streams.reading import named, read
from millstream.ops.streams.status import StreamsSeen

_LONGEST = 18  # digits of a time, since any client may write it


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """One partition with its owner and figures."""

    number: int  # Number of the partition, from 0
    key: str
    owner: str | None  # Consumer that owns it; None if it currently has no owner
    fence: int | None  # Fencing number of the owner, which grows with each owner; None without one
    lease_ms: int | None  # Milliseconds until the lease ends, unless it is renewed
    entries: int
    lag: int | None  # Entries not delivered to the group; None if the server does not report it
    pending: int


async def partition_owners(line: Line, stream: str, group: str, *, if_any: bool = False) -> list[PartitionOwner]:
    """Return the partitions of a stream with their owners. With ``if_any``, a stream without partitions gives none.

    Raises:
        NotReadableError: the stream is not partitioned, or the server refuses to report it.
    """
    layout = (await read_layouts(line, [stream])).get(stream) if if_any else await find_layout(line, stream)
    if layout is None and if_any:
        return []
    if layout is None:
        raise NotReadableError(
            f"the stream {stream!r} is not partitioned: `millstream consumer ls` shows a group's consumers"
        )
    seen = await read(line, layout.keys, ages=False)
    owners = await read_owners(line, layout.keys, [group])
    there = {one.key: one for one in seen.streams}
    if there and not owners and not if_any:
        groups = tuple(one for part in seen.streams for one in part.groups)
        named(replace(seen.streams[0], key=stream, groups=groups), group)  # raises if no partition has the group
    found = []
    for number, key in enumerate(layout.keys):
        one = there.get(key)
        owner: tuple[str | None, int | None, int | None] = owners.get((key, group), (None, None, None))
        known = None if one is None else next((each for each in one.groups if each.name == group), None)
        lag, pending = (None, 0) if known is None else (known.lag.entries, known.pending)
        found.append(PartitionOwner(number, key, *owner, 0 if one is None else one.length, lag, pending))
    return found


async def owners_near(line: Line, key: str, group: str) -> tuple[str, list[PartitionOwner]]:
    """Return the partitioned stream of a key with the partitions in a group: all, or the one that the key is.

    A plain stream has none.
    """
    stream = logical(key) or key
    found = await partition_owners(line, stream, group, if_any=True)
    return stream, found if stream == key else [one for one in found if one.key == key]


async def read_unowned(line: Line, seen: StreamsSeen, layouts: Iterable[PartitionLayout]) -> dict[tuple[str, str], int]:
    """Return for how long each partition has had no owner in each group, in milliseconds; 0 with an owner.

    A partition that no worker has owned yet is left out, and so is one that waits for those before it.
    """
    there = {one.key: one for one in seen.streams}
    places = []
    for layout in layouts:
        for group in sorted({one.name for key in layout.every_key if key in there for one in there[key].groups}):
            places += [(key, group) for key in await _to_read(line, layout, group)]
    replies = await calls(line, [("GET", key(*place)) for place in places for key in (owner_key, owned_key)])
    found = {}
    for place, owner, until in zip(places, replies[::2], replies[1::2], strict=True):
        if refusal(owner) is not None or refusal(until) is not None:
            continue
        if parse_owner(owner) is not None:
            found[place] = 0
        elif until is not None and until.isdigit() and len(until) < _LONGEST:
            found[place] = max(seen.at_ms - int(until), 0)
    return found


async def _to_read(line: Line, layout: PartitionLayout, group: str) -> Iterable[str]:
    """Return the partitions to read now; none if this user may not read the state of an earlier generation."""
    try:
        return (await to_read(line, layout, group)).values()
    except MillstreamError:
        raise
    except Exception:  # noqa: BLE001 - the server's refusal
        return ()
