"""Incremental reader that turns bytes into commands: RESP arrays and inline commands.

Bytes go into :meth:`CommandReader.feed` in any pieces from the network, and commands come out of
:meth:`CommandReader.next` one by one. The pieces never matter: the whole input at once and byte by byte give the same
commands and the same error at the same position.

There are two ways to parse. The *slow way* is the grammar, in this file, with every limit and every error text. The
*fast way* is :mod:`millstream.protocol.split`, which takes whole commands in their usual form and stops at anything
else. It cannot exceed a limit, because it only reads bytes that were already received. Bytes for the fast way are kept
apart, in :attr:`CommandReader.chunk`. So the node can take plain commands from them without splitting them into
arguments (see :mod:`millstream.node.batch`).

Bytes received while the chunk still has commands are appended to the buffer. At the end of the chunk, a copy of the
buffer's head becomes the next chunk. So each byte of many commands sent together is copied only a few times, for any
number of commands. If the fast way stops inside the chunk, it is tried again after half of those bytes.
"""

import re

from millstream.errors import ProtocolError
from millstream.protocol import limits
from millstream.protocol.split import Splitter
from millstream.protocol.words import split_words

_STAR, _DOLLAR, _CR = ord("*"), ord("$"), b"\r"

# Same syntax as Redis's string2ll: no plus sign, no leading zero, no blanks.
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")

# An unfinished command of at least this many bytes stays in the buffer; a smaller one is joined with the bytes that
# follow
_SMALL = 8 * 1024
# Number of bytes that are accepted without a check of the input limit
_AT_ONCE = 8 * 1024
# Number of bytes that the fast way gets at once: about one read of a socket
_CHUNK = 64 * 1024
# Size in bytes from which an argument is copied out of the buffer through a view, so that memory never contains it
# three times.
_LARGE_WORD = 64 * 1024
WORDS_AT_ONCE = 10_000
"""Arguments of one command that are read in one turn, which takes some milliseconds."""
# Additional memory of a bytes object and its place in a list, in bytes, so that many tiny arguments are counted fully.
_WORD_OVERHEAD = 48


class QueryBufferError(ProtocolError):
    """The peer sent more commands than may wait; the connection is closed without a reply, as in Redis.

    What to do: send less at a time, or read replies before you send more.
    """


