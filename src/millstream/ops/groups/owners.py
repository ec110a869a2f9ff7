"""The owners of a partitioned stream's partitions in one group, as the server has them now."""

from dataclasses import dataclass

from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.lease import owner_key, parse_owner
from millstream.ops.asking import NotReadableError, calls, checked, refusal


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """One partition."""

    number: int  # From 0
    key: str
    owner: str | None  # Consumer; None if nobody owns it now
    fence: int | None  # The owner's number, which grows with each owner
    lease_ms: int | None  # Milliseconds until the lease ends, unless it is renewed
    entries: int
    lag: int | None  # Entries that the group was not delivered; None if the server does not know it
    pending: int


async def partition_owners(line: Line, stream: str, group: str) -> list[PartitionOwner]:
    """The partitions of a stream, and who owns each.

    Raises:
        NotReadableError: the stream is not partitioned, or the server refuses to tell.
    """
    layout = await find_layout(line, stream)
    if layout is None:
        raise NotReadableError(
            f"the stream {stream!r} is not partitioned: `millstream consumer ls` shows a group's consumers"
        )
    found = []
    for number, key in enumerate(layout.keys):
        own = owner_key(key, group)
        value, left, length, groups = await calls(
            line.near(key), (("GET", own), ("PTTL", own), ("XLEN", key), ("XINFO", "GROUPS", key))
        )
        holder = parse_owner(checked(value, key))
        facts = _facts(groups, group) if refusal(groups) is None else {}
        found.append(
            PartitionOwner(
                number,
                key,
                holder[0] if holder is not None else None,
                holder[1] if holder is not None else None,
                int(left) if holder is not None and int(checked(left, key)) >= 0 else None,
                int(checked(length, key)),
                facts.get(b"lag"),
                int(facts.get(b"pending", 0) or 0),
            )
        )
    return found


def _facts(rows: list[list[object]], group: str) -> dict[object, int | None]:
    """The figures of one group; empty if it is not there."""
    for row in rows:
        facts = dict(zip(row[::2], row[1::2], strict=True))
        if facts.get(b"name") == group.encode(errors="surrogateescape"):
            return {name: value for name, value in facts.items() if isinstance(value, int | None)}
    return {}
