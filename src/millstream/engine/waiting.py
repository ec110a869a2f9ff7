"""The clients that wait for each key, as data, in the order in which they began to wait.

PURE. A waiter is in the line of each of its keys. When it is served, times out or disconnects, it leaves all of them.

Clients can see the order of service: a list's element, or an entry of a group, goes to one of them. So lines are first
come, first served, as in Redis. This module does not check if a key has data for a waiter: the node runs the waiter's
command again.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Place = tuple[int, bytes]


class WaitingLines(Generic[T]):
    """Lines of waiters by database and key; a line is a dictionary, so leaving from the middle is cheap."""

    __slots__ = ("by_place",)

    def __init__(self) -> None:
        self.by_place: dict[Place, dict[T, None]] = {}  # Waiters for each place; only to be read.

    def join(self, waiter: T, places: list[Place]) -> None:
        """Add a waiter to the end of each line."""
        for place in places:
            self.by_place.setdefault(place, {})[waiter] = None

    def leave(self, waiter: T, places: list[Place]) -> None:
        """Remove a waiter from these lines."""
        for place in places:
            line = self.by_place.get(place)
            if line is not None:
                line.pop(waiter, None)
                if not line:
                    del self.by_place[place]

    def rejoin(self, waiter: T, places: list[Place]) -> None:
        """Move a waiter to the end of each of its lines; a line with one waiter moves to the end as a new one."""
        for place in places:
            line = self.by_place[place]
            if len(line) == 1:
                self.by_place[place] = self.by_place.pop(place)
            else:
                line[waiter] = line.pop(waiter)

    def __contains__(self, place: Place) -> bool:
        return place in self.by_place

    def line(self, place: Place) -> list[T]:
        """The waiters at this place, the one that waits longest first."""
        return list(self.by_place.get(place, ()))

    def places(self) -> Iterator[Place]:
        """Every place with waiters."""
        return iter(self.by_place)
