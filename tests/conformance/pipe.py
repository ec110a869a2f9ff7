"""A connection that sends many commands at once and reads their replies in the order sent."""

import socket

from support.resp import Incomplete, read


class Pipe:
    """A pipelining client of a server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._data = b""
        self._at = 0

    def ask(self, commands: list[list[bytes]]) -> list[object]:
        """Send all commands, then read as many replies."""
        self._socket.sendall(b"".join(map(packed, commands)))
        return [self._reply() for _ in commands]

    def _reply(self) -> object:
        while True:
            try:
                value, self._at = read(self._data, self._at)
            except Incomplete:
                more = self._socket.recv(1 << 20)
                assert more, "the server closed the connection"
                self._data = self._data[self._at :] + more
                self._at = 0
            else:
                return value

    def close(self) -> None:
        self._socket.close()


def packed(words: list[bytes]) -> bytes:
    """Encode a command for the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
