"""A raw client for tests: it sends words and decodes replies over one socket, and sends nothing by itself."""

import socket
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import hiredis

from support.resp import Incomplete
from support.resp import read as read_exact

TIMEOUT = 30.0


class Wire:
    """One connection to a server.

    Args:
        url: ``redis://host:port`` or ``unix://path``.
        resp: 3 to send HELLO 3 first.
    """

    def __init__(self, url: str, resp: int = 2) -> None:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT)
            self.socket.connect(parts.path)
        else:
            assert parts.hostname is not None
            assert parts.port is not None
            self.socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT)
        self._reader = hiredis.Reader()
        if resp == 3:
            self.ask(b"HELLO", b"3")

    def send(self, *words: bytes | str | int) -> None:
        """Send one command without reading a reply."""
        self.socket.sendall(pack(*words))

    def read(self) -> Any:
        """Read the next reply; errors are values."""
        while (reply := self._reader.gets()) is False:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def ask(self, *words: bytes | str | int) -> Any:
        """Send one command and return its reply."""
        self.send(*words)
        return self.read()

    def ask_together(self, commands: Iterable[Sequence[bytes | str | int]]) -> list[Any]:
        """Send commands in one piece and return their replies, ten times as fast."""
        packed = [pack(*words) for words in commands]
        self.socket.sendall(b"".join(packed))
        return [self.read() for _ in packed]

    def ask_exact(self, *words: bytes | str | int) -> object:
        """Send one command and return its reply with distinct kinds of strings (see ``support.resp``)."""
        self.send(*words)
        data = b""
        while True:
            received = self.socket.recv(65536)
            if not received:
                raise EOFError("the server closed the connection")
            data += received
            try:
                reply, end = read_exact(data, 0)
            except Incomplete:
                continue
            assert end == len(data), f"more than one reply: {data!r}"
            return reply

    def is_closed(self) -> bool:
        """Wait for the server to close the connection, and drop anything it still sends."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    return hiredis.pack_command(tuple(words))
