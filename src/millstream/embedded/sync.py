"""redis-py's blocking connections over a channel: its own packing, parsing, pools and pipelines, and no socket.

redis-py's pool does much around a command that serves a network: it asks a socket whether it is still good, and offers
numbers to a collector of metrics. For users without these, :class:`StorePool` lends a connection that is ready without
it. Retries, a cache, credentials that are renewed, listeners and metrics take redis-py's own way, if a user has set
them up. So does every connection that is new, closed or has something to read.
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
except ImportError:  # a redis-py that has no metrics

    def _is_observed() -> bool:
        return False
else:

    def _is_observed() -> bool:
        return get_observability_instance().get_provider_manager() is not None


_VALUES = frozenset({bytes, str, int, float, bool, dict, set, type(None)})
_PUSH = ord(">")
# Options of a pool that ask for more of redis-py than a command's way to a store has
_ELABORATE = frozenset(
    {"cache", "cache_config", "credential_provider", "event_dispatcher", "retry_on_error", "retry_on_timeout"}
)

_NO_DESCRIPTOR = "an embedded connection has no file descriptor"


class Pipe:
    """A socket as redis-py's connections and parsers need it, over a channel of a store.

    Args:
        lease: of the store.
        timeout: seconds a read may take; None for ever.

    Raises:
        UsageError: the store cannot be used; see :class:`Lease`.
        StorageError: the same.
    """

    def __init__(self, lease: Lease, timeout: float | None) -> None:
        self._timeout = timeout
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._held = b""  # taken from the inbox, not yet by the client
        self._at_end = False
        self._put = self._inbox.put
        self._store = lease.store()
        self._run = self._store.run
        self._channel = self._store.connect(self._put)

    def sendall(self, data: bytes) -> None:
        """Run commands; their replies can be read afterwards."""
        if self._channel.closed:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        # a socket refuses other types than bytes; bytes(5) would be five zeros, which no command ever completes
        self._run(self._channel, data if type(data) is bytes else bytes(memoryview(data)), self._put)

    def is_quiet(self) -> bool:
        """True if it is open and there is nothing to read, in the process that opened it."""
        return not (self._held or self._channel.closed or self._store.forked) and self._inbox.empty()

    def next(self) -> bytes | None:
        """Replies that are here, from the begin of one on; None if there are none, or if it is a message or the end."""
        if self._held or self._at_end or self._inbox.empty():
            return None
        data = self._inbox.get()
        if not data or data[0] == _PUSH:
            self._held, self._at_end = data, not data
            return None
        self._channel.taken()
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Seconds a read may take from now on; None for ever."""
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        """At least one byte, at most ``size``.

        Raises:
            TimeoutError: none came in time.
            RedisConnectionError: none will come; the text says why, where there is a reason.
        """
        if not self.wait(self._timeout):
            raise TimeoutError("timed out")
        self._channel.taken()
        data, self._held = self._held[:size], self._held[size:]
        return data

    def recv_into(self, buffer: bytearray) -> int:
        """As :meth:`recv`, into a buffer; the number of bytes."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def wait(self, seconds: float | None) -> bool:
        """True if a read would return something within the time.

        Raises:
            RedisConnectionError: the connection is closed.
        """
        ready = self._wait(seconds)
        if self._at_end:
            raise RedisConnectionError(self._channel.reason or CLOSED)
        return ready

    def _wait(self, seconds: float | None) -> bool:
        """True if bytes, or the end, have come."""
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
        """True if bytes are here: redis-py asks this first, as of a TLS socket, before it polls; before each command.

        Raises:
            UnsupportedOperation: none are here: redis-py would poll next, which :meth:`fileno` refuses.
        """
        if self._held:
            return True
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def fileno(self) -> int:
        """Refuse: there is none to poll; redis-py asks when its parser has found nothing in its own buffer.

        Raises:
            UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation(_NO_DESCRIPTOR)

    def getpeername(self) -> str:
        """The peer's name, as of a unix socket: empty."""
        return ""

    def shutdown(self, how: int) -> None:  # noqa: ARG002 - a socket's signature
        """Shut the pipe; see :meth:`close`."""
        self._channel.close()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


