"""The last bytes of the stream, for replicas that take them now and for those that come back after a while.

PURE. An *offset* counts the bytes of the history from its beginning, as everywhere. Bytes are sent once they are kept
as the fsync policy asks, so that no replica is ever ahead of its primary's disk: :attr:`Backlog.sendable` says how far.
"""

from bisect import bisect_right
from collections import deque

# Bytes of a block, about; a larger unit has one of its own
_BLOCK = 64 * 1024


class Backlog:
    """See the module's text.

    Args:
        offset: where the history stands; what comes next is its next byte.
        size: bytes to keep, at least.

    Attributes:
        end: offset of all there is.
        sendable: offset up to which replicas may be sent what there is.
        size: as given; may be changed at any time.
    """

    def __init__(self, offset: int, size: int) -> None:
        self.end = self.sendable = offset
        self.size = size
        self._starts = [offset]
        self._blocks = [bytearray()]
        self._positions: deque[tuple[int, int]] = deque()  # of the log, and the offset behind what waits for it

    @property
    def first(self) -> int:
        """Offset before the first byte that is still there."""
        return self._starts[0]

    def append(self, data: bytes) -> None:
        """The next bytes; :meth:`await_position` follows."""
        if len(self._blocks[-1]) >= _BLOCK:
            self._starts.append(self.end)
            self._blocks.append(bytearray())
        self._blocks[-1] += data
        self.end += len(data)

    def await_position(self, position: int) -> None:
        """All there is by now may be sent once the log has reached a position."""
        if self._positions and self._positions[-1][0] == position:
            self._positions.pop()
        self._positions.append((position, self.end))

    def kept(self, position: int) -> bool:
        """The log has reached a position; whether there is more to send now."""
        before = self.sendable
        while self._positions and self._positions[0][0] <= position:
            self.sendable = self._positions.popleft()[1]
        return self.sendable > before

    def next_position(self) -> int | None:
        """The position of the log that what may not be sent yet waits for next; None for nothing."""
        return self._positions[0][0] if self._positions else None

    def has(self, offset: int) -> bool:
        """Whether all behind an offset is still there."""
        return self.first <= offset <= self.end

    def read(self, offset: int, most: int) -> bytes:
        """Bytes behind an offset that may be sent, ``most`` of them at most; empty where there are none."""
        at = bisect_right(self._starts, offset) - 1
        begin = offset - self._starts[at]
        stop = min(begin + most, self.sendable - self._starts[at])
        return bytes(memoryview(self._blocks[at])[begin:stop]) if stop > begin else b""

    def trim(self, needed: int) -> None:
        """Drop what is older than the size to keep, but nothing behind ``needed``, an offset."""
        oldest = min(needed, self.end - self.size)
        while len(self._blocks) > 1 and self._starts[1] <= oldest:
            del self._starts[0], self._blocks[0]
