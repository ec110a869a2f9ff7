"""The order in which SCAN walks a database: by a checksum of the key, so that a cursor is a place among all keys.

PURE. A cursor means "what stands from here on", whatever was added or deleted meanwhile, so every key that is there
during the whole walk is answered. Sorting is done once a walk and kept, not at every step.
"""

import zlib
from bisect import bisect_left
from collections.abc import Mapping


def place(key: bytes) -> int:
    """Where a key stands: 1 to 2**32, the same in every process; keys may share a place."""
    return zlib.crc32(key) + 1


class ScanOrder:
    """The sorted keys of one database, as some walk found them when it began.

    Every walk under way shares it. It is made anew when a walk begins, so a key that was there when *this* walk began
    and still is must be in it; keys that came or went since may be missing or too many.
    """

    __slots__ = ("_keys", "_places", "_sorted")

    def __init__(self) -> None:
        self._keys: Mapping[bytes, object] | None = None
        self._places: list[int] = []
        self._sorted: list[bytes] = []

    def step(self, keys: Mapping[bytes, object], cursor: int, count: int) -> tuple[int, list[bytes]]:
        """One step of a walk.

        Args:
            keys: the database's keys; another mapping than last time (after a flush or swap) is another database.
            cursor: 0 to begin, else what the step before returned.
            count: keys wanted; more come where many share a place.

        Returns:
            The next cursor, 0 at the end, and keys of which some may be gone.
        """
        if cursor == 0 or self._keys is not keys:
            placed = sorted((place(key), key) for key in keys)
            self._places = [found for found, _ in placed]
            self._sorted = [key for _, key in placed]
            self._keys = keys
        first = bisect_left(self._places, cursor)
        last = first + count
        if last < len(self._places):  # a place is answered as a whole
            last = bisect_left(self._places, self._places[last - 1] + 1)
        found = self._sorted[first:last]
        if last < len(self._places):
            return self._places[last], found
        self._keys, self._places, self._sorted = None, [], []
        return 0, found
