"""Commands out of bytes, where they are written just as any client writes them; the fast way through the reader.

A command is taken only if it is complete and every length stands in its one usual form (``*3``, ``$5``: no sign, no
leading zero), so whatever is taken, the slow way of :class:`~millstream.protocol.reader.CommandReader` would have read
the same. At anything else the splitter stops, and the slow way goes on from there with Redis's limits and errors.

The bytes are cut at all line ends at once, and then each length is compared with the word that follows it. A word that
holds a line end itself is cut too, so its length does not fit, and it is left to the slow way.
"""

# Words of a command, and bytes of a word, that are looked up in a table; more of either are computed or left
_TABLE = 1024
_COUNTS = {b"*%d" % count: count for count in range(1, _TABLE)}
_LENGTHS = [b"$%d" % length for length in range(_TABLE)]


class Splitter:
    """Commands at the head of some bytes.

    Args:
        data: what has come.
        at: where to begin.
    """

    __slots__ = ("_at", "_last", "_next", "_seen", "_tokens", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self._tokens = (data[at:] if at else data).split(b"\r\n")
        self._next = self._last = 0  # the token at which the next command begins, and the last one taken
        self._at = at  # where it began for the first _seen tokens
        self._seen = 0

    @property
    def at(self) -> int:
        """Position in ``data`` behind the commands taken so far."""
        if self._next == len(self._tokens) - 1:  # all that is complete, as most often
            return len(self.data) - len(self._tokens[-1])
        if self._seen < self._next:
            self._at += sum(map(len, self._tokens[self._seen : self._next])) + 2 * (self._next - self._seen)
            self._seen = self._next
        return self._at

    @property
    def has_more(self) -> bool:
        """Whether anything comes behind the commands taken so far."""
        return self._next < len(self._tokens) - 1

    def next(self) -> list[bytes] | None:
        """The next command's words; None at the end, and at anything that is left to the slow way."""
        tokens, at = self._tokens, self._next
        count = _COUNTS.get(tokens[at])
        if count is None:
            return None
        end = at + 1 + 2 * count
        words = tokens[at + 2 : end : 2]
        try:
            lengths = [_LENGTHS[len(word)] for word in words]
        except IndexError:
            lengths = _written_lengths(words)
        # What follows the last line end is the last token: a command that ends there is not complete
        if end >= len(tokens) or tokens[at + 1 : end : 2] != lengths:
            return None
        self._last, self._next = at, end
        return words

    def rest(self, first: int) -> bytes:
        """Of the command last taken the words from ``first`` on, as they were written, without the last line end."""
        return b"\r\n".join(self._tokens[self._last + 1 + 2 * first : self._next])

    def alike(self, first: int, most: int) -> tuple[list[list[bytes]], list[bytes]]:
        """The words from ``first`` on, and :meth:`rest`, of the next commands, as long as they begin like the last one.

        That is, they have as many words, and those before ``first`` are the same: additions to one stream, say, which
        need not be looked at word by word each. They are taken.

        Args:
            first: a word's place.
            most: how many commands may be taken.
        """
        tokens, at = self._tokens, self._next
        width, skip = at - self._last, 1 + 2 * first
        head = tokens[self._last : self._last + skip]
        words: list[list[bytes]] = []
        rests: list[bytes] = []
        for begin in range(at, min(at + most * width, len(tokens) - width), width):
            start, end = begin + skip, begin + width
            found = tokens[start + 1 : end : 2]
            try:
                lengths = [_LENGTHS[len(word)] for word in found]
            except IndexError:
                lengths = _written_lengths(found)
            if tokens[begin:start] != head or tokens[start:end:2] != lengths:
                break
            words.append(found)
            rests.append(b"\r\n".join(tokens[start:end]))
            self._last, self._next = begin, end
        return words, rests


def _written_lengths(words: list[bytes]) -> list[bytes]:
    return [b"$%d" % len(word) for word in words]
