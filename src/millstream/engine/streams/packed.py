"""Numbers packed in few bytes: the ids of a sealed block, and the positions of its entries.

PURE. A list of ints costs 8 bytes for each and 32 to 40 for the int. A block takes no more entries once it is sealed.
So its ids become two arrays with the smallest items that fit: milliseconds since the first id, and sequences.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from millstream.engine.ids import MAX64

# Arrays use the machine's byte order; packed ids are big-endian
_SWAPPED = array("H", [1]).tobytes() != b"\0\1"


def smallest(numbers: Sequence[int]) -> "array[int]":
    """Return an array with the smallest item type that holds the numbers, none of them negative."""
    highest = max(numbers, default=0)
    return array("B" if highest < 1 << 8 else "H" if highest < 1 << 16 else "I" if highest < 1 << 32 else "Q", numbers)


class PackedIds:
    """A read-only sequence of ids that do not descend.

    Invariants: the arrays are equally long and not empty; equal milliseconds have sequences that do not descend.
    """

    __slots__ = ("_base", "_ms", "_seq")

    def __init__(self, ms: Sequence[int], seq: Sequence[int]) -> None:
        self._base = ms[0]
        self._ms = smallest([each - self._base for each in ms])
        self._seq = smallest(seq)

    @classmethod
    def of(cls, ids: list[int]) -> "PackedIds":
        """Return the packed ids of a list."""
        return cls([each >> 64 for each in ids], [each & MAX64 for each in ids])

    @classmethod
    def unpack(cls, data: bytes) -> "PackedIds":
        """Return the packed ids of 16-byte pieces, as made by :func:`millstream.engine.ids.pack_all`."""
        halves = struct.unpack(f">{len(data) // 8}Q", data)
        return cls(halves[::2], halves[1::2])

    def pack(self) -> bytes:
        """All ids as a run of 16-byte pieces."""
        both = array("Q", bytes(16 * len(self._ms)))
        both[::2] = array("Q", [self._base + ms for ms in self._ms])
        both[1::2] = array("Q", self._seq)
        if _SWAPPED:
            both.byteswap()
        return both.tobytes()

    def __len__(self) -> int:
        return len(self._ms)

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        base = self._base
        if isinstance(place, slice):
            return [base + ms << 64 | seq for ms, seq in zip(self._ms[place], self._seq[place], strict=True)]
        return base + self._ms[place] << 64 | self._seq[place]

    def copy(self) -> list[int]:
        """All ids as a new list."""
        return self[:]

    def left(self, entry_id: int) -> int:
        """Number of ids below this one, as :func:`bisect.bisect_left`, with one bisection of each array."""
        low, high = self._same_ms(entry_id)
        return bisect_left(self._seq, entry_id & MAX64, low, high)

    def right(self, entry_id: int) -> int:
        """Number of ids at or below this one."""
        low, high = self._same_ms(entry_id)
        return bisect_right(self._seq, entry_id & MAX64, low, high)

    def _same_ms(self, entry_id: int) -> tuple[int, int]:
        ms = (entry_id >> 64) - self._base
        # A millisecond before the base is negative here, and both searches return 0 for it
        low = bisect_left(self._ms, ms)
        return low, bisect_right(self._ms, ms, low)
