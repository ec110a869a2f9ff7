"""The division of partitions among members: each member decides alone, by what it sees of all members. Pure.

No partition is taken from a working member. A member gives up its surplus itself, and others take free partitions.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

#: Number of successive checks that find a partition free before a member takes it beyond its share. Otherwise a member
#: that seems alive but takes nothing (it is frozen or starting) would leave it without an owner for another lease.
FREE_LOOKS = 3


def share(number: int, members: Collection[str], me: str) -> int:
    """Return the number of partitions that are a member's share."""
    names = sorted({*members, me})
    least, more = divmod(number, len(names))
    return least + (names.index(me) < more)


@dataclass(slots=True)
class Division:
    """The decisions of one member in the division."""

    all: Collection[int]  # Partitions to divide
    me: str  # Name of this member
    beyond: bool = True  # Also take free partitions beyond the member's share
    looks: dict[int, int] = field(default_factory=dict)  # Number of successive checks that found each partition free

    def surplus(self, members: Collection[str], owned: Collection[int]) -> int:
        """Return the number of partitions to give up."""
        return max(len(owned) - share(len(self.all), members, self.me), 0)

    def wanted(self, members: Mapping[str, Collection[int]], owned: Collection[int]) -> list[int]:
        """Return the partitions to take now; each call counts as one look."""
        claimed = {one for each in members.values() for one in each}
        free = [one for one in self.all if one not in claimed and one not in owned]
        self.looks = {one: self.looks.get(one, 0) + 1 for one in free}
        # Members begin with different partitions, so that they seldom try the same one
        free.sort(key=lambda one: zlib.crc32(f"{self.me}:{one}".encode()))
        room = max(share(len(self.all), members, self.me) - len(owned), 0)
        late = [one for one in free[room:] if self.beyond and self.looks[one] >= FREE_LOOKS]
        return free[:room] + late
