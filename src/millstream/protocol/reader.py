"""From bytes to commands: an incremental reader of RESP command arrays and inline commands.

Bytes go in by :meth:`CommandReader.feed` in any pieces that the network made, and commands come out of
:meth:`CommandReader.next` one by one. The pieces never matter: the whole input at once and byte by byte give the same
commands and the same error at the same place.

There are two ways through. The *slow way* is the grammar, in this file, with every limit and every error text. The
*fast way* is :mod:`millstream.protocol.split`, which takes whole commands in their usual form and stops at anything
else. No limit can be passed by it, because it only sees bytes that are already here. Bytes that may go the fast way are
kept apart, in :attr:`CommandReader.chunk`, so that the node can take plain commands from them without any words being
made (see :mod:`millstream.node.batch`).

Bytes that come while commands of the chunk wait are gathered in the buffer after it. When the chunk is at its end, a
copy of the buffer's head becomes the next one. So each byte of many commands sent together is copied only a few times,
for any number of commands. If the fast way has ended in their midst, it is tried again after half of what it saw.
"""

import re

from millstream.errors import ProtocolError
from millstream.protocol import limits
from millstream.protocol.split import Splitter
from millstream.protocol.words import split_words

_STAR, _DOLLAR, _CR = ord("*"), ord("$"), b"\r"

# Redis's string2ll: no sign but minus, no leading zero, no blanks.
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")

# An unfinished command of at least this many bytes is gathered in the buffer; a smaller one is put before the bytes
# that follow it
_SMALL = 8 * 1024
# Bytes that may be taken before any bound for waiting bytes is looked at
_AT_ONCE = 8 * 1024
# Bytes of the buffer that go the fast way together: about as many as one read of a socket gives
_CHUNK = 64 * 1024
# A word of this size is copied out of the buffer through a view, so that it is never held three times.
_LARGE_WORD = 64 * 1024
WORDS_AT_ONCE = 10_000
"""Words of one command that are read in one turn, some milliseconds: very many may have come while the peer waited."""
# Bytes that a bytes object and its place in the list take in addition: many tiny words weigh what they weigh.
_WORD_OVERHEAD = 48


class QueryBufferError(ProtocolError):
    """The peer sent more commands than may wait; the connection is closed without a reply, as in Redis.

    What to do: send less at a time, or read replies before you send more.
    """


