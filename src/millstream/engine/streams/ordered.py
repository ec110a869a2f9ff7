"""Whole numbers in order: added and removed anywhere at the cost of a short list, however many there are.

PURE. The numbers lie in ascending pieces of bounded length, none of them empty; a number is found by bisecting the last
numbers of the pieces, and then its piece. Most arrive at the end and leave at the front, which is cheaper still.

A plain sorted list moves all numbers behind the place for each change, which for a million pending records is
megabytes; a tree in Python pays with an object for each number. Moving a few kilobytes of pointers costs less than
either.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import ClassVar


class Ordered:
    """Different whole numbers, ascending.

    Attributes:
        PIECE: numbers in a piece; one that grows to twice this is cut in two. Of the class: groups have many of these.
    """

    __slots__ = ("_lasts", "_pieces")
    PIECE: ClassVar[int] = 512

    def __init__(self, ascending: Iterable[int] = ()) -> None:
        numbers = list(ascending)
        self._pieces = [numbers[at : at + self.PIECE] for at in range(0, len(numbers), self.PIECE)]
        self._lasts = [piece[-1] for piece in self._pieces]

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def add(self, number: int) -> int | None:
        """Add a number that is not there; returns the one before it, if there is one.

        A full last piece is not cut but followed by a new one: numbers that ascend, as ids do, leave full pieces
        behind.
        """
        pieces, lasts = self._pieces, self._lasts
        if not lasts:
            pieces.append([number])
            lasts.append(number)
            return None
        before = lasts[-1]
        if number > before:
            if len(pieces[-1]) < self.PIECE:
                pieces[-1].append(number)
                lasts[-1] = number
            else:
                pieces.append([number])
                lasts.append(number)
            return before
        index = bisect_left(lasts, number)
        piece = pieces[index]
        at = bisect_left(piece, number)
        piece.insert(at, number)
        if len(piece) >= 2 * self.PIECE:
            pieces[index : index + 1] = [piece[: self.PIECE], piece[self.PIECE :]]
            lasts.insert(index, piece[self.PIECE - 1])
        if at:
            return piece[at - 1]
        return lasts[index - 1] if index else None

    def remove(self, number: int) -> None:
        """Remove a number that is there.

        The very first is looked at first: acknowledging in order is what most groups do.
        """
        pieces = self._pieces
        piece = pieces[0]
        if piece[0] == number:
            del piece[0]
            if not piece:
                del pieces[0], self._lasts[0]
            return
        lasts = self._lasts
        index = bisect_left(lasts, number)
        piece = pieces[index]
        at = bisect_left(piece, number)
        del piece[at]
        if not piece:
            del pieces[index], lasts[index]
        elif at == len(piece):
            lasts[index] = piece[-1]

    def first(self) -> int:
        """The smallest; there must be one."""
        return self._pieces[0][0]

    def last(self) -> int:
        """The largest; there must be one."""
        return self._lasts[-1]

    def walk(self, start: int) -> Iterator[int]:
        """Those from ``start`` on. They must not change meanwhile."""
        index = bisect_left(self._lasts, start)
        if index == len(self._pieces):
            return
        piece = self._pieces[index]
        yield from piece[bisect_left(piece, start) :]
        for later in range(index + 1, len(self._pieces)):
            yield from self._pieces[later]
