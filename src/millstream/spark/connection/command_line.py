"""One connection for commands that are made elsewhere: bytes out, replies in, errors among them as values."""

from typing import TYPE_CHECKING, Any

import hiredis

from millstream.spark.connection import routing
from millstream.spark.connection import socket as wire

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_CHUNK = 1 << 16


class Line:
    """A connection to a server. redis-py makes it (TLS, user, password, database); from then on the socket is ours.

    A reply that sends elsewhere is a connection that broke: whoever asked finds out what ran, as after any other break.

    Args:
        url: of the server, or of all of them.
        where: URL of the one that is meant.
    """

    def __init__(self, url: str, where: str) -> None:
        pool: Any = wire.control_client(where).connection_pool
        self._url = url
        self._connection = pool.make_connection()
        self._connection.connect()
        self._socket: socket.socket = self._connection._sock  # noqa: SLF001 - as in wire
        self._reader = hiredis.Reader()

    def send(self, data: bytes) -> None:
        """Send packed commands.

        Raises:
            OSError: the server went away.
        """
        self._socket.sendall(data)

    def receive(self, count: int) -> list[Any]:
        """The next replies; error replies as ``hiredis.ReplyError``.

        Raises:
            OSError: the server went away, did not answer in time, or is not ready.
            Redirected: of these, that it did not run a command.
        """
        found: list[Any] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(data)
                continue
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(wire.PASSING):
                raise routing.Redirected(f"the server is not ready: {reply}")
            routing.heed(self._url, (reply,))
            found.append(reply)
        return found

    def passes(self, expected: bytes) -> bool:
        """Whether the next replies are these very bytes; if not, they are left to :meth:`receive`.

        For a thousand replies that say nothing: only what is not expected becomes objects.

        Raises:
            OSError: the server went away, or did not answer in time.
        """
        if self._reader.has_data():
            return False
        raw = b""
        while len(raw) < len(expected) and expected.startswith(raw):
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            raw += data
        passed = raw.startswith(expected)
        self._reader.feed(raw[len(expected) :] if passed else raw)
        return passed

    def ask(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        """Send commands and wait for their replies."""
        self.send(pack(*commands))
        return self.receive(len(commands))

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


def pack(*commands: tuple[bytes | str | int, ...]) -> bytes:
    """Commands as they travel."""
    return b"".join(hiredis.pack_command(command) for command in commands)  # type: ignore[arg-type] # its stub says a tuple of one


def pack_long(
    command: tuple[bytes | str | int, ...], last: "Sequence[bytes | memoryview]"
) -> "list[bytes | memoryview]":
    """A command as it travels, whose last word is large and comes in parts: to be joined once."""
    _, _, words = pack(command).partition(b"\r\n")
    return [b"*%d\r\n%s$%d\r\n" % (len(command) + 1, words, sum(map(len, last))), *last, b"\r\n"]
