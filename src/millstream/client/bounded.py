"""Connections that do not wait forever for a server that is frozen or unreachable.

A reply may take :data:`LIMIT` seconds, and a command that blocks on purpose its own time in addition. If that time is
long or endless (BLOCK 0, SUBSCRIBE), the wait goes on while the server answers a PING on a second connection. The
user's ``socket_timeout`` replaces all this. A command is never sent again.

A client that keeps trying a port of its own machine without a listener can get that very port as its own. (The port
must be in the range of clients, ``net.ipv4.ip_local_port_range``.) TCP then connects the client to itself. It would
read its own requests as replies, and a restarting server would find its port in use. So such a connection counts as
refused.
"""

import asyncio
import math
import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.asyncio.sentinel import SentinelManagedConnection as AsyncSentinelConnection
from redis.connection import UnixDomainSocketConnection as UnixConnection
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelManagedConnection as SentinelConnection

#: Seconds without a reply after which a server counts as gone.
LIMIT = 10.0
#: Seconds after which the Sentinels are queried again before a connection is used. Its server may have been frozen
#: meanwhile, lost its role, and resumed without noticing.
_STALE = 1.0

_NUMBERS = re.compile(r"\[Errno (\d+)\]")
_TICK = 0.01  # Seconds by which a timer may come early
_MS = 1e-3
_FIRST_SECONDS = ("BLMPOP", "BZMPOP")
_LAST_SECONDS = ("BLPOP", "BRPOP", "BRPOPLPUSH", "BLMOVE", "BZPOPMIN", "BZPOPMAX")
_LAST_MS = ("WAIT", "WAITAOF")
_LISTENS = ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR")


def blocks_for(command: Sequence[Any]) -> float:
    """Return the seconds that a command may block on purpose; infinite if it may block for ever."""
    name = _word(command[0])
    try:
        if name in ("XREAD", "XREADGROUP"):
            for at in range(4 if name == "XREADGROUP" else 1, len(command)):  # skips the names of group and consumer
                if (word := _word(command[at])) == "BLOCK":
                    return _seconds(command[at + 1], _MS)
                if word == "STREAMS":  # only keys and ids follow STREAMS
                    break
            return 0.0
        if name in _LAST_SECONDS or name in _LAST_MS:
            return _seconds(command[-1], _MS if name in _LAST_MS else 1.0)
        return _seconds(command[1], 1.0) if name in _FIRST_SECONDS else 0.0
    except (ValueError, IndexError):  # the server rejects such a command at once
        return 0.0


def _word(word: Any) -> str:
    return word.decode("latin-1").upper() if isinstance(word, bytes) else str(word).upper()


def _seconds(given: Any, scale: float) -> float:
    return float(given) * scale or math.inf


def _reason(error: BaseException) -> str:
    """Return the operating system's text for an error; an asyncio error has a number for each address of a name."""
    if isinstance(error, ssl.SSLError | socket.gaierror):  # their errno values are not operating-system error numbers
        return str(error.args[-1]).lower() if isinstance(error, socket.gaierror) else str(error.args[-1])
    known = [error.errno] if isinstance(error, OSError) and error.errno else map(int, _NUMBERS.findall(str(error)))
    return ", ".join(dict.fromkeys(os.strerror(number).lower() for number in known)) or str(error)


class _Bounds:
    """The time limits of awaited replies, shared by blocking and asyncio connections."""

    socket_timeout: Any
    host: Any
    port: Any
    path: Any

    #: False if the connection's owner limits each read itself.
    bounded = True
    _next = 0.0
    _blocking = 0.0
    _listening = False
    _used = 0.0
    _heard = 0.0

    @property
    def _is_silent(self) -> bool:
        """True for a polled subscriber of channels if its server has sent nothing for :data:`LIMIT` seconds."""
        return self._limited and self._listening and time.monotonic() - self._heard > LIMIT

    @property
    def _is_stale(self) -> bool:
        return not self._listening and time.monotonic() - self._used > _STALE

    def _announce(self, commands: Iterable[Sequence[Any]]) -> None:
        commands = list(commands)
        self._next = sum(map(blocks_for, commands))
        self._listening = self._listening or any(_word(command[0]) in _LISTENS for command in commands)

    def pack_commands(self, commands: Any) -> Any:
        """Pack the commands, and note the seconds that they may block together."""
        commands = list(commands)
        self._announce(commands)
        return super().pack_commands(commands)  # type: ignore[misc] # a mixin

    def _sending(self) -> float:
        """Return the block time of the command that is sent now; a handshake meanwhile has its own."""
        found, self._next = self._next, 0.0
        self._used = time.monotonic()
        return found

    @property
    def _limited(self) -> bool:
        return self.bounded and self.socket_timeout is None

    def _times(self, *, endless: bool) -> tuple[float, float]:
        """Return the seconds until the server is probed, and the time at which the wait for the reply ends."""
        blocking = math.inf if endless or self._listening else self._blocking
        step = LIMIT if blocking > LIMIT else LIMIT + blocking
        return step, time.monotonic() + LIMIT + blocking - _TICK

    def _forget_idle(self) -> Any:
        """Close the pool's idle connections where a Sentinel names the server: they lead to the same server."""
        pool = getattr(self, "connection_pool", None)
        if (known := getattr(pool, "connection_pool_ref", None)) is not None:  # set by blocking ones
            pool = known()
        return None if pool is None else pool.disconnect(inuse_connections=False)

    def _error_message(self, error: BaseException) -> str:
        """Return the reason for a failed connection in plain words; redis-py's own text has only the error's number."""
        return f"{_reason(error)} at {getattr(self, 'path', None) or f'{self.host}:{self.port}'}"

    def _gone(self) -> RedisTimeoutError:
        where = getattr(self, "path", None) or f"{self.host}:{self.port}"
        return RedisTimeoutError(f"{where} did not answer in time; the command may have run")


