"""One blocking connection to one server: packed commands out, replies in, error replies among them as values.

redis-py makes the connection (TLS, user, password, database, Sentinels). From then on the socket is ours: a task sends
commands that were packed elsewhere, and reads replies that redis-py would turn into objects one by one. A connection
never repeats a command and follows no redirection: that is the work of ``router``, which knows the other servers.
"""

import functools
import socket
from collections.abc import Sequence
from typing import Any, TypeAlias

import hiredis
import redis

from millstream.client.connect import sync_client
from millstream.errors import UsageError

Command: TypeAlias = tuple[bytes | str | int, ...]
Reply: TypeAlias = Any

ErrorReply = hiredis.ReplyError
"""The value in the place of a reply if the server refused the command."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
"""Seconds after which a server that says nothing counts as gone: it may be busy with a script, but not for ever."""

NOT_READY = ("LOADING", "MASTERDOWN")
"""Errors of a server that will serve later, and has run nothing."""

_CHUNK = 1 << 16


def control_client(url: str, patience: float = ANSWER_SECONDS) -> redis.Redis:
    """A client for short commands, which answers bytes and gives up on a server that hangs for ``patience`` seconds."""
    connecting = min(CONNECT_SECONDS, patience)
    return sync_client(url, protocol=2, socket_connect_timeout=connecting, socket_timeout=patience, **_library())


@functools.cache
def _library() -> dict[str, Any]:
    """The name and version that redis-py sends to a server, read once a process.

    redis-py itself reads its package's metadata for every connection, which takes a millisecond. Versions without this
    class read it once.
    """
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415 - not in every version
    except ImportError:
        return {}
    return {"driver_info": DriverInfo()}


class BlockingConnection:
    """A connection to a server."""

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
        """The next ``count`` replies."""
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
        """True if the next replies are these very bytes; if not, they are left to :meth:`receive`.

        For a thousand replies that say nothing: only what is not expected becomes objects.
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
        """Send commands in one go and wait for their replies."""
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
    """A connection of redis-py's; its errors of making one as those of a socket."""
    pool: Any = control_client(url, patience).connection_pool
    connection = pool.make_connection()
    try:
        connection.connect()
    except redis.AuthenticationError as reason:
        raise UsageError(f"option 'url': the server refuses the user or the password: {reason}") from None
    except (redis.ConnectionError, redis.TimeoutError) as reason:
        raise ConnectionError(str(reason)) from None
    return connection


def pack(*commands: Command) -> bytes:
    """The bytes of commands."""
    return b"".join(hiredis.pack_command(command) for command in commands)  # type: ignore[arg-type] # its stub says a tuple of one


def pack_long(command: Command, last: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A command as it travels, whose last word is large and comes in parts: to be joined once."""
    _, _, words = pack(command).partition(b"\r\n")
    return [b"*%d\r\n%s$%d\r\n" % (len(command) + 1, words, sum(map(len, last))), *last, b"\r\n"]