class CommandReader:
    """Reader of one connection's commands."""

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
        self.chunk = b""  # Bytes for the fast way; all other unread bytes follow them
        self.at = 0  # Position in ``chunk`` after the commands that were taken; the caller advances it
        self._splitter: Splitter | None = None  # for the present chunk, from its start position
        self._buffer = bytearray()
        self._is_copy = False  # the buffer begins with the same bytes
        self._fast_below = 0  # True if :meth:`next` returned None at the limit for one turn: more commands may be here
        self.has_more = False  # :meth:`next` returned None at the limit for one turn, though more may be here
        self._left = 0  # number of missing arguments in the unfinished command; 0 between commands
        self._words: list[bytes] = []
        self._words_at_once = words_at_once
        self._held = 0  # memory in bytes of the arguments read so far
        self._bulk = -1  # length of the present argument; -1 before its header
        self._scanned = 0  # number of bytes of an unfinished line in which no line end was found

    @property
    def buffered(self) -> int:
        """Number of bytes not yet returned as commands, including arguments of an unfinished command."""
        ahead = -self.at if self._is_copy else len(self.chunk) - self.at
        return ahead + len(self._buffer) + self._held

    @property
    def is_empty(self) -> bool:
        """True if no bytes wait: the next byte begins a command."""
        return not (self.chunk or self._buffer or self._left)

    def feed(self, data: bytes) -> None:
        """Accept bytes from the peer."""
        if self.trusted and not self._buffer and not self._left and not self.chunk and len(data) < _AT_ONCE:
            self.chunk, self.at = data, 0  # a shortcut for the most frequent case
            return
        bound = limits.QUERY_BUFFER_MAX if self.trusted else limits.QUERY_BUFFER_MAX_UNAUTHENTICATED
        # Before AUTH smaller limits apply, which only the slow way checks
        is_free = self.trusted and not self._left and not self.chunk
        if is_free and len(self._buffer) < _SMALL and len(data) < bound - _SMALL:
            self.chunk, self.at = bytes(self._buffer) + data if self._buffer else data, 0
            self._buffer.clear()
            self._scanned = 0
        else:
            self._buffer += data
            self._fast_below += len(data)
            # Checked here to include a peer that never completes its command
            if self.buffered > bound:
                raise QueryBufferError("query buffer limit reached")

    def next(self) -> list[bytes] | None:
        """Return the next command's arguments; None if it needs more bytes, or another call if :attr:`has_more`."""
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
        """Set the position in the chunk after the commands that the caller took from it."""
        self.at = at
        if at == len(self.chunk):
            if self._buffer:
                self._leave_chunk()
            else:
                self.chunk, self.at, self._splitter = b"", 0, None

    def _next_of_chunk(self) -> list[bytes] | None:
        """Return the next command of the chunk; None if the fast way stops, and the chunk is given up."""
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
        """Make the head of the buffer the next chunk, for the fast way."""
        with memoryview(self._buffer) as view:
            self.chunk, self.at, self._is_copy = bytes(view[:_CHUNK]), 0, True

    def _leave_chunk(self) -> None:
        """Return the unread bytes of the chunk to the buffer; the fast way needs more bytes to continue."""
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
        """Return the end of the line at the head of the buffer, or -1 if it was not received yet."""
        found = self._buffer.find(mark, self._scanned)
        if found < 0:
            self._scanned = len(self._buffer)
        if found > limits.INLINE_MAX or self._scanned > limits.INLINE_MAX:
            raise ProtocolError(f"Protocol error: {error}")
        return found

    def _take_line(self, length: int, skip: int) -> bytes:
        """Remove the line at the head of the buffer with its line end, and return it."""
        line = bytes(self._buffer[:length])
        del self._buffer[: length + skip]
        self._scanned = 0
        return line

    def _read_inline(self) -> list[bytes] | None:
        """Return an inline command's arguments; None until it is complete, an empty list for a blank line."""
        end = self._line_end(b"\n", "too big inline request")
        if end < 0:
            return None
        words = split_words(self._take_line(end, 1).removesuffix(_CR))
        if words is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        return words

    def _read_header(self, sigil: int, too_big: str, invalid: str) -> int | None:
        """Return the number in a ``*n`` or ``$n`` line; None until it is complete."""
        end = self._line_end(_CR, too_big)
        if end < 0 or end + 2 > len(self._buffer):  # as in Redis, any byte after CR counts as LF
            return None
        line = self._take_line(end, 2)
        if not line or line[0] != sigil:
            got = (line[:1] or _CR).decode("utf-8", "surrogateescape")
            raise ProtocolError(f"Protocol error: expected '{chr(sigil)}', got '{got}'")
        if not _INTEGER.fullmatch(line, 1):
            raise ProtocolError(f"Protocol error: {invalid}")
        return int(line[1:])

    def _read_count(self) -> bool:
        """Read the number of a command's arguments; return False until it is complete.

        A count of zero or less is a command without arguments, which Redis skips without a reply.
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
        """Read the length of an argument; return False until it is complete.

        The limit is checked on the header, before any byte of the argument, so that a large length takes no memory.
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
        """Continue reading the arguments of a command; return them after the last one."""
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
        """Remove the argument at the head of the buffer; its line end is not checked, as in Redis."""
        if length < _LARGE_WORD:
            word = bytes(self._buffer[:length])
        else:
            with memoryview(self._buffer) as view:
                word = bytes(view[:length])
        del self._buffer[: length + 2]
        return word
