"""The order in which SCAN walks a database: by a checksum of the key, so that a cursor is a place among all keys.

PURE. A cursor means "all keys from here on", despite additions and deletions meanwhile. So a walk returns every key
that exists during the whole walk.

Sorting millions of keys takes too long for one call. So each step of a walk does a part of it, and returns no keys
until the order is complete, as SCAN permits.

All walks share one order. It must hold every key that existed when the walk began and still exists. So a walk that
begins while an order is being made from an earlier list of keys waits for the next order. The upper half of a cursor is
the number of its order, the lower half the place.
"""

import zlib
from collections.abc import Mapping

SLICE = 20_000  # Number of keys sorted in one step of a walk, which takes some milliseconds
MOST = 10_000  # Largest number of keys in one step, even if COUNT is higher: it is only a hint, as in Redis

# Approximate number of keys in a group, which stays unsorted until a walk reaches it
_TOGETHER = 32
_PLACES = 33  # bits of a place
# Number of orders until their numbers restart: a cursor fits 63 bits, and an old one waits for the next order at most.
NUMBERS = 2**30


def place(key: bytes) -> int:
    """The place of a key: 1 to 2**32, the same in every process; keys may share a place."""
    return zlib.crc32(key) + 1


class _Order:
    """One order of the keys, complete or in the making."""

    __slots__ = ("_done", "_groups", "_listed", "_shift", "number")

    def __init__(self, number: int, keys: Mapping[bytes, object]) -> None:
        self.number = number
        self._listed = list(keys)
        self._done = 0
        # Keys of a group share the upper bits of their places, so the groups are in order before anything is sorted
        bits = (len(self._listed) // _TOGETHER).bit_length()
        self._shift = _PLACES - bits
        self._groups: list[list[bytes]] = [[] for _ in range((2**32 >> self._shift) + 1)]

    def go_on(self, count: int) -> bool:
        """Put this many more keys in order; return True once all are."""
        groups, shift, crc32 = self._groups, self._shift, zlib.crc32
        for key in self._listed[self._done : self._done + count]:
            groups[crc32(key) + 1 >> shift].append(key)
        self._done += count
        if self._done < len(self._listed):
            return False
        self._listed = []  # all keys are in the groups now, and the list may be large
        return True

    def between(self, first: int, count: int) -> tuple[int, list[bytes]]:
        """Return about this many keys from a place on, and the place of the next key, 0 if there is none.

        Keys of one place are never split over two steps, since a cursor can only name a place.
        """
        found: list[tuple[int, bytes]] = []
        for group in range(first >> self._shift, len(self._groups)):
            here = sorted((at, key) for key in self._groups[group] if (at := place(key)) >= first)
            # One key beyond the count suffices for the next cursor, unless it shares the last key's place
            if len(found) >= count and here and here[0][0] > found[count - 1][0]:
                found.append(here[0])
                break
            found += here
        last = count
        while 0 < last < len(found) and found[last][0] == found[last - 1][0]:
            last += 1
        following = found[last][0] if last < len(found) else 0
        return following, [key for _, key in found[:last]]


class ScanOrder:
    """The orders and walks of one mapping of keys; a flush or swap starts with a new object."""

    __slots__ = ("_at_once", "_last", "_made", "_making", "_numbers")

    def __init__(self, at_once: int = SLICE, numbers: int = NUMBERS) -> None:
        self._at_once, self._numbers = at_once, numbers
        self._made: _Order | None = None
        self._making: _Order | None = None
        self._last = 0  # number of the latest order

    def step(self, keys: Mapping[bytes, object], cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Continue a walk by one step.

        Returns:
            The next cursor, 0 at the end, and keys; some of them may have been deleted meanwhile.
        """
        number, first = cursor >> _PLACES, cursor & ((1 << _PLACES) - 1)
        if cursor == 0:
            first = 1
        if cursor == 0 or number > self._last + 1:  # the next order includes all present keys
            number = self._last + 1
        order = self._order(keys, number)
        if order is None:
            return number << _PLACES | first, []
        following, found = order.between(first, min(count, MOST))
        if following:
            return number << _PLACES | following, found
        self._made = None
        return 0, found

    def _order(self, keys: Mapping[bytes, object], number: int) -> _Order | None:
        """The order with that number or a later one; None if it is not complete yet."""
        made, making = self._made, self._making
        if made is not None and made.number >= number:
            return made
        if making is None:
            # Numbers restart: an order made before would otherwise look newer than all that follow
            if self._last == self._numbers:
                self._last, self._made = 0, None
            self._last += 1
            self._making = making = _Order(self._last, keys)
        if not making.go_on(self._at_once):
            return None
        self._making, self._made = None, making
        return making if making.number >= number else None
