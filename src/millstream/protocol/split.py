"""Commands out of bytes, in the form that any client writes; the fast way through the reader.

A command is taken only if it is complete and every length has its one usual form (``*3``, ``$5``: no sign, no leading
zero). So the slow way of :class:`~millstream.protocol.reader.CommandReader` would have read the same. At anything else
the splitter stops, and the slow way goes on from there with Redis's limits and errors.

The bytes are cut at all line ends at once, and then each length is compared with the word that follows it. A word that
holds a line end itself is cut too, so its length does not fit, and it is left to the slow way. If there are very many
bytes, only the next are cut at a time. A caller may take a few commands and then go another way, and would have paid
for all.
"""

# Words of a command, and bytes of a word, that are looked up in a table; more of either are computed or left
_TABLE = 1024
_COUNTS = {b"*%d" % count: count for count in range(1, _TABLE)}
_LENGTHS = [b"$%d" % length for length in range(_TABLE)]
# Words of a command that is taken at all; a count of more digits is none of those
WORDS_MAX = 1 << 16
_DIGITS = 5
# Bytes that are cut first; then twice as many, or eight times where a command does not end in them
WINDOW = 4096


class Splitter:
    """Commands at the head of some bytes."""

    __slots__ = ("_at", "_begin", "_end", "_next", "_seen", "_tokens", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self._cut(at, WINDOW)

    def _cut(self, at: int, size: int) -> None:
        """Go on from a place with ``size`` bytes."""
        data = self.data
        self._tokens = (data[at : at + size] if at or size < len(data) else data).split(b"\r\n")
        self._begin, self._end = at, at + size
        self._next = 0  # the token at which the next command begins
        self._at = at  # where it began for the first _seen tokens
        self._seen = 0

    @property
    def at(self) -> int:
        """Position in ``data`` after the commands taken so far."""
        if self._next == len(self._tokens) - 1 and self._end >= len(self.data):  # all that is complete, as most often
            return len(self.data) - len(self._tokens[-1])
        if self._seen < self._next:
            self._at += sum(map(len, self._tokens[self._seen : self._next])) + 2 * (self._next - self._seen)
            self._seen = self._next
        return self._at

    def next(self) -> list[bytes] | None:
        """The next command's words; None at the end, and at anything that is left to the slow way."""
        tokens, at = self._tokens, self._next
        count = _COUNTS.get(tokens[at]) or _many(tokens[at])
        if not count:
            return self._wider() if at + 1 == len(tokens) else None
        end = at + 1 + 2 * count
        # The bytes after the last line end are the last token: a command that ends there is not complete
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
        """The next command's words if it is complete beyond the bytes that were cut."""
        if self._end >= len(self.data):
            return None
        at = self.at
        self._cut(at, (self._end - self._begin) * (2 if at > self._begin else 8))
        return self.next()


def _many(head: bytes) -> int:
    """The number of words of a command that has too many for the table; 0 for anything else."""
    if len(head) > 1 + _DIGITS or head[:1] != b"*" or head[1:2] == b"0" or not head[1:].isdigit():
        return 0
    count = int(head[1:])
    return count if count <= WORDS_MAX else 0
