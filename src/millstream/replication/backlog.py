"""The last bytes of the stream, for replicas that take them now and for those that come back after a while.

PURE. An *offset* counts the bytes of the history from its beginning, as everywhere. Bytes are sent once they are kept
as the fsync policy asks, so that no replica is ever ahead of its primary's disk: :attr:`Backlog.sendable` says how far.
"""

from bisect import bisect_right
from collections import deque

# Bytes of a block, about; a larger unit has one of its own
_BLOCK = 64 * 1024


class Backlog:
    """The newest bytes of the stream; see the module's text."""

    def __init__(self, offset: int, size: int) -> None:
        self.end = self.sendable = offset
        self.size = size  # Size as given; may be changed at any time
        self._starts = [offset]
        self._blocks: list[bytes] = []  # one less than starts: the last block is still being added to
        self._open: list[bytes] = []  # the pieces of that one
        self._opened = 0  # and their bytes
        self._positions: deque[tuple[int, int]] = deque()  # of the log, and the offset after the bytes that wait for it

    @property
    def first(self) -> int:
        """Offset before the first byte that is still there."""
        return self._starts[0]

    def append(self, data: bytes) -> None:
        """The next bytes; :meth:`await_position` follows."""
        if self._opened >= _BLOCK:
            self._blocks.append(b"".join(self._open))
            self._starts.append(self.end)
            self._open, self._opened = [], 0
        self._open.append(data)
        self._opened += len(data)
        self.end += len(data)

    def await_position(self, position: int) -> None:
        """All there is by now may be sent once the log has reached a position."""
        positions = self._positions
        if positions and positions[-1][0] == position:
            positions.pop()
        positions.append((position, self.end))

    def kept(self, position: int) -> bool:
        """The log has reached a position; whether there is more to send now."""
        before, positions = self.sendable, self._positions
        while positions and positions[0][0] <= position:
            self.sendable = positions.popleft()[1]
        return self.sendable > before

    def next_position(self) -> int | None:
        """The position of the log that the next held-back bytes wait for; None for nothing."""
        return self._positions[0][0] if self._positions else None

    def has(self, offset: int) -> bool:
        """True if everything after an offset is still there."""
        return self.first <= offset <= self.end

    def read(self, offset: int, most: int) -> bytes:
        """Bytes after an offset that may be sent, ``most`` of them at most; empty where there are none."""
        at = bisect_right(self._starts, offset) - 1
        block, start = (self._blocks[at], self._starts[at]) if at < len(self._blocks) else self._latest(offset)
        begin, stop = offset - start, min(offset + most, self.sendable) - start
        return block[begin:stop] if stop > begin else b""

    def _latest(self, offset: int) -> tuple[bytes, int]:
        """The newest bytes from an offset or before it on, joined to one piece, and the offset before them."""
        pieces, start, count = self._open, self.end, 0
        while start > offset:
            count += 1
            start -= len(pieces[-count])
        if count > 1:
            pieces[-count:] = [b"".join(pieces[-count:])]
        return (pieces[-1] if count else b""), start

    def trim(self, needed: int) -> None:
        """Drop what is older than the size to keep, but nothing after ``needed``, an offset."""
        oldest = min(needed, self.end - self.size)
        while self._blocks and self._starts[1] <= oldest:
            del self._starts[0], self._blocks[0]