class StoreConnection(LeasedConnection, AbstractConnection):
    """A connection of redis-py to a store of this process; see :class:`LeasedConnection` for its arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        packer = getattr(self, "_command_packer", None)
        self._packs_itself = type(packer) is HiredisRespSerializer and not self.health_check_interval

    def _reader(self) -> Any:
        """redis-py's hiredis reader; None while it is closed, or has another parser."""
        return getattr(self._parser, "_reader", None)

    def is_ready(self) -> bool:
        """True if a command may be sent, and the next thing to be read will be its reply."""
        pipe = cast("Pipe | None", self._sock)
        if pipe is None or not pipe.is_quiet() or self.should_reconnect():  # type: ignore[no-untyped-call]  # redis-py's gap
            return False
        reader = self._reader()
        return reader is not None and not reader.has_data()

    def send_command(self, *args: Any, **options: Any) -> None:
        """Pack and run a command, with fewer calls than redis-py's where its name is one plain word."""
        pipe: Any = self._sock
        name = args[0]
        if pipe is None or not self._packs_itself or type(name) is not str or not name.isalpha():
            super().send_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
            return
        try:
            data = pack_words(args)
        except TypeError:  # a word of a kind that redis-py changes first, or refuses
            super().send_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's gap
            return
        try:
            pipe.sendall(data)
        except BaseException:
            self.disconnect()  # type: ignore[no-untyped-call]  # redis-py's gap
            raise

    def read_response(self, disable_decoding: bool = False, **options: Any) -> Any:
        """The next reply, with fewer calls than redis-py's where it is here and nothing but a reply."""
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
            del reply  # or an error, its traceback and this frame were a cycle

    def _unusual(self, reply: Any) -> Any:
        """Handle a reply that is not a value, or not whole, as redis-py does."""
        if type(reply) is object:  # its word for that
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
        """True if a reply or a message can be read within ``timeout`` seconds (None: for ever)."""
        if self._sock is None:
            self.connect()  # type: ignore[no-untyped-call]  # redis-py's gap
        try:
            if self._parser.can_read(0):  # bytes that it has read ahead count
                return True
        except io.UnsupportedOperation:  # nothing read ahead, and no descriptor to poll
            pass
        return cast("Pipe", self._sock).wait(timeout)


class StorePool(LeasedPool, ConnectionPool):
    """A pool of redis-py; see :class:`LeasedPool` for its arguments."""

    def __init__(self, lease: Lease, **options: Any) -> None:
        super().__init__(lease, **options)
        self._is_simple = not any(options.get(name) for name in _ELABORATE) and _is_once(options.get("retry"))

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Hang up; with no connection left, let the store go. Used again, the pool opens it again."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            self._lease.give_up()

    def set_retry(self, retry: Any) -> None:
        """Set the retry for connections that fail from now on."""
        self._is_simple = self._is_simple and _is_once(retry)
        super().set_retry(retry)

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """An idle connection that is ready, without redis-py's counts; else one by its own way."""
        if self._is_simple and not _is_observed():
            with self._lock:
                idle = self._available_connections
                if idle and idle[-1].is_ready():
                    connection = idle.pop()
                    self._in_use_connections.add(connection)
                    return connection
        return super().get_connection(*args, **options)

    def release(self, connection: Any) -> None:
        """Take back a connection, without redis-py's counts where nothing asks for them."""
        # By redis-py's way too: a connection that must be made again, or was made by the parent of a fork
        by_the_book = not self._is_simple or _is_observed() or connection.should_reconnect()
        if by_the_book or self.pid != connection.pid:
            super().release(connection)
            return
        with self._lock:
            if connection in self._in_use_connections:
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)


def _is_once(retry: Any) -> bool:
    """True if nothing is tried again."""
    return retry is None or (type(retry) is Retry and retry.get_retries() == 0)


def sync_store(place: Place, **options: Any) -> redis.Redis:
    """A client.

    Raises:
        MillstreamError: the store cannot be opened; see :class:`Lease`.
    """
    return redis.Redis.from_pool(
        StorePool(Lease(place), connection_class=StoreConnection, **{"db": place.db, **options})
    )
