"""The newest bytes of the stream, for replicas that follow and for those that reconnect after a while.

PURE. An *offset* counts the bytes of the history from its beginning, as everywhere. Bytes are sent only after the log
has them as durable as the fsync policy requires, so that no replica is ever ahead of its primary's disk.
:attr:`Backlog.sendable` is the offset up to which bytes may be sent.
"""

from bisect import bisect_right
from collections import deque

# Approximate size of a block in bytes; a larger unit has its own block
_BLOCK = 64 * 1024


class Backlog:
    """The newest bytes of the stream, and the offset up to which they may be sent."""

    def __init__(self, offset: int, size: int) -> None:
        self.end = self.sendable = offset
        self.size = size  # Number of bytes to keep, which may be changed at any time
        self._starts = [offset]
        self._blocks: list[bytes] = []  # one block less than offsets in starts, since the last block is still growing
        self._open: list[bytes] = []  # pieces of the last block
        self._opened = 0  # total size of these pieces in bytes
        self._positions: deque[tuple[int, int]] = deque()  # log position -> offset after the bytes that wait for it

    @property
    def first(self) -> int:
        """Offset before the first byte that is still available."""
        return self._starts[0]

    def append(self, data: bytes) -> None:
        """Append the next bytes; :meth:`await_position` must follow."""
        if self._opened >= _BLOCK:
            self._blocks.append(b"".join(self._open))
            self._starts.append(self.end)
            self._open, self._opened = [], 0
        self._open.append(data)
        self._opened += len(data)
        self.end += len(data)

    def await_position(self, position: int) -> None:
        """Hold back the bytes appended so far until the log has reached a position."""
        positions = self._positions
        if positions and positions[-1][0] == position:
            positions.pop()
        positions.append((position, self.end))

    def kept(self, position: int) -> bool:
        """Release the bytes that waited for a position of the log; return True if more bytes may be sent now."""
        before, positions = self.sendable, self._positions
        while positions and positions[0][0] <= position:
            self.sendable = positions.popleft()[1]
        return self.sendable > before

    def next_position(self) -> int | None:
        """Return the log position for which the next held-back bytes wait; None if none are held back."""
        return self._positions[0][0] if self._positions else None

    def has(self, offset: int) -> bool:
        """Return True if all bytes after an offset are still available."""
        return self.first <= offset <= self.end

    def read(self, offset: int, most: int) -> bytes:
        """Return at most ``most`` sendable bytes after an offset; empty if there are none."""
        at = bisect_right(self._starts, offset) - 1
        block, start = (self._blocks[at], self._starts[at]) if at < len(self._blocks) else self._latest(offset)
        begin, stop = offset - start, min(offset + most, self.sendable) - start
        return block[begin:stop] if stop > begin else b""

    def _latest(self, offset: int) -> tuple[bytes, int]:
        """Join the newest pieces from an offset on; return them with the offset before them."""
        pieces, start, count = self._open, self.end, 0
        while start > offset:
            count += 1
            start -= len(pieces[-count])
        if count > 1:
            pieces[-count:] = [b"".join(pieces[-count:])]
        return (pieces[-1] if count else b""), start

    def trim(self, needed: int) -> None:
        """Drop bytes beyond the size to keep, but none after the offset ``needed``."""
        oldest = min(needed, self.end - self.size)
        while self._blocks and self._starts[1] <= oldest:
            del self._starts[0], self._blocks[0]