class Bounded(_Bounds):
    """Time limits for redis-py's blocking connections."""

    _sock: Any

    def send_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send a command, and note the seconds that it may block."""
        self._announce([args])
        return super().send_command(*args, **kwargs)  # type: ignore[misc] # a mixin

    def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send packed commands; their block time counts from now on."""
        blocking = self._sending()
        bounds = self._limited and self._sock is not None
        if bounds:
            self._sock.settimeout(2 * LIMIT)  # a frozen server's full buffer also blocks sending
        try:
            sent = super().send_packed_command(*args, **kwargs)  # type: ignore[misc] # a mixin
        except redis.TimeoutError:
            raise self._gone() from None
        finally:
            if bounds and self._sock is not None:
                self._sock.settimeout(None)
        self._blocking = blocking
        return sent

    def disconnect(self, *args: Any, **kwargs: Any) -> Any:
        """Close the connection."""
        self._listening = False
        return super().disconnect(*args, **kwargs)  # type: ignore[misc] # a mixin

    def can_read(self, timeout: float = 0) -> bool:
        """Wait for something to read; raise an error if a polled server is frozen."""
        found = bool(super().can_read(timeout))  # type: ignore[misc] # a mixin
        if not found and self._is_silent and not self._answers():
            self.disconnect()
            self._forget_idle()
            raise self._gone()
        return found

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply, within its time limit."""
        given = kwargs.get("timeout", 0)
        if not self._limited or ("timeout" in kwargs and isinstance(given, int | float)) or self._sock is None:
            self._heard = time.monotonic()  # such a read follows a check that data has arrived
            return super().read_response(*args, **kwargs)  # type: ignore[misc] # a mixin
        step, end = self._times(endless=given is None)
        kwargs.pop("timeout", None)
        hang_up = kwargs.pop("disconnect_on_error", True)
        try:
            while True:
                self._sock.settimeout(step)
                try:
                    return super().read_response(*args, disconnect_on_error=False, **kwargs)  # type: ignore[misc] # a mixin
                except redis.TimeoutError:
                    if time.monotonic() >= end or not self._answers():
                        self.disconnect()
                        self._forget_idle()
                        raise self._gone() from None
        except redis.ResponseError:
            raise
        except BaseException:
            if hang_up:
                self.disconnect()
            raise
        finally:
            if self._sock is not None:
                self._sock.settimeout(None)

    def _answers(self) -> bool:
        """Return True if the server reacts to a new connection; a refusal, such as NOAUTH, counts too."""
        path = getattr(self, "path", None)
        try:
            with (
                socket.socket(socket.AF_UNIX)
                if path
                else socket.create_connection((self.host, self.port), LIMIT) as probe
            ):
                probe.settimeout(LIMIT)
                if path:
                    probe.connect(path)
                probe.sendall(b"PING\r\n")
                probe.recv(1)
        except ConnectionResetError:
            pass
        except OSError:
            return False
        self._heard = time.monotonic()
        return True


class AsyncBounded(_Bounds):
    """Time limits for redis-py's asyncio connections."""

    async def send_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send a command, and note the seconds that it may block."""
        self._announce([args])
        return await super().send_command(*args, **kwargs)  # type: ignore[misc] # a mixin

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send packed commands; their block time counts from now on."""
        blocking = self._sending()
        if not self._limited:
            return await super().send_packed_command(*args, **kwargs)  # type: ignore[misc] # a mixin
        try:
            async with asyncio.timeout(2 * LIMIT):  # as above
                sent = await super().send_packed_command(*args, **kwargs)  # type: ignore[misc] # a mixin
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise self._gone() from None
        self._blocking = blocking
        return sent

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection."""
        self._listening = False
        await super().disconnect(*args, **kwargs)  # type: ignore[misc] # a mixin

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply, within its time limit."""
        given = kwargs.get("timeout")
        if not self._limited or (given is not None and given != math.inf):
            found = await super().read_response(*args, **kwargs)  # type: ignore[misc] # a mixin
            if found is not None:
                self._heard = time.monotonic()
            elif self._is_silent and not await self._answers():
                await self._leave()
                raise self._gone()
            return found
        step, end = self._times(endless=given == math.inf)
        kwargs.pop("timeout", None)  # with a timeout, redis-py would return None and keep the connection
        hang_up = kwargs.pop("disconnect_on_error", True)
        try:
            while True:
                try:
                    async with asyncio.timeout(step):
                        return await super().read_response(  # type: ignore[misc] # a mixin
                            *args, disconnect_on_error=False, **kwargs
                        )
                except TimeoutError:
                    if time.monotonic() >= end or not await self._answers():
                        await self._leave()
                        raise self._gone() from None
        except redis.ResponseError:
            raise
        except BaseException:
            if hang_up:
                await self.disconnect(nowait=True)
            raise

    async def _leave(self) -> None:
        await self.disconnect(nowait=True)
        await (self._forget_idle() or asyncio.sleep(0))

    async def _answers(self) -> bool:
        """Return True if the server reacts to a new connection, as in :meth:`Bounded._answers`."""
        path = getattr(self, "path", None)
        writer = None
        try:
            async with asyncio.timeout(LIMIT):
                reader, writer = await (
                    asyncio.open_unix_connection(path) if path else asyncio.open_connection(self.host, self.port)
                )
                writer.write(b"PING\r\n")
                await reader.read(1)
        except ConnectionResetError:
            pass
        except OSError:  # includes TimeoutError
            return False
        finally:
            if writer is not None:
                writer.close()
        self._heard = time.monotonic()
        return True


