"""The division of partitions among members: each decides alone, by its own look at all of them. Pure.

Nothing is taken from a member that works. It gives up its surplus itself, and others take what is free.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

#: Looks in a row that a partition is free at, before a member takes it beyond its share. A member that seems alive and
#: takes nothing, since it is frozen or starts, would else leave it without an owner for one lease more.
FREE_LOOKS = 3


def share(number: int, members: Collection[str], me: str) -> int:
    """The partitions that are a member's share."""
    names = sorted({*members, me})
    least, more = divmod(number, len(names))
    return least + (names.index(me) < more)


@dataclass(slots=True)
class Division:
    """One member's part in the division."""

    all: Collection[int]  # The partitions to divide
    me: str  # Its name
    beyond: bool = True  # It also takes free ones beyond its share
    looks: dict[int, int] = field(default_factory=dict)  # Free partitions, and the looks in a row that they were free

    def surplus(self, members: Collection[str], owned: Collection[int]) -> int:
        """The number of partitions to give up."""
        return max(len(owned) - share(len(self.all), members, self.me), 0)

    def wanted(self, members: Mapping[str, Collection[int]], owned: Collection[int]) -> list[int]:
        """The partitions to take now; each call is one look."""
        claimed = {one for each in members.values() for one in each}
        free = [one for one in self.all if one not in claimed and one not in owned]
        self.looks = {one: self.looks.get(one, 0) + 1 for one in free}
        # Members begin at different ones, so that they seldom want the same
        free.sort(key=lambda one: zlib.crc32(f"{self.me}:{one}".encode()))
        room = max(share(len(self.all), members, self.me) - len(owned), 0)
        late = [one for one in free[room:] if self.beyond and self.looks[one] >= FREE_LOOKS]
        return free[:room] + late
