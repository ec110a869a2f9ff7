"""Several connections to each of two servers, run step by step, with the replies and the waiting connections.

A connection that switched replies off gets ``CLIENT REPLY ON`` and ``OFF`` after each command, so the reply to the
first shows that the command is done.
"""

import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from support.resp import Incomplete, read
from support.waiting import DEADLINE, eventually
from support.wire import Wire, pack

WAITS, CLOSED = "waits", "closed"


@dataclass
class Line:
    """One connection to one server.

    Attributes:
        id: Its CLIENT ID.
        wanted: Number of outstanding replies.
    """

    socket: socket.socket
    id: int = 0
    wanted: int = 0
    data: bytes = b""
    heard: list[Any] = field(default_factory=list)
    closed: bool = False

    def take(self, seconds: float) -> bool:
        """Read the available replies; return True once all have come or the connection is closed."""
        while self.wanted and not self.closed:
            try:
                reply, end = read(self.data, 0)
            except Incomplete:
                if not select.select([self.socket], [], [], seconds)[0]:
                    return False
                try:
                    more = self.socket.recv(1 << 20)
                except ConnectionError:
                    more = b""
                self.data += more
                self.closed = not more
            else:
                self.data = self.data[end:]
                self.heard.append(reply)
                self.wanted -= 1
        return True


class Server:
    """One of the two servers.

    Args:
        url: Its URL.
        lines: Number of connections.
    """

    def __init__(self, url: str, lines: int) -> None:
        self.url = url
        self.control = Wire(url)
        self.lines = [self.open() for _ in range(lines)]

    def open(self) -> Line:
        """Open a new connection."""
        wire = Wire(self.url)
        return Line(wire.socket, wire.ask("CLIENT", "ID"))

    def send(self, at: int, commands: list[list[str]], wanted: int) -> None:
        """Send commands of one connection in one piece."""
        line = self.lines[at]
        line.wanted += wanted
        try:
            line.socket.sendall(b"".join(pack(*self._named(each)) for each in commands))
        except ConnectionError:
            line.closed = True

    def settle(self, at: int, *, ends_soon: bool = False) -> None:
        """Wait until the connection has all its replies, is closed, or waits longer than a moment."""
        line = self.lines[at]
        if ends_soon:
            assert line.take(DEADLINE), f"no reply on connection {at} of {self.url}"
        ends = time.monotonic() + DEADLINE
        while not line.take(0.001):
            if self.waiting([at]) and not line.take(0):
                return
            assert time.monotonic() < ends, f"no reply on connection {at} of {self.url}"

    def waiting(self, these: list[int]) -> list[int]:
        """Return those of the given connections that wait."""
        rows = self.control.ask("CLIENT", "LIST").splitlines()
        found = {
            int(row.split(b" ", 1)[0][3:]) for row in rows if b"b" in row.split(b" flags=", 1)[1].split(b" ", 1)[0]
        }
        return [at for at in these if self.lines[at].id in found]

    def is_gone(self, at: int) -> bool:
        """Return True for a connection that the server has closed, and read its remaining replies."""
        line = self.lines[at]
        rows = self.control.ask("CLIENT", "LIST").splitlines()
        if any(row.startswith(b"id=%d " % line.id) for row in rows):
            return False
        line.wanted = 1_000
        while not line.closed:
            assert line.take(DEADLINE), f"connection {at} of {self.url} is not closed"
        return True

    def ask(self, words: list[str]) -> object:
        """Return the reply to a command about connections."""
        return self.control.ask_exact(*self._named(words))

    def _named(self, words: list[str]) -> list[str]:
        return [word.format(*(each.id for each in self.lines)) if word[:1] == "{" else word for word in words]

    def heard(self, at: int) -> list[Any]:
        """Return the replies that a connection got since the last call, and its state."""
        line = self.lines[at]
        found, line.heard = line.heard, []
        if line.closed:
            found.append(CLOSED)
        elif line.wanted:
            found.append(WAITS)
        return found

    def close(self) -> None:
        """Close all connections and reset the server."""
        self.control.ask("CLIENT", "UNPAUSE")
        for line in self.lines:
            line.socket.close()
        self.control.close()


def pass_by(milliseconds: int) -> None:
    """Wait until the given time has passed."""
    ends = time.time() + milliseconds / 1000
    eventually(lambda: time.time() > ends, what="the time passes")
