"""The order in which SCAN walks a database: by a checksum of the key, so that a cursor is a place among all keys.

PURE. A cursor means "what stands from here on", whatever was added or deleted meanwhile, so every key that is there
during the whole walk is answered; and it means the same to the next process. From its first walk on a database keeps
its keys in groups by the upper half of their places: a step sorts one group or a few, and looks at no other key.
"""

import zlib
from collections import defaultdict
from typing import Any, TypeVar

from millstream.engine.ordered import Ordered

V = TypeVar("V")
_LOWER = 16  # bits of a place within a group


def place(key: bytes) -> int:
    """Where a key stands: 1 to 2**32, the same in every process; keys may share a place."""
    return zlib.crc32(key) + 1


class WalkedKeys(dict[bytes, V]):
    """The keys of a database that is walked.

    Only what the transitions of the keyspace use keeps the groups: setting an item, deleting one, and ``pop``.
    """

    def __init__(self, keys: dict[bytes, V]) -> None:
        super().__init__(keys)
        groups: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            groups[zlib.crc32(key) >> _LOWER].append(key)
        self._groups = dict(groups)
        self._numbers = Ordered(sorted(groups))

    def __setitem__(self, key: bytes, value: V) -> None:
        if key not in self:
            number = zlib.crc32(key) >> _LOWER
            group = self._groups.get(number)
            if group is None:
                self._groups[number] = [key]
                self._numbers.add(number)
            else:
                group.append(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        self._leave(key)

    def pop(self, key: bytes, *default: Any) -> Any:
        """Remove a key and answer its value."""
        if key in self:
            self._leave(key)
        return super().pop(key, *default)

    def _leave(self, key: bytes) -> None:
        number = zlib.crc32(key) >> _LOWER
        group = self._groups[number]
        group.remove(key)
        if not group:
            del self._groups[number]
            self._numbers.remove(number)

    def step(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """One step of a walk.

        Args:
            cursor: 0 to begin, else what the step before returned.
            count: keys wanted; more come where many share a place.

        Returns:
            The next cursor, 0 at the end, and the keys.
        """
        found: list[bytes] = []
        for number in self._numbers.walk(max(cursor - 1, 0) >> _LOWER):
            if len(found) >= count:
                return (number << _LOWER) + 1, found
            last = 0
            for at, key in sorted((place(key), key) for key in self._groups[number]):
                if at < cursor:
                    continue
                if len(found) >= count and at != last:  # a place is answered as a whole
                    return at, found
                found.append(key)
                last = at
        return 0, found
