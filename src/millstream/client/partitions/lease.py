"""Leases of partitions: the present owner of each partition in a group, and the members that share them.

::

    millstream:{3}:owner:orders{3}:billing    string, with a time to live: "<consumer>:<fence>", the owner
    millstream:{3}:owned:orders{3}:billing    string: the milliseconds since 1970 until which it has, or had, an owner
    millstream:{3}:fence:orders{3}:billing    counter: the fence number of the last owner
    millstream:{orders}:members:billing       hash: consumer -> "<ms of its last beat>:<partitions>"; only for dividing

A lease shows which member should work on a partition. The fence numbers enforce it: the server checks every read and
every outcome of an owner in the step that acts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.client.later.scripts import ServerScript
from millstream.client.line import Line
from millstream.client.partitions.layout import PartitionLayout, descriptor_key, parse_layout
from millstream.client.slots import beside, tag_of

SCRIPT = ServerScript.beside("millstream.client.partitions", "lease.lua")


@dataclass(slots=True, eq=False)
class PartitionLease:
    """A partition that a member of this process owns."""

    stream: str  # Key of the partition
    number: int | None  # Number of the partition, from 0; None for the plain stream before partitioning
    group: str
    consumer: str
    fence: int  # Fencing number, which grows with each owner
    lasts_ms: int
    renewed: int  # Monotonic milliseconds at which the lease was last certainly held
    lost: bool = False

    @property
    def key(self) -> str:
        """Key of the partition's owner."""
        return owner_key(self.stream, self.group)

    @property
    def keys(self) -> tuple[str, str]:
        """Keys of the owner, and of the time until which there is one."""
        return self.key, owned_key(self.stream, self.group)

    @property
    def text(self) -> str:
        """Value of the owner's key while this lease holds."""
        return f"{self.consumer}:{self.fence}"


def owner_key(partition: str, group: str) -> str:
    """Return the key of a partition's owner in one group."""
    return beside(partition, "owner", group)


def owned_key(partition: str, group: str) -> str:
    """Return the key of the time until which a partition has, or had, an owner in one group."""
    return beside(partition, "owned", group)


def members_key(stream: str, group: str) -> str:
    """Return the key of the members of one group, in the slot of the stream's name."""
    return f"millstream:{{{tag_of(stream)}}}:members:{group}"


def parse_owner(value: bytes | None) -> tuple[str, int] | None:
    """Parse the consumer and the fence number from the value of an owner key; None if it is missing or invalid."""
    consumer, colon, fence = (value or b"").rpartition(b":")
    if not colon or not fence.isdigit() or len(fence) > 18:
        return None
    return consumer.decode(errors="replace"), int(fence)


async def take(line: Line, stream: str, group: str, consumer: str, lasts_ms: int) -> int | None:
    """Take a partition without an owner; return the fence number, or None if it has another owner."""
    keys = (owner_key(stream, group), owned_key(stream, group), beside(stream, "fence", group))
    reply = await SCRIPT.call(line, keys, ("take", consumer, lasts_ms))
    return reply if isinstance(reply, int) else None


async def renew(line: Line, lease: PartitionLease) -> bool:
    """Extend a lease; return False if it was lost."""
    return bool(await SCRIPT.call(line, lease.keys, ("renew", lease.text, lease.lasts_ms)))


async def give(line: Line, lease: PartitionLease) -> None:
    """End a lease, so that another member may take the partition."""
    await SCRIPT.call(line, lease.keys, ("give", lease.text, 0))


async def meet(
    line: Line, stream: str, group: str, consumer: str, partitions: frozenset[int], lasts_ms: int
) -> tuple[Mapping[str, frozenset[int]], PartitionLayout | None]:
    """Publish this member's partitions; return the partitions of each living member, and the present layout.

    Raises:
        LayoutError: Millstream did not write the descriptor.
    """
    own = ",".join(map(str, sorted(partitions)))
    keys = members_key(stream, group), descriptor_key(stream)
    descriptor, *flat = await SCRIPT.call(line, keys, ("meet", consumer, own, lasts_ms))
    members = {
        name.decode(errors="surrogateescape"): frozenset(int(one) for one in row.split(b",") if 0 < len(one) < 8)
        for name, row in zip(flat[::2], flat[1::2], strict=True)
    }
    return members, parse_layout(stream, descriptor)


async def leave(line: Line, stream: str, group: str, consumer: str) -> None:
    """Remove this member from the members that share the partitions."""
    await line.call("HDEL", members_key(stream, group), consumer)