class CommandReader:
    """Reads one connection's commands."""

    __slots__ = (
        "_buffer",
        "_bulk",
        "_fast_below",
        "_held",
        "_is_copy",
        "_left",
        "_scanned",
        "_splitter",
        "_words",
        "_words_at_once",
        "at",
        "chunk",
        "has_more",
        "trusted",
    )

    def __init__(self, *, trusted: bool = True, words_at_once: int = WORDS_AT_ONCE) -> None:
        self.trusted = trusted  # The peer is authenticated, or no password is set; until then the smaller limits hold
        self.chunk = b""  # Bytes that may go the fast way; all other waiting bytes come after them
        self.at = 0  # Position in ``chunk`` after the bytes taken of it; the taker of commands moves it on
        self._splitter: Splitter | None = None  # of the chunk, from where it was begun
        self._buffer = bytearray()
        self._is_copy = False  # the chunk's bytes are at the head of the buffer, too
        self._fast_below = 0  # the fast way is tried again when no more than this is in the buffer
        self.has_more = False  # :meth:`next` answered None because it has read enough for one turn; more may be here
        self._left = 0  # words still to come of the command being read; 0 between commands
        self._words: list[bytes] = []
        self._words_at_once = words_at_once
        self._held = 0  # memory that those words take, in bytes
        self._bulk = -1  # length of the word being read; -1 before its header
        self._scanned = 0  # bytes of an unfinished line known to hold no line end

    @property
    def buffered(self) -> int:
        """Bytes waiting to become commands, words of an unfinished command included."""
        ahead = -self.at if self._is_copy else len(self.chunk) - self.at
        return ahead + len(self._buffer) + self._held

    @property
    def is_empty(self) -> bool:
        """True if nothing waits: the next byte begins a command."""
        return not (self.chunk or self._buffer or self._left)

    def feed(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self.trusted and not self._buffer and not self._left and not self.chunk and len(data) < _AT_ONCE:
            self.chunk, self.at = data, 0  # as most often
            return
        bound = limits.QUERY_BUFFER_MAX if self.trusted else limits.QUERY_BUFFER_MAX_UNAUTHENTICATED
        # Before AUTH the small limits hold, which only the slow way knows
        is_free = self.trusted and not self._left and not self.chunk
        if is_free and len(self._buffer) < _SMALL and len(data) < bound - _SMALL:
            self.chunk, self.at = bytes(self._buffer) + data if self._buffer else data, 0
            self._buffer.clear()
            self._scanned = 0
        else:
            self._buffer += data
            self._fast_below += len(data)
            # Here and not where words are read: a peer that never ends its command must find its bound too
            if self.buffered > bound:
                raise QueryBufferError("query buffer limit reached")

    def next(self) -> list[bytes] | None:
        """The next command's words, or None: until more bytes are fed, or, if :attr:`has_more`, until asked again."""
        self.has_more = False
        if self._buffer and not self.chunk and not self._left and len(self._buffer) <= self._fast_below:
            self._begin_chunk()
        while self.chunk:
            words = self._next_of_chunk()
            if words is not None:
                return words
        while self._buffer:
            if self._left:
                return self._read_words()
            if self._buffer[0] != _STAR:
                words = self._read_inline()
                if words is None:
                    return None
                if words:
                    return words
            elif not self._read_count():
                return None
        return None

    def advance(self, at: int) -> None:
        """Note that the commands of the chunk before this position were taken."""
        self.at = at
        if at == len(self.chunk):
            if self._buffer:
                self._leave_chunk()
            else:
                self.chunk, self.at, self._splitter = b"", 0, None

    def _next_of_chunk(self) -> list[bytes] | None:
        """The next command of the chunk; None where the fast way ends, and the chunk is left."""
        splitter = self._splitter
        if splitter is None or splitter.data is not self.chunk or splitter.at != self.at:
            splitter = self._splitter = Splitter(self.chunk, self.at)
        words = splitter.next() if self.trusted else None
        if words is None:
            self._leave_chunk()
        else:
            self.advance(splitter.at)
        return words

    def _begin_chunk(self) -> None:
        """The head of the buffer may go the fast way."""
        with memoryview(self._buffer) as view:
            self.chunk, self.at, self._is_copy = bytes(view[:_CHUNK]), 0, True

    def _leave_chunk(self) -> None:
        """Leave the rest of the chunk to the buffer: the fast way may go on only with more bytes after it."""
        used, size = self.at, len(self.chunk)
        if self._is_copy:
            del self._buffer[:used]
        else:
            self._buffer[:0] = memoryview(self.chunk)[used:]
        self.chunk, self.at, self._splitter, self._is_copy = b"", 0, None, False
        self._fast_below = len(self._buffer) - (size - used + 1) // 2
        if used and self.trusted and len(self._buffer) > size - used:
            self._begin_chunk()

    def _line_end(self, mark: bytes, error: str) -> int:
        """The end of the line at the head of the buffer, or -1 if it has not come yet."""
        found = self._buffer.find(mark, self._scanned)
        if found < 0:
            self._scanned = len(self._buffer)
        if found > limits.INLINE_MAX or self._scanned > limits.INLINE_MAX:
            raise ProtocolError(f"Protocol error: {error}")
        return found

    def _take_line(self, length: int, skip: int) -> bytes:
        """The line at the head of the buffer, taken out of it together with the bytes of its end."""
        line = bytes(self._buffer[:length])
        del self._buffer[: length + skip]
        self._scanned = 0
        return line

    def _read_inline(self) -> list[bytes] | None:
        """Words of a line that a person typed; None until it is whole, and no words for a blank one, as in Redis."""
        end = self._line_end(b"\n", "too big inline request")
        if end < 0:
            return None
        words = split_words(self._take_line(end, 1).removesuffix(_CR))
        if words is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        return words

    def _read_header(self, sigil: int, too_big: str, invalid: str) -> int | None:
        """The number in a complete ``*n`` or ``$n`` line; None until it is here."""
        end = self._line_end(_CR, too_big)
        if end < 0 or end + 2 > len(self._buffer):  # as in Redis, any byte after the CR is taken for the LF
            return None
        line = self._take_line(end, 2)
        if not line or line[0] != sigil:
            got = (line[:1] or _CR).decode("utf-8", "surrogateescape")
            raise ProtocolError(f"Protocol error: expected '{chr(sigil)}', got '{got}'")
        if not _INTEGER.fullmatch(line, 1):
            raise ProtocolError(f"Protocol error: {invalid}")
        return int(line[1:])

    def _read_count(self) -> bool:
        """Begin a command with its number of words; False until that is here.

        A count of zero or less is a command without words, which Redis passes over without a reply.
        """
        count = self._read_header(_STAR, "too big mbulk count string", "invalid multibulk length")
        if count is None:
            return False
        if count > limits.MULTIBULK_MAX:
            raise ProtocolError("Protocol error: invalid multibulk length")
        if count > limits.MULTIBULK_MAX_UNAUTHENTICATED and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated multibulk length")
        self._left = max(count, 0)
        return True

    def _read_length(self) -> bool:
        """Begin a word with its length; False until that is here.

        The limit is checked on the header, before a byte of the word, so that announcing a word cannot hold memory.
        """
        length = self._read_header(_DOLLAR, "too big bulk count string", "invalid bulk length")
        if length is None:
            return False
        if not 0 <= length <= limits.BULK_MAX:
            raise ProtocolError("Protocol error: invalid bulk length")
        if length > limits.BULK_MAX_UNAUTHENTICATED and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated bulk length")
        self._bulk = length
        return True

    def _read_words(self) -> list[bytes] | None:
        """Go on with the words of a command; returns them when the last is here."""
        turn = self._words_at_once
        while self._left:
            turn -= 1
            if turn < 0:
                self.has_more = True
                return None
            if self._bulk < 0 and (not self._buffer or not self._read_length()):
                return None
            if len(self._buffer) < self._bulk + 2:
                return None
            self._words.append(self._take_word(self._bulk))
            self._held += self._bulk + _WORD_OVERHEAD
            self._bulk = -1
            self._left -= 1
        words, self._words, self._held = self._words, [], 0
        return words

    def _take_word(self, length: int) -> bytes:
        """The word at the head of the buffer, without its line end, which Redis does not look at either."""
        if length < _LARGE_WORD:
            word = bytes(self._buffer[:length])
        else:
            with memoryview(self._buffer) as view:
                word = bytes(view[:length])
        del self._buffer[: length + 2]
        return word
