"""A primary's stream as received, cut into units: commands that run as a whole or not at all. PURE.

A unit is one command, or all from MULTI to EXEC. Its size is the number of its bytes, which the offset counts. Commands
that change no data (PING, SELECT, REPLCONF GETACK) count too. An open MULTI has no size yet, so after a disconnection
inside it the replica continues before it.
"""

import re
from dataclasses import dataclass

from millstream.errors import ProtocolError

# Largest line with a number, in bytes
_LINE_MAX = 32
_NUMBER = re.compile(rb"-?[0-9]+")  # int() would also accept other forms
_STAR, _DOLLAR = b"*$"
# Number of used bytes after which the unread ones are moved to the front
_USED_MAX = 1 << 20
# Approximate additional memory of an argument, in bytes
_WORD = 64


@dataclass(frozen=True, slots=True)
class ReceivedUnit:
    """Commands that are run together."""

    commands: list[list[bytes]]  # Arguments of each command, without MULTI and EXEC
    size: int  # Bytes of the stream that it takes
    in_multi: bool = False  # True if the commands were between MULTI and EXEC


class ReceivedStream:
    """Parser that accepts bytes by :meth:`feed` in any pieces and returns units by :meth:`next`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # position after the bytes that were parsed
        self._begin = 0  # position of the unit being parsed
        self._kept = 0  # bytes of units that were taken but not dropped yet
        self._given_back = 0  # number of unread bytes at the last :meth:`give_back`
        self._words: list[bytes] = []  # arguments of the command being parsed
        self._left = 0  # number of its missing arguments
        self._length = -1  # length of the present argument; -1 before it is known
        self._open: list[list[bytes]] | None = None  # commands after a MULTI
        self._open_words = 0  # number of arguments of these commands

    @property
    def waiting(self) -> int:
        """Number of received bytes after the last unit taken."""
        return len(self._data) - self._begin

    @property
    def cost(self) -> int:
        """Approximate memory of the waiting data in bytes; many small arguments take many times their size."""
        return self.waiting + _WORD * (self._open_words + len(self._words))

    def feed(self, data: bytes) -> None:
        """Accept bytes from the primary."""
        self._data += data

    def next(self) -> ReceivedUnit | None:
        """Return the next unit, or None until more bytes are received."""
        while (words := self._command()) is not None:
            if not words:
                continue
            name = words[0].upper()
            if name == b"MULTI" and self._open is None:
                self._open = []
            elif name == b"EXEC" and self._open is not None:
                commands, self._open, self._open_words = self._open, None, 0
                return ReceivedUnit(commands, self._taken(), in_multi=True)
            elif self._open is not None:
                self._open.append(words)
                self._open_words += len(words) + 1  # 1 for the list itself
            else:
                return ReceivedUnit([words], self._taken())
        return None

    def head(self, most: int) -> bytes:
        """Return at most ``most`` bytes from the next unit's first on; none while a unit is being read."""
        if self._at != self._begin or self._left or self._open is not None:
            return b""
        return bytes(self._data[self._begin : self._begin + most])

    def give_back(self) -> None:
        """Return the incomplete unit to the head, so that it is read again after more bytes are received.

        Twice as many bytes must wait each time. Otherwise bytes that arrive one by one would be read again each time.
        """
        if self.waiting >= 2 * self._given_back:
            self._given_back = self.waiting
            self._at, self._words, self._left, self._length = self._begin, [], 0, -1
            self._open, self._open_words = None, 0

    def skip(self, size: int) -> None:
        """Skip ``size`` bytes of :meth:`head`, which must be whole units."""
        self._at = self._begin = self._begin + size
        self._given_back = 0

    def taken(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the units taken since :meth:`drop`."""
        return bytes(self._data[self._kept : self._kept + size])

    def _taken(self) -> int:
        size = self._at - self._begin
        self._begin = self._at
        self._given_back = 0
        return size

    def drop(self) -> None:
        """Drop the bytes of the units taken so far."""
        if self._begin >= _USED_MAX or self._begin == len(self._data):
            del self._data[: self._begin]
            self._at -= self._begin
            self._begin = 0
        self._kept = self._begin

    def _command(self) -> list[bytes] | None:
        """Return the next command's arguments, an empty list for an empty command; None until it is complete."""
        if not self._left:
            count = self._number(_STAR)
            if count is None:
                return None
            self._left = max(count, 0)
        data, words, available = self._data, self._words, len(self._data)
        while self._left:
            length = self._length
            if length < 0:
                found = self._number(_DOLLAR)
                if found is None:
                    return None
                if found < 0:
                    raise ProtocolError("the primary has sent a word of no length")
                self._length = length = found
            end = self._at + length
            if available < end + 2:
                return None
            words.append(bytes(data[self._at : end]))
            self._at, self._length = end + 2, -1
            self._left -= 1
        self._words = []
        return words

    def _number(self, sigil: int) -> int | None:
        """Return the number of a line; None until the line is complete."""
        data, at = self._data, self._at
        end = data.find(b"\r\n", at, at + _LINE_MAX)
        if end < 0 and len(data) - at < _LINE_MAX:
            return None
        if end > at and data[at] == sigil and _NUMBER.fullmatch(data, at + 1, end):
            self._at = end + 2
            return int(data[at + 1 : end])
        line = bytes(data[at : end if end >= 0 else at + _LINE_MAX])
        raise ProtocolError(f"the primary has sent {line!r} where a line with {chr(sigil)} was due")
