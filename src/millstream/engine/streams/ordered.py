"""A dictionary of whole numbers in order, with changes that cost the same at any size and position.

PURE. The numbers are in ascending pieces of bounded length, none of them empty, and each piece has a list of its
values. One bisection over the last numbers of the pieces finds the piece, a second one the number. Most numbers are
added at the end and removed at the front, which is cheaper still.

A plain sorted list moves all later numbers for each change, which for a million pending records is megabytes. A tree in
Python costs an object for each number, and a separate dictionary up to a hundred bytes. Moving a few kilobytes of
pointers is cheaper than each of them.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar, Generic, TypeVar

V = TypeVar("V")


class Ordered(Generic[V]):
    """Values by distinct whole numbers, in ascending order."""

    __slots__ = ("_lasts", "_pieces", "_values")
    # Numbers in a piece; one with twice as many is split. A class attribute, since groups have many pieces.
    PIECE: ClassVar[int] = 512

    def __init__(self) -> None:
        self._pieces: list[list[int]] = []
        self._values: list[list[V]] = []
        self._lasts: list[int] = []

    def fill(self, numbers: list[int], values: list[V]) -> None:
        """Replace all contents by the given numbers and values."""
        starts = range(0, len(numbers), self.PIECE)
        self._pieces = [numbers[at : at + self.PIECE] for at in starts]
        self._values = [values[at : at + self.PIECE] for at in starts]
        self._lasts = [piece[-1] for piece in self._pieces]

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def __bool__(self) -> bool:
        return bool(self._lasts)

    def _find(self, number: int) -> tuple[int, int] | None:
        """Return the piece of an existing number, and its position in the piece."""
        pieces, lasts = self._pieces, self._lasts
        if not lasts or number > lasts[-1]:
            return None
        # A shortcut for the very first number: most groups acknowledge in order
        if pieces[0][0] == number:
            return 0, 0
        index = bisect_left(lasts, number)
        piece = pieces[index]
        at = bisect_left(piece, number)
        return (index, at) if piece[at] == number else None

    def get(self, number: int) -> V | None:
        """The value of a number."""
        found = self._find(number)
        return None if found is None else self._values[found[0]][found[1]]

    def put(self, number: int, value: V) -> V | None:
        """Set a number's value; return the previous value, or else the value of the number before it, if any.

        A full last piece is not split; a new piece follows it. So ascending numbers, such as ids, leave full pieces.
        """
        pieces, values, lasts = self._pieces, self._values, self._lasts
        # A shortcut without binary search: ids and times usually arrive in order
        if not lasts or number > lasts[-1]:
            before = values[-1][-1] if lasts else None
            if lasts and len(pieces[-1]) < self.PIECE:
                pieces[-1].append(number)
                values[-1].append(value)
                lasts[-1] = number
            else:
                pieces.append([number])
                values.append([value])
                lasts.append(number)
            return before
        if number == lasts[-1]:
            before, values[-1][-1] = values[-1][-1], value
            return before
        index = bisect_left(lasts, number)
        piece, beside = pieces[index], values[index]
        at = bisect_left(piece, number)
        if piece[at] == number:
            before, beside[at] = beside[at], value
            return before
        # Read before the insertion, which shifts the items
        before = beside[at - 1] if at else values[index - 1][-1] if index else None
        piece.insert(at, number)
        beside.insert(at, value)
        if len(piece) >= 2 * self.PIECE:
            pieces[index : index + 1] = [piece[: self.PIECE], piece[self.PIECE :]]
            values[index : index + 1] = [beside[: self.PIECE], beside[self.PIECE :]]
            # The second half keeps the old last number, so only that of the first half is new
            lasts.insert(index, piece[self.PIECE - 1])
        return before

    def extend(self, numbers: list[int], values: list[V]) -> None:
        """Add several ascending numbers that are above all others, as :meth:`put` would one by one."""
        # Negative if insertions have made the last piece longer than PIECE: nothing fits then
        room = self.PIECE - len(self._pieces[-1]) if self._pieces else 0
        if room > 0:
            self._pieces[-1] += numbers[:room]
            self._values[-1] += values[:room]
            self._lasts[-1] = self._pieces[-1][-1]
        for at in range(max(room, 0), len(numbers), self.PIECE):
            self._pieces.append(numbers[at : at + self.PIECE])
            self._values.append(values[at : at + self.PIECE])
            self._lasts.append(self._pieces[-1][-1])

    def begins_with(self, numbers: list[int]) -> bool:
        """True if the given numbers are the first ones, in this order; False if they span several pieces."""
        return bool(self._pieces) and self._pieces[0][: len(numbers)] == numbers

    def pop_first(self, count: int) -> list[V]:
        """Remove this many numbers from the front, all of them in one piece; return their values."""
        piece, values = self._pieces[0], self._values[0]
        # begins_with() is False for numbers that span two pieces, so this piece contains all of them
        popped = values[:count]
        if count == len(piece):
            del self._pieces[0], self._values[0], self._lasts[0]
        else:
            del piece[:count], values[:count]
        return popped

    def pop(self, number: int) -> V | None:
        """Remove a number; return its value, or None if it does not exist."""
        found = self._find(number)
        if found is None:
            return None
        index, at = found
        piece = self._pieces[index]
        del piece[at]
        value = self._values[index].pop(at)
        if not piece:
            del self._pieces[index], self._values[index], self._lasts[index]
        # Invariant: lasts[i] == pieces[i][-1], and no piece is empty; otherwise binary searches fail
        elif at == len(piece):
            self._lasts[index] = piece[-1]
        return value

    def first(self) -> int:
        """The smallest number; there must be one."""
        return self._pieces[0][0]

    def last(self) -> int:
        """The largest number; there must be one."""
        return self._lasts[-1]

    def walk(self, start: int) -> Iterator[V]:
        """Values of the numbers from ``start`` on. The dictionary must not change meanwhile."""
        index = bisect_left(self._lasts, start)
        if index == len(self._pieces):
            return iter(())
        at = bisect_left(self._pieces[index], start)
        # Lazy after the first piece: XPENDING of ten records must not copy a million
        later = (self._values[index] for index in range(index + 1, len(self._values)))
        return chain(self._values[index][at:], chain.from_iterable(later))
