"""The listeners of each channel, as data.

PURE. All databases share the channels, as in Redis. A message goes to exact listeners first, then to those by pattern.
A listener with two matching patterns gets it once for each. This module finds the listeners; the node delivers.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from millstream.glob import MOST_EFFORT, Effort, Pattern, price

T = TypeVar("T")


class Channels(Generic[T]):
    """Listeners by exact name or by pattern, each in the order of subscription."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[bytes, dict[T, None]] = {}

    def join(self, listener: T, name: bytes) -> None:
        """Add a listener to a name; a second time changes nothing."""
        self._by_name.setdefault(name, {})[listener] = None

    def leave(self, listener: T, name: bytes) -> None:
        """Remove a listener from a name, if it is there."""
        listeners = self._by_name.get(name)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._by_name[name]

    def listeners(self, name: bytes) -> list[T]:
        """The listeners to exactly this name."""
        return list(self._by_name.get(name, ()))

    def count(self, name: bytes) -> int:
        """The number of listeners to exactly this name."""
        return len(self._by_name.get(name, ()))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


class Patterns(Channels[T]):
    """Listeners by pattern; a pattern is compiled once, at its subscription, and not for each message."""

    __slots__ = ("_prepared",)

    def __init__(self) -> None:
        super().__init__()
        self._prepared: dict[bytes, Pattern] = {}

    def prepare(self, names: list[bytes]) -> None:
        """Compile patterns before they are joined."""
        Effort(MOST_EFFORT // 2).spend(sum(map(price, names)))
        effort = Effort()
        self._prepared.update({name: Pattern(name, effort) for name in names if name not in self._prepared})

    def leave(self, listener: T, name: bytes) -> None:
        """Remove a listener from a pattern, if it is there."""
        super().leave(listener, name)
        if not self.count(name):
            self._prepared.pop(name, None)

    def fitting(self, channel: bytes) -> list[bytes]:
        """The subscribed patterns that match a channel's name."""
        effort = Effort()
        return [name for name, pattern in self._prepared.items() if pattern.fits(channel, effort)]
