"""The stream of a primary as it comes in, cut into units: what is run as a whole or not at all. PURE.

A unit is one command, or all from MULTI to EXEC. Its size is that of its bytes, which the offset counts: whatever
changes no data (PING, SELECT, REPLCONF GETACK) counts too. An open MULTI has no size yet, so a link that is cut in it
goes on before it.
"""

import re
from dataclasses import dataclass

from millstream.errors import ProtocolError

# Bytes of a line with a number: more is no number
_LINE_MAX = 32
_NUMBER = re.compile(rb"[*$]-?[0-9]+")
# Bytes that were taken before the rest is moved to the front
_USED_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ReceivedUnit:
    """What is run together.

    Attributes:
        commands: the words of each, without MULTI and EXEC.
        size: bytes of the stream.
        in_multi: they stood between MULTI and EXEC.
    """

    commands: list[list[bytes]]
    size: int
    in_multi: bool = False


class ReceivedStream:
    """Bytes in by :meth:`feed` in whatever pieces, units out of :meth:`next`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # behind what was read
        self._begin = 0  # of the unit being read; below 0 where its first bytes were dropped
        self._words: list[bytes] = []  # of the command being read
        self._left = 0  # words that it still has
        self._length = -1  # of the word being read; -1 before that is known
        self._open: list[list[bytes]] | None = None  # commands behind a MULTI

    @property
    def waiting(self) -> int:
        """Bytes that came and are in no unit yet that was taken."""
        return len(self._data) - self._begin

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._data += data

    def next(self) -> ReceivedUnit | None:
        """The next unit, or None until more has come.

        Raises:
            ProtocolError: the bytes are no commands.
        """
        while (words := self._command()) is not None:
            if not words:
                continue
            name = words[0].upper()
            if name == b"MULTI" and self._open is None:
                self._open = []
            elif name == b"EXEC" and self._open is not None:
                commands, self._open = self._open, None
                return ReceivedUnit(commands, self._taken(), in_multi=True)
            elif self._open is not None:
                self._open.append(words)
            else:
                return ReceivedUnit([words], self._taken())
        return None

    def take(self, size: int) -> bytes:
        """The bytes of the units that were taken last, at most so many back."""
        return bytes(self._data[self._begin - size : self._begin])

    def _taken(self) -> int:
        size = self._at - self._begin
        self._begin = self._at
        return size

    def drop(self) -> None:
        """The bytes of the units that were taken are needed no more."""
        if self._begin >= _USED_MAX or self._begin == len(self._data):
            del self._data[: self._begin]
            self._at -= self._begin
            self._begin = 0

    def _command(self) -> list[bytes] | None:
        """The next command's words, none for an empty one; None until it is whole."""
        if not self._left:
            count = self._number(b"*")
            if count is None:
                return None
            self._left = max(count, 0)
        data = self._data
        while self._left:
            if self._length < 0:
                length = self._number(b"$")
                if length is None:
                    return None
                if length < 0:
                    raise ProtocolError("the primary has sent a word of no length")
                self._length = length
            end = self._at + self._length
            if len(data) < end + 2:
                return None
            self._words.append(bytes(data[self._at : end]))
            self._at, self._length = end + 2, -1
            self._left -= 1
        words, self._words = self._words, []
        return words

    def _number(self, sigil: bytes) -> int | None:
        """The number of a line; None until that is whole."""
        end = self._data.find(b"\r\n", self._at, self._at + _LINE_MAX)
        if end < 0 and len(self._data) - self._at < _LINE_MAX:
            return None
        line = bytes(self._data[self._at : end if end >= 0 else self._at + _LINE_MAX])
        if end < 0 or not _NUMBER.fullmatch(line) or line[:1] != sigil:
            raise ProtocolError(f"the primary has sent {line!r} where a line with {sigil.decode()} was due")
        self._at = end + 2
        return int(line[1:])
