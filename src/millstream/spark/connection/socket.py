"""Raw replies from a server: a socket on which pages are asked for ahead of time, and trying again after a restart.

The reply bytes are handed on as they came, to be turned into columns without one Python object a value.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from millstream.client.url import sync_client
from millstream.errors import UsageError

if TYPE_CHECKING:
    import socket

    import redis

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""How long a server that was there before may be away: a restart, a failover."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
_CHUNK = 1 << 20
_FIRST_ROOM = 1 << 18
_ROOM = 8 << 20
"""What an idle connection keeps of memory at most; a usual page is half of it."""
_REFUSAL = 200
"""An error reply is found in so many bytes."""
PASSING = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")
"""Errors that go away by themselves."""


def control_client(url: str, patience: float = ANSWER_SECONDS) -> "redis.Redis":
    """A client for short commands, which answers bytes and gives up on a server that hangs for so many seconds."""
    connecting = min(CONNECT_SECONDS, patience)
    return sync_client(url, protocol=2, socket_connect_timeout=connecting, socket_timeout=patience, **_library())


@functools.cache
def _library() -> dict[str, Any]:
    """What redis-py tells a server of itself: it reads its package's metadata anew for every connection, a millisecond.

    Versions without this class read it once.
    """
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415 - not in every version
    except ImportError:
        return {}
    return {"driver_info": DriverInfo()}


def lost_contact(reason: BaseException) -> bool:
    """Whether an error means that the server is away or not ready, rather than that it refused a command."""
    import redis  # noqa: PLC0415 - only on the error path

    if isinstance(reason, redis.AuthenticationError):
        return False
    return isinstance(reason, OSError | redis.ConnectionError | redis.TimeoutError | redis.BusyLoadingError)


def retrying(work: Callable[[], T], seconds: float = RETRY_SECONDS) -> T:
    """Call ``work``, and again while the server is away, for at most ``seconds``: only for what may be repeated."""
    deadline = time.monotonic() + seconds
    pause = 0.05
    while True:
        try:
            return work()
        except Exception as reason:
            if not lost_contact(reason) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)  # the server is away; a task has nothing else to do than to try again
        pause = min(1.0, pause * 2)


class Wire:
    """One connection for large reads.

    redis-py makes the connection (TLS, password, database, unix sockets); from then on the socket is ours. The last
    command of every request is an ECHO of a word that nobody else knows, so the end of the replies is seen without
    parsing them, whatever bytes the entries hold.

    Args:
        url: of the server.
        readonly: it is to be read though it is a replica of a cluster.
        patience: seconds for which it may say nothing.
    """

    def __init__(self, url: str, *, readonly: bool = False, patience: float = ANSWER_SECONDS) -> None:
        pool: Any = control_client(url, patience).connection_pool
        self._connection = pool.make_connection()
        self._connection.connect()
        if readonly:
            self._connection.send_command("READONLY")  # else a replica of a cluster sends every reader away
            self._connection.read_response()
        self._socket: socket.socket = self._connection._sock  # noqa: SLF001 - the one way to let redis-py do TLS and login
        word = os.urandom(16).hex().encode()
        self._echo: bytes = _pack(b"ECHO", word)
        self._end = b"$%d\r\n%s\r\n" % (len(word), word)
        self._room = bytearray(_FIRST_ROOM)
        self._replies = 0
        self.waiting = False

    def send(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> None:
        """Send commands; their replies must be fetched by :meth:`receive` before the next are sent."""
        assert not self.waiting
        self.waiting = True
        self._replies = len(commands) + 1
        self._socket.sendall(b"".join([*(_pack(*command) for command in commands), self._echo]))

    def receive(self) -> bytes:
        """The replies to what was sent last, one after the other.

        Raises:
            OSError: the server went away, is still loading its data, or did not answer in time.
            UsageError: it refuses every command, for want of a password for instance.
        """
        size = 0
        end = len(self._end)
        while size < end or self._room[size - end : size] != self._end:
            if size == len(self._room):
                self._room += bytes(size)  # as much again
            with memoryview(self._room) as view:
                got = self._socket.recv_into(view[size : size + _CHUNK])
                if not got:
                    raise ConnectionResetError("the server closed the connection")
                size += got
                tail = bytes(view[max(0, size - _REFUSAL) : size])
                if tail.endswith(b"\r\n") and tail.rpartition(b"\r\n-")[2].count(b"\r\n") == 1:
                    _check_refused(bytes(view[:size]), self._replies)
        self.waiting = False
        with memoryview(self._room) as view:
            raw = bytes(view[: size - end])
        if len(self._room) > _ROOM:
            self._room = bytearray(_FIRST_ROOM)
        return raw

    def close(self) -> None:
        """Close the socket."""
        self._connection.disconnect()


def _pack(*command: bytes | str | int) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub says a tuple of one
    return packed


def _check_refused(raw: bytes, expected: int) -> None:
    """Raise if even the last command, an ECHO, was refused: a server that loads or wants a password refuses all."""
    reader = hiredis.Reader()
    reader.feed(raw)
    replies = []
    while (reply := reader.gets()) is not False:
        replies.append(reply)
    if len(replies) < expected or not isinstance(replies[-1], hiredis.ReplyError):
        return
    told = f"the server refuses every command: {replies[-1]}"
    if str(replies[-1]).startswith("NOPERM"):
        told = f"the user needs +echo, by which the end of replies is known: {replies[-1]}"
    if str(replies[-1]).startswith(PASSING):
        raise ConnectionError(told)
    raise UsageError(told)
