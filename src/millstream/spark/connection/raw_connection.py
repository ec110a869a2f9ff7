"""A connection for large reads: its replies stay bytes, to become columns without an object for each value."""

import os
from collections.abc import Sequence

import hiredis

from millstream.errors import UsageError
from millstream.spark.connection import connection

_CHUNK = 1 << 20
_FIRST_BUFFER = 1 << 18
_KEPT_BUFFER = 8 << 20
"""Most bytes of memory that an idle connection keeps; a usual page is half of it."""
_ERROR_BYTES = 200
"""Bytes at the end of the data in which an error reply is searched."""
_PASSING = (*connection.NOT_READY, "CLUSTERDOWN", "TRYAGAIN")
"""Codes of errors that go away by themselves."""


class RawConnection(connection.BlockingConnection):
    """One connection for large reads, one request at a time.

    The last command of every request is an ECHO of a random word. So the connection finds the end of the replies
    without parsing them, whatever bytes the entries hold.
    """

    def __init__(self, url: str, *, readonly: bool = False, patience: float = connection.ANSWER_SECONDS) -> None:
        super().__init__(url, readonly=readonly, patience=patience)
        word = os.urandom(16).hex().encode()
        self._echo = connection.pack((b"ECHO", word))
        self._end = b"$%d\r\n%s\r\n" % (len(word), word)
        self._buffer = bytearray(_FIRST_BUFFER)
        self._replies = 0
        self.waiting = False  # True while replies are outstanding

    def request(self, commands: Sequence[connection.Command]) -> None:
        """Send commands; :meth:`receive_raw` must fetch their replies before the next are sent."""
        assert not self.waiting
        self.waiting = True
        self._replies = len(commands) + 1
        self.send(connection.pack(*commands) + self._echo)

    def receive_raw(self) -> bytes:
        """Return the replies to the last request, one after the other."""
        size = 0
        end = len(self._end)
        while size < end or self._buffer[size - end : size] != self._end:
            if size == len(self._buffer):
                self._buffer += bytes(size)  # doubles the buffer
            with memoryview(self._buffer) as view:
                got = self._socket.recv_into(view[size : size + _CHUNK])
                if not got:
                    raise ConnectionResetError("the server closed the connection")
                size += got
                tail = bytes(view[max(0, size - _ERROR_BYTES) : size])
                if tail.endswith(b"\r\n") and tail.rpartition(b"\r\n-")[2].count(b"\r\n") == 1:
                    _check_refused(bytes(view[:size]), self._replies)
        self.waiting = False
        with memoryview(self._buffer) as view:
            raw = bytes(view[: size - end])
        if len(self._buffer) > _KEPT_BUFFER:
            self._buffer = bytearray(_FIRST_BUFFER)
        return raw


def parsed(raw: bytes) -> list[connection.Reply]:
    """Parse all complete replies in some bytes, with errors as values."""
    reader = hiredis.Reader()
    reader.feed(raw)
    found = []
    while (reply := reader.gets()) is not False:
        found.append(reply)
    return found


def _check_refused(raw: bytes, expected: int) -> None:
    """Raise if even the last command, an ECHO, was refused: a server that loads or needs a password refuses all.

    Otherwise the connection would wait for the word that ends the replies in vain.
    """
    replies = parsed(raw)
    if len(replies) == expected and isinstance(replies[-1], connection.ErrorReply):
        raise refused_all(replies[-1])


def refused_all(reply: connection.Reply) -> Exception:
    """Return the error to raise if a server refused an ECHO, which cannot be due to an earlier command."""
    if str(reply).startswith(_PASSING):
        return ConnectionError(f"the server refuses every command: {reply}")
    if str(reply).startswith("NOPERM"):
        return UsageError(f"the user needs +echo, by which the end of replies is known: {reply}")
    return UsageError(f"the server refuses every command: {reply}")
