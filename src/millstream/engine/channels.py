"""Who listens to which channel, as data.

PURE. Channels are shared by all databases, as in Redis.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channels(Generic[T]):
    """Listeners by exact name or by pattern, each in the order in which they began to listen."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[bytes, dict[T, None]] = {}

    def join(self, listener: T, name: bytes) -> None:
        """Listen; twice is once."""
        self._by_name.setdefault(name, {})[listener] = None

    def leave(self, listener: T, name: bytes) -> None:
        """Stop listening, if it did."""
        listeners = self._by_name.get(name)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._by_name[name]

    def listeners(self, name: bytes) -> list[T]:
        """Those who listen to exactly this name."""
        return list(self._by_name.get(name, ()))

    def count(self, name: bytes) -> int:
        """How many listen to exactly this name."""
        return len(self._by_name.get(name, ()))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)
