"""redis-py's blocking connections to a store, with its packing, parsing, pools and pipelines, but no socket.

Around each command, redis-py's pool does work that only a network needs: it checks the socket, and passes figures to a
metrics collector. For users without these needs, :class:`StorePool` lends a ready connection directly. If a user has
set up retries, a cache, renewed credentials, listeners or metrics, the pool uses redis-py's own code. It also does so
for every connection that is new, closed or has unread data.
"""

import io
import queue
import socket
from typing import Any, cast

import redis
from redis.connection import AbstractConnection, ConnectionPool, HiredisRespSerializer
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from millstream.embedded.leased import CLOSED, LeasedConnection, LeasedPool
from millstream.embedded.place import Place
from millstream.embedded.stores import Lease
from millstream.embedded.words import pack_words

try:
    from redis.observability.providers import get_observability_instance
except ImportError:  # this version of redis-py has no metrics

    def _is_observed() -> bool:
        return False
else:

    def _is_observed() -> bool:
        return get_observability_instance().get_provider_manager() is not None


_VALUES = frozenset({bytes, str, int, float, bool, dict, set, type(None)})
_PUSH = ord(">")
# Options of a pool that only redis-py's own code supports
_ELABORATE = frozenset(
    {"cache", "cache_config", "credential_provider", "event_dispatcher", "retry_on_error", "retry_on_timeout"}
)

_NO_DESCRIPTOR = "an embedded connection has no file descriptor"


class Pipe:
    """Replacement for a socket in redis-py's connections and parsers, backed by a channel of a store.

    Args:
        lease: lease of the store.
        timeout: seconds that a read may take; None for no limit.

    Raises:
        UsageError: the store cannot be used; see :class:`Lease`.
        StorageError: the store cannot be used; see :class:`Lease`.
    """

    def __init__(self, lease: Lease, timeout: float | None) -> None:
        self._timeout = timeout
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._held = b""  # bytes taken from the inbox that the client has not read yet
        self._at_end = False
        self._put = self._inbox.put
        self._store = lease.store()
        self._run = self._store.run
        self._channel = self._store.connect(self._put)

    def sendall(self, data: bytes) -> None:
        """Run commands; their replies can be read afterwards."""
        if self._channel.closed:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        # A socket refuses other types than bytes; bytes(5) would be five zeros, which never complete a command
        self._run(self._channel, data if type(data) is bytes else bytes(memoryview(data)), self._put)

    def is_quiet(self) -> bool:
        """Return True if the pipe is open, has nothing to read, and is used by the process that opened it."""
        return not (self._held or self._channel.closed or self._store.forked) and self._inbox.empty()

    def next(self) -> bytes | None:
        """Return the available bytes, which begin with a reply.

        The result is None if there are none, at the end, or if a push message comes first.
        """
        if self._held or self._at_end or self._inbox.empty():
            return None
        data = self._inbox.get()
        if not data or data[0] == _PUSH:
            self._held, self._at_end = data, not data
            return None
        self._channel.taken()
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds that a read may take; None for no limit."""
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        """Return at least one byte, at most ``size``.

        Raises:
            TimeoutError: no byte came in time.
            RedisConnectionError: the connection is closed; the text is the reason, if known.
        """
        if not self.wait(self._timeout):
            raise TimeoutError("timed out")
        self._channel.taken()
        data, self._held = self._held[:size], self._held[size:]
        return data

    def recv_into(self, buffer: bytearray) -> int:
        """Read as :meth:`recv` does, into a buffer; return the number of bytes."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def wait(self, seconds: float | None) -> bool:
        """Return True if a read would return something within the time.

        Raises:
            RedisConnectionError: the connection is closed.
        """
        ready = self._wait(seconds)
        if self._at_end:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        return ready

    def _wait(self, seconds: float | None) -> bool:
        """Return True if bytes, or the end of the connection, have come within the time."""
        if self._held or self._at_end:
            return True
        try:
            if seconds is not None and seconds <= 0:
                data = self._inbox.get_nowait()
            else:
                data = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return False
        self._held, self._at_end = data, not data
        return True

    def pending(self) -> bool:
        """Return True if bytes are available. redis-py calls this before each command, as on a TLS socket.

        Raises:
            UnsupportedOperation: there are none; redis-py would poll next, which :meth:`fileno` refuses.
        """
        if self._held:
            return True
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def fileno(self) -> int:
        """Raise an error: there is no descriptor to poll. redis-py calls this if its parser's buffer is empty.

        Raises:
            UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def getpeername(self) -> str:
        """Return the empty name of a peer, as a unix socket does."""
        return ""

    def shutdown(self, how: int) -> None:  # noqa: ARG002 - a socket's signature
        """Close the pipe; see :meth:`close`."""
        self._channel.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class StoreConnection(LeasedConnection, AbstractConnection):
    """A connection of redis-py to a store of this process; see :class:`LeasedConnection` for its arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        packer = getattr(self, "_command_packer", None)
        self._packs_itself = type(packer) is HiredisRespSerializer and not self.health_check_interval

    def _reader(self) -> Any:
        """Return redis-py's hiredis reader; None if the connection is closed or has another parser."""
        return getattr(self._parser, "_reader", None)

    def is_ready(self) -> bool:
        """Return True if a command may be sent and its reply will be the next data to read."""
        pipe = cast("Pipe | None", self._sock)
        if pipe is None or not pipe.is_quiet() or self.should_reconnect():  # type: ignore[no-untyped-call]  # redis-py's gap
            return False
        reader = self._reader()
        return reader is not None and not reader.has_data()

    def send_command(self, *args: Any, **options: Any) -> None:
        """Pack and run a command. If its name is one plain word, this makes fewer calls than redis-py."""
        pipe: Any = self._sock
        name = args[0]
        if pipe is None or not self._packs_itself or type(name) is not str or not name.isalpha():
            super().send_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
            return
        try:
            data = pack_words(args)
        except TypeError:  # redis-py converts or refuses an argument of this type
            super().send_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
            return
        try:
            pipe.sendall(data)
        except BaseException:
            self.disconnect()  # type: ignore[no-untyped-call]  # redis-py's gap
            raise

    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        """Return the next reply. If it is available and no message, this makes fewer calls than redis-py."""
        pipe, reader = cast("Pipe | None", self._sock), self._reader()
        if disable_decoding or options or pipe is None or reader is None or self.health_check_interval:
            return super().read_response(disable_decoding, **options)
        if reader.has_data() or (data := pipe.next()) is None:
            return super().read_response()
        reader.feed(data)
        reply = reader.gets()
        if type(reply) in _VALUES or (type(reply) is list and not (reply and isinstance(reply[0], Exception))):
            return reply
        try:
            return self._unusual(reply)
        finally:
            del reply  # otherwise an error, its traceback and this frame would form a cycle

    def _unusual(self, reply: Any) -> Any:
        """Handle an error or an incomplete reply, as redis-py does."""
        if type(reply) is object:  # hiredis's marker for an incomplete reply
            return super().read_response()
        error = reply[0] if isinstance(reply, list) and reply else reply
        try:
            if isinstance(error, RedisConnectionError):
                self.disconnect()  # type: ignore[no-untyped-call]  # redis-py's gap
                raise error
            if isinstance(reply, ResponseError):
                raise reply
            return reply
        finally:
            del error, reply

    def _connect(self) -> socket.socket:
        return cast("socket.socket", Pipe(self._lease, self.socket_timeout))

    def can_read(self, timeout: float | None = 0) -> bool:
        """Return True if a reply or a message can be read within ``timeout`` seconds (None: no limit)."""
        if self._sock is None:
            self.connect()  # type: ignore[no-untyped-call]  # redis-py's gap
        try:
            if self._parser.can_read(0):  # bytes that it has already read count
                return True
        except io.UnsupportedOperation:  # nothing was read ahead, and there is no descriptor to poll
            pass
        return cast("Pipe", self._sock).wait(timeout)


