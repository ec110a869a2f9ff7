"""Raw replies from a server: a socket on which pages are asked for ahead of time, and trying again after a restart.

The reply bytes are handed on as they came, to be turned into columns without one Python object a value.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis

from millstream.client.url import sync_client

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""How long a server that was there before may be away: a restart, a failover."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
_CHUNK = 1 << 20


def lost_contact(reason: BaseException) -> bool:
    """Whether an error means that the server is away or not ready, rather than that it refused a command."""
    import redis  # noqa: PLC0415 - only on the error path

    if isinstance(reason, redis.AuthenticationError):
        return False
    return isinstance(reason, OSError | redis.ConnectionError | redis.TimeoutError | redis.BusyLoadingError)


def retrying(work: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
    """Call ``work``, and again while the server is away, for at most ``seconds``; only for commands that may be repeated."""
    deadline = time.monotonic() + seconds
    pause = 0.05
    while True:
        try:
            return work()
        except Exception as reason:
            if not lost_contact(reason) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(1.0, pause * 2)


class Wire:
    """One connection for large reads.

    redis-py makes the connection (TLS, password, database, unix sockets); from then on the socket is ours. The last
    command of every request is a PING with a word that nobody else knows, so the end of the replies is seen without
    parsing them, whatever bytes the entries hold.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        client = sync_client(url, protocol=2, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=ANSWER_SECONDS)
        self._connection: Any = client.connection_pool.make_connection()
        self._connection.connect()
        self._socket: socket.socket = self._connection._sock  # noqa: SLF001 - the one way to let redis-py do TLS and login
        word = os.urandom(16).hex().encode()
        self._ping = hiredis.pack_command((b"PING", word))
        self._end = b"$%d\r\n%s\r\n" % (len(word), word)
        self.waiting = False

    def send(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> None:
        """Send commands; their replies must be fetched by :meth:`receive` before the next are sent."""
        assert not self.waiting
        self.waiting = True
        self._socket.sendall(b"".join([*map(hiredis.pack_command, commands), self._ping]))

    def receive(self) -> bytes:
        """The replies to what was sent last, one after the other.

        Raises:
            OSError: the server went away or did not answer in time.
        """
        chunks: list[bytes] = []
        tail = b""
        while not tail.endswith(self._end):
            chunk = self._socket.recv(_CHUNK)
            if not chunk:
                raise ConnectionResetError("the server closed the connection")
            chunks.append(chunk)
            tail = (tail + chunk)[-len(self._end) :] if len(chunk) < len(self._end) else chunk[-len(self._end) :]
        self.waiting = False
        return b"".join(chunks)[: -len(self._end)]

    def close(self) -> None:
        """Close the socket."""
        self._connection.disconnect()


_idle: dict[tuple[int, str], Wire] = {}
"""Connections kept between the tasks of one worker process, by process id (workers are forked) and URL."""


def borrow(url: str) -> Wire:
    """A connection, one that an earlier task left if there is one."""
    return _idle.pop((os.getpid(), url), None) or Wire(url)


def give_back(url: str, wire: Wire) -> None:
    """Keep the connection for the next task, unless replies are still on their way or another is kept already."""
    mine = (os.getpid(), url)
    if wire.waiting or mine in _idle:
        wire.close()
    else:
        _idle[mine] = wire
