"""Splitting bytes into commands in the form that clients usually send: the fast way of the reader.

A command is taken only if it is complete and every length has its usual form (``*3``, ``$5``: no sign, no leading
zero). So the slow way of :class:`~millstream.protocol.reader.CommandReader` would have read the same. At anything else
the splitter stops, and the slow way continues from there with Redis's limits and errors.

The bytes are cut at all line ends at once, and then each length is compared with the argument that follows it. An
argument that contains a line end is cut too, so its length differs, and the slow way reads it. Only the next part of
very many bytes is cut at a time, since a caller may take a few commands and then go another way.
"""

# Size of the lookup tables for numbers of arguments and their lengths; larger numbers are computed
_TABLE = 1024
_COUNTS = {b"*%d" % count: count for count in range(1, _TABLE)}
_LENGTHS = [b"$%d" % length for length in range(_TABLE)]
# Largest number of arguments that the splitter accepts, and number of its digits
WORDS_MAX = 1 << 16
_DIGITS = 5
# Number of bytes that are split first; then twice as many, or eight times if they contain no complete command
WINDOW = 4096


class Splitter:
    """Splitter of the commands at the head of some bytes."""

    __slots__ = ("_at", "_begin", "_end", "_next", "_seen", "_tokens", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self._cut(at, WINDOW)

    def _cut(self, at: int, size: int) -> None:
        """Cut the next ``size`` bytes from a position on."""
        data = self.data
        self._tokens = (data[at : at + size] if at or size < len(data) else data).split(b"\r\n")
        self._begin, self._end = at, at + size
        self._next = 0  # token at which the next command begins
        self._at = at  # position after the first _seen tokens
        self._seen = 0

    @property
    def at(self) -> int:
        """Position in ``data`` after the commands taken so far."""
        if self._next == len(self._tokens) - 1 and self._end >= len(self.data):  # the usual case: all bytes are used
            return len(self.data) - len(self._tokens[-1])
        if self._seen < self._next:
            self._at += sum(map(len, self._tokens[self._seen : self._next])) + 2 * (self._next - self._seen)
            self._seen = self._next
        return self._at

    def next(self) -> list[bytes] | None:
        """Return the next command's arguments; None at the end, and at anything that the slow way must read."""
        tokens, at = self._tokens, self._next
        count = _COUNTS.get(tokens[at]) or _many(tokens[at])
        if not count:
            return self._wider() if at + 1 == len(tokens) else None
        end = at + 1 + 2 * count
        # The bytes after the last line end form the last token: a command that ends there is incomplete
        if end >= len(tokens):
            return self._wider()
        words = tokens[at + 2 : end : 2]
        try:
            lengths = [_LENGTHS[len(word)] for word in words]
        except IndexError:
            lengths = [b"$%d" % len(word) for word in words]
        if tokens[at + 1 : end : 2] != lengths:
            return None
        self._next = end
        return words

    def _wider(self) -> list[bytes] | None:
        """Cut more bytes, and return the next command's arguments if it is complete in them."""
        if self._end >= len(self.data):
            return None
        at = self.at
        self._cut(at, (self._end - self._begin) * (2 if at > self._begin else 8))
        return self.next()


def _many(head: bytes) -> int:
    """Return the number of arguments of a command with too many for the table; 0 for anything else."""
    if len(head) > 1 + _DIGITS or head[:1] != b"*" or head[1:2] == b"0" or not head[1:].isdigit():
        return 0
    count = int(head[1:])
    return count if count <= WORDS_MAX else 0