class StorePool(LeasedPool, ConnectionPool):
    """A pool of redis-py; see :class:`LeasedPool` for its arguments."""

    def __init__(self, lease: Lease, **options: Any) -> None:
        super().__init__(lease, **options)
        self._is_simple = not any(options.get(name) for name in _ELABORATE) and _is_once(options.get("retry"))

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the connections and then release the store. A later use opens it again."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            self._lease.give_up()

    def set_retry(self, retry: Any) -> None:
        """Set the retry policy for connections that fail from now on."""
        self._is_simple = self._is_simple and _is_once(retry)
        super().set_retry(retry)

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a ready idle connection without redis-py's metrics, or a connection by redis-py's own code."""
        if self._is_simple and not _is_observed():
            with self._lock:
                idle = self._available_connections
                if idle and idle[-1].is_ready():
                    connection = idle.pop()
                    self._in_use_connections.add(connection)
                    return connection
        return super().get_connection(*args, **options)

    def release(self, connection: Any) -> None:
        """Take back a connection, without redis-py's metrics if they are off."""
        # redis-py's code also handles a connection that must reconnect, or that belongs to the parent of a fork
        by_the_book = not self._is_simple or _is_observed() or connection.should_reconnect()
        if by_the_book or self.pid != connection.pid:
            super().release(connection)
            return
        with self._lock:
            if connection in self._in_use_connections:
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)


def _is_once(retry: Any) -> bool:
    """Return True if the policy never retries."""
    return retry is None or (type(retry) is Retry and retry.get_retries() == 0)


def sync_store(place: Place, **options: Any) -> redis.Redis:
    """Return a client of the store.

    Raises:
        MillstreamError: the store cannot be opened; see :class:`Lease`.
    """
    return redis.Redis.from_pool(
        StorePool(Lease(place), connection_class=StoreConnection, **{"db": place.db, **options})
    )