NOBODY = "no server listens there: the connection reached itself"


def _is_itself(connected: socket.socket) -> bool:
    try:
        return bool(connected.getsockname() == connected.getpeername())
    except OSError:  # the other end has closed it, so the other end is not this process
        return False


class CheckedConnection(redis.Connection):
    """redis-py's blocking TCP connection, which refuses a connection to itself."""

    def _connect(self) -> socket.socket:
        made: socket.socket = super()._connect()  # type: ignore[no-untyped-call] # redis-py's gap
        if _is_itself(made):
            made.close()
            raise ConnectionRefusedError(NOBODY)
        return made


class AsyncCheckedConnection(redis.asyncio.Connection):
    """redis-py's asyncio TCP connection, which refuses a connection to itself."""

    _writer: Any

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call] # as above
        if _is_itself(self._writer.get_extra_info("socket")):
            self._writer.close()
            raise ConnectionRefusedError(NOBODY)


class Plain(Bounded, CheckedConnection):
    """Blocking connection to one server over TCP."""


class Encrypted(Bounded, redis.SSLConnection):
    """Blocking connection over TLS."""


class Unix(Bounded, UnixConnection):
    """Blocking connection over a Unix domain socket."""


class Managed(Bounded, SentinelConnection):
    """Blocking connection to the master that Sentinels name."""

    def can_read(self, timeout: float = 0) -> bool:
        """Return True also if the server is a former master: the pool then connects again."""
        return bool(super().can_read(timeout)) or self._has_moved()

    def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        """Connect; if a command finds the connection closed, connect to the present master and not to the last one."""
        if retry_socket_connect:
            self.connect()  # type: ignore[no-untyped-call] # redis-py's gap
        else:
            super().connect_check_health(check_health, retry_socket_connect)

    def _has_moved(self) -> bool:
        pool = self.connection_pool
        try:
            return self._is_stale and pool.sentinel_manager.discover_master(pool.service_name) != (self.host, self.port)
        except (redis.RedisError, OSError):
            return False


class AsyncPlain(AsyncBounded, AsyncCheckedConnection):
    """Asyncio connection to one server over TCP."""


class AsyncEncrypted(AsyncBounded, redis.asyncio.SSLConnection):
    """Asyncio connection over TLS."""


class AsyncUnix(AsyncBounded, AsyncUnixConnection):
    """Asyncio connection over a Unix domain socket."""


class AsyncManaged(AsyncBounded, AsyncSentinelConnection):
    """Asyncio connection to the master that Sentinels name."""

    async def can_read(self) -> bool:
        """Return True also if the server is a former master: the pool then connects again."""
        return bool(await super().can_read()) or await self.has_moved()

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        """Connect; if a command finds the connection closed, connect to the present master and not to the last one."""
        if retry_socket_connect:
            await self.connect()  # type: ignore[no-untyped-call] # redis-py's gap
        else:
            await super().connect_check_health(check_health, retry_socket_connect)

    async def has_moved(self) -> bool:
        """Return True if the Sentinels name another master now; they are queried only after a time without use."""
        pool = self.connection_pool
        try:
            return self._is_stale and await pool.sentinel_manager.discover_master(pool.service_name) != (
                self.host,
                self.port,
            )
        except (redis.RedisError, OSError):
            return False
