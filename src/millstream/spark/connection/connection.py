"""One blocking connection to one server: packed commands out, replies in, with error replies as values.

redis-py makes the connection (TLS, user, password, database, Sentinels). Then this module uses the socket directly: a
task sends commands that were packed elsewhere, and reads replies that redis-py would turn into objects one by one. A
connection never repeats a command and follows no redirection: ``router``, which knows the other servers, does.
"""

import functools
import socket
from collections.abc import Sequence
from typing import Any, TypeAlias

import hiredis
import redis

from millstream.client.connect import sync_client
from millstream.client.url import no_connection, remedy
from millstream.errors import NotLetInError, UsageError

Command: TypeAlias = tuple[bytes | str | int, ...]
Reply: TypeAlias = Any

ErrorReply = hiredis.ReplyError
"""The value in place of a reply if the server refused the command."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""Seconds after which a silent server counts as gone: it may be busy with a script, but not for ever."""

NOT_READY = ("LOADING", "MASTERDOWN")
"""Codes of errors from a server that will serve later, and has not run the command."""

_CHUNK = 1 << 16


def control_client(url: str, patience: float = ANSWER_SECONDS) -> redis.Redis:
    """Return a client for short commands; its replies are bytes, and it waits at most ``patience`` seconds."""
    connecting = min(CONNECT_SECONDS, patience)
    return sync_client(url, protocol=2, socket_connect_timeout=connecting, socket_timeout=patience, **_library())


@functools.cache
def _library() -> dict[str, Any]:
    """Return the library name and version that redis-py sends to a server, read once a process.

    redis-py itself reads its package's metadata for every connection, which takes a millisecond. Versions without this
    class read it once.
    """
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415 - not in every version
    except ImportError:
        return {}
    return {"driver_info": DriverInfo()}


class BlockingConnection:
    """A blocking connection to a server."""

    def __init__(self, url: str, *, readonly: bool = False, patience: float = ANSWER_SECONDS) -> None:
        self._connection = _connected(url, patience)
        self._socket: socket.socket = self._connection._sock  # noqa: SLF001 - the one way to let redis-py do TLS and login
        self._reader = hiredis.Reader()
        self.received = 0  # Bytes of the last replies that were parsed
        if readonly:
            (reply,) = self.ask([("READONLY",)])
            if isinstance(reply, ErrorReply):
                raise UsageError(f"a replica of the cluster refuses READONLY: {reply}")

    def send(self, packed: bytes) -> None:
        """Send packed commands without waiting for their replies."""
        self._socket.sendall(packed)

    def receive(self, count: int) -> list[Reply]:
        """Return the next ``count`` replies."""
        found: list[Reply] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._next_bytes())
                continue
            if isinstance(reply, ErrorReply) and str(reply).startswith(NOT_READY):
                raise ConnectionError(f"the server is not ready: {reply}")
            found.append(reply)
        return found

    def passes(self, expected: bytes) -> bool:
        """Return True if the next replies are exactly these bytes; if not, leave them to :meth:`receive`.

        It serves thousands of replies such as OK or QUEUED: only unexpected ones become objects.
        """
        if self._reader.has_data():
            return False
        raw = b""
        while len(raw) < len(expected) and expected.startswith(raw):
            raw += self._next_bytes()
        passed = raw.startswith(expected)
        self._reader.feed(raw[len(expected) :] if passed else raw)
        return passed

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one write and return their replies."""
        self.received = 0
        self.send(pack(*commands))
        return self.receive(len(commands))

    def close(self) -> None:
        """Close the socket."""
        self._connection.disconnect()

    def _next_bytes(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self.received += len(data)
        return data


def _connected(url: str, patience: float) -> Any:
    """Return a connected redis-py connection; raise ConnectionError if the server is away."""
    pool: Any = control_client(url, patience).connection_pool
    connection = pool.make_connection()
    try:
        connection.connect()
    except redis.AuthenticationError as reason:
        step = remedy(url, reason)
        raise NotLetInError(f"option 'url': {no_connection(url, reason)} {step}, or correct the URL.") from None
    except (redis.ConnectionError, redis.TimeoutError) as reason:
        raise ConnectionError(str(reason)) from None
    return connection


def pack(*commands: Command) -> bytes:
    """Return the RESP bytes of commands."""
    return b"".join(hiredis.pack_command(command) for command in commands)  # type: ignore[arg-type] # its stub says a tuple of one


def pack_long(command: Command, last: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return a command as parts to join once, with a large last argument that consists of parts."""
    _, _, words = pack(command).partition(b"\r\n")
    return [b"*%d\r\n%s$%d\r\n" % (len(command) + 1, words, sum(map(len, last))), *last, b"\r\n"]
