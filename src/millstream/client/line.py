"""One asyncio connection that many callers share: concurrent requests travel in one write.

Replies are the server's own values (RESP2: bytes, int, list, None), untouched by redis-py's callbacks, because those
differ between redis-py versions and cost more than reading the reply. The connection itself (address, TLS, password) is
redis-py's.

A line never repeats a command. When the connection breaks, every caller without a reply gets :class:`Disconnected` and
decides for itself: an XACK may be sent again, an XADD may not.
"""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, TypeAlias

from hiredis import Reader, pack_command
from redis._parsers import hiredis as hiredis_parsers
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from millstream.client import bounded
from millstream.client.connect import async_client
from millstream.clock import SystemClock
from millstream.errors import ConfigError, Disconnected, MillstreamError, UsageError
from millstream.printable import without_password, without_secrets

__all__ = [
    "AccessDenied",
    "Command",
    "Disconnected",
    "Line",
    "Reply",
    "Withheld",
    "WrongReplyError",
    "passes",
    "wrong_reply",
]

logger = logging.getLogger(__name__)

Command: TypeAlias = Sequence[bytes | str | int | float]
Reply: TypeAlias = Any


class Withheld(MillstreamError):  # noqa: N818 - the caller's own condition
    """The commands were not sent, since their condition no longer held when their turn came. Nothing was changed.

    What to do: read the present state and decide again.
    """


class AccessDenied(MillstreamError):  # noqa: N818 - the server's decision, not a program error
    """The server refused the user name, the password or the right to connect. Another try will not help.

    What to do: correct the user and password in the URL, or let an administrator grant the right that the message names
    (ACL SETUSER).
    """

    exit_code: ClassVar[int] = 5


class WrongReplyError(MillstreamError):
    """The reply does not belong to this command, although the server is Redis or compatible with it.

    What to do: check which server listens at that address. If it is Redis, Valkey or Millstream, this is our fault:
    report it with the message.
    """


_SAID = 200  # largest number of characters of an error's text, which may contain a whole reply


def wrong_reply(error: Exception, *urls: str) -> WrongReplyError:
    """Return the error for replies that cannot be understood."""
    logger.debug("an answer could not be read", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    said = without_secrets(str(error))[:_SAID]
    where, what = " or ".join(map(without_password, urls)), f"{type(error).__name__}{place}: {said}"
    return WrongReplyError(
        f"the reply of {where} cannot be read ({what}): either the server is neither Redis nor Millstream, or this is "
        "a fault of Millstream"
    )


#: A queued request: packed commands, their number, the future for the replies, the timeout in seconds, a condition.
_Asked: TypeAlias = "tuple[bytes, int, asyncio.Future[list[Reply]], float, Callable[[], bool] | None]"


#: Codes of a server that is reachable but cannot serve now. redis-py removes the code from errors that have a class.
_PASSING_CODES = (
    *("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "MISCONF", "OOM", "UNBLOCKED"),
    "NOREPLICAS",
)
_PASSING_KINDS = (BusyLoadingError, ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)


def passes(error: Exception) -> bool:
    """Return True if the server may accept the command later: it loads, is a replica, is full, or lacks replicas."""
    return isinstance(error, _PASSING_KINDS) or (
        str(error).startswith(_PASSING_CODES) and not str(error).startswith("BUSYGROUP")
    )


#: Seconds until a driver is cancelled again. With a ``socket_timeout``, redis-py sends through asyncio.wait_for; in
#: Python 3.11 that function loses a cancellation that arrives together with the result.
_AGAIN = 0.05

#: Hiredis's marker for an incomplete reply, as redis-py's parser sets it.
_NOTHING: Any = getattr(hiredis_parsers, "NOT_ENOUGH_DATA", None)

#: Seconds between two queries of the Sentinels while the master does not reply.
_LOOK = 2.0

#: Parts of SELECT's error replies: the server lacks that database, or has only one.
_NO_DATABASE = ("DB index", "SELECT is not allowed")

#: Seconds of silence after which the server may have closed the connection unnoticed.
_IDLE = 0.5

#: Passes of the event loop without a new request, after which a joint line sends what it has.
_PASSES = 16

#: Seconds after which a joint line sends what it has, although more requests come.
_SETTLING = 0.05


class Line:
    """One asyncio connection to a server, which many callers share."""

    def __init__(
        self,
        url: str,
        *,
        greet: Sequence[Command] = (),
        timeout: float = 30.0,
        redial: bool = False,
        joint: bool = False,
    ) -> None:
        self._client = async_client(url, protocol=2)
        self._greet = greet
        self._timeout = timeout
        self._connection: Any = None
        self._queue: list[_Asked] = []
        self._wake = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._closed = False
        self._redial = redial
        self._joint = joint  # True for readers at once: their requests wait for each other, to share round trips
        self._written = False  # True once any part of the present batch was sent
        self._used_at = 0.0
        self._asked_at: float | None = None  # time of the first request without a reply
        self._limit: asyncio.Timeout | None = None  # timeout of the present batch
        self.greeting: list[Reply] = []
        self.connects = 0
        self._trips = 0

    @property
    def connected(self) -> bool:
        """True while there is a connection that has not been seen to break."""
        return self._connection is not None

    @property
    def trips(self) -> int:
        """Number of round trips so far, each with any number of requests."""
        return self._trips

    @property
    def patience(self) -> float:
        """Seconds that a reply may take: this line's limit, or the URL's ``socket_timeout`` where that is shorter."""
        pool = getattr(self._client, "connection_pool", None)
        given = None if pool is None else pool.connection_kwargs.get("socket_timeout")
        return self._timeout if given is None else min(self._timeout, float(given))

    @property
    def silent(self) -> float:
        """Seconds for which the open requests have been without a reply."""
        return 0.0 if self._asked_at is None else asyncio.get_running_loop().time() - self._asked_at

    def wall_time(self) -> int:
        """Return the wall milliseconds of the replies: the present, but for a report the time when it was made."""
        return SystemClock().wall_time()

    async def call(self, *command: bytes | str | int | float, timeout: float | None = None) -> Reply:  # noqa: ASYNC109 - the driver, not the caller, is bounded by it
        """Send one command and return its reply."""
        reply = (await self.calls((command,), timeout=timeout))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(
        self, commands: Sequence[Command], *, timeout: float | None = None, only_if: Callable[[], bool] | None = None
    ) -> "asyncio.Future[list[Reply]]":
        """Send commands in order; the future gives their replies, with an exception in place of an error reply.

        The commands are queued before this returns, so two callers' commands keep the order of their calls.
        """
        future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Disconnected("the line is closed", sent=False))
            return future
        # Packed here, not when they are written: an argument that cannot be packed is the caller's mistake and must not
        # affect other callers
        packed = b"".join([_pack(command) for command in commands])
        asked = (packed, len(commands), future, self._timeout if timeout is None else timeout, only_if)
        self._queue.append(asked)
        self._wake.set()
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive_to_the_end(), name="millstream-line")
        return future

    def near(self, key: str) -> "Line":  # noqa: ARG002 - a cluster's line needs it
        """Return the line to the node that has a key: this line, if there is one server."""
        return self

    async def nodes(self) -> "list[Line]":
        """Return a line to each server: this line, if there is one."""
        return [self]

    async def close(self) -> None:
        """Close the connection: callers that still wait get :class:`Disconnected`."""
        self._closed = True
        if self._driver is not None:
            self._driver.cancel()
            while not (await asyncio.wait([self._driver], timeout=_AGAIN))[0]:
                self._driver.cancel()
        self._fail(self._queue, Disconnected("the line was closed"))
        self._queue = []
        await self._hang_up()
        await self._client.aclose()

    async def _drive_to_the_end(self) -> None:
        """Drive until cancelled, by :meth:`close` or by the event loop's end, and then disconnect."""
        pool = getattr(self._client, "connection_pool", None)
        watched = getattr(pool, "connection_class", None) is bounded.AsyncManaged
        follower = asyncio.create_task(self._follow(), name="millstream-follow") if watched else None
        try:
            await self._drive()
        except (asyncio.CancelledError, Exception):  # GeneratorExit passes: a forked process ends its copy with it
            if follower is not None:
                follower.cancel()
            await self._hang_up()
            raise

    async def _follow(self) -> None:
        """End the wait for a master that does not answer once the Sentinels name another."""
        while True:
            await asyncio.sleep(_LOOK)
            connection, limit = self._connection, self._limit
            if limit is None or self.silent < _LOOK or not getattr(connection, "is_connected", False):
                continue
            if await connection.has_moved() and self._limit is limit:
                with contextlib.suppress(RuntimeError):  # the batch has ended meanwhile
                    limit.reschedule(asyncio.get_running_loop().time())

    async def _drive(self) -> None:
        """Send the queued commands and read their replies, in a loop."""
        while True:
            await self._wake.wait()
            if self._joint:
                await self._settle()
            self._wake.clear()
            batch, self._queue = self._queue, []
            self._written = False
            limit = max(each for _, _, _, each, _ in batch)
            began = asyncio.get_running_loop().time()
            if self._asked_at is None:
                self._asked_at = began
            try:
                async with asyncio.timeout(limit) as self._limit:
                    await self._exchange(batch)
                self._asked_at = None
            except asyncio.CancelledError:
                self._fail(batch, Disconnected("the line was closed"))
                raise
            except AuthenticationError as error:
                await self._hang_up()
                self._fail(batch, AccessDenied(f"the server refuses the login: {error}"))
            except (AccessDenied, ConfigError) as error:  # the connection is refused for good
                await self._hang_up()
                self._fail(batch, error)
            except (RedisError, OSError, TimeoutError, Disconnected) as error:
                await self._hang_up()
                waited = min(limit, round(asyncio.get_running_loop().time() - began, 1))
                reason = str(error) or f"it did not answer within {waited:g} s"
                self._fail(batch, Disconnected(reason, sent=self._written))
            except Exception as error:  # noqa: BLE001 - the parser may raise anything for bytes that no Redis sends
                await self._hang_up()
                self._fail(batch, Disconnected(f"its answer cannot be read: {error!r}", sent=self._written))
            finally:
                self._limit = None

    async def _settle(self) -> None:
        """Wait until no more requests come: readers that run at once, and got their replies together, ask together."""
        known, end = 0, asyncio.get_running_loop().time() + _SETTLING
        while known < len(self._queue) and asyncio.get_running_loop().time() < end:
            known = len(self._queue)
            for _ in range(_PASSES):
                await asyncio.sleep(0)

    async def _exchange(self, batch: Iterable[_Asked]) -> None:
        if self._redial and self._connection is not None:
            if asyncio.get_running_loop().time() - self._used_at > _IDLE:
                # While other code blocked the event loop, bytes may have arrived; they become visible after the loop's
                # next poll
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if self._was_closed():
                await self._hang_up()
        if isinstance(self._connection, bounded.AsyncManaged) and await self._connection.has_moved():
            if not self._redial:
                raise RedisConnectionError("the Sentinels name another master now")
            await self._hang_up()
        connection = self._connection
        if connection is None:
            connection = await self._dial()
        sent = [asked for asked in batch if asked[4] is None or _holds(asked)]
        self._written = True
        self._trips += 1
        await connection.send_packed_command(b"".join([asked[0] for asked in sent]))
        longest = max((asked[3] for asked in sent), default=0.0)
        for _, count, future, _, _ in sent:
            self._answer(future, await _replies(connection, count))
            if self._joint and self._limit is not None:  # the limit of a shared trip is that of each request alone
                self._asked_at = asyncio.get_running_loop().time()
                self._limit.reschedule(self._asked_at + longest)
        self._used_at = asyncio.get_running_loop().time()

    def _was_closed(self) -> bool:
        """Return True if the server has closed the connection while no request was open."""
        reader: asyncio.StreamReader | None = getattr(self._connection, "_reader", None)  # not public in redis-py
        return reader is None or reader.at_eof() or reader.exception() is not None

    def _answer(self, future: "asyncio.Future[list[Reply]]", replies: list[Reply]) -> None:
        if not future.done():
            future.set_result(replies)

    async def _dial(self) -> Any:
        connection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call] # redis-py's gap
        connection.bounded = False  # the driver limits a whole batch
        self._connection = connection
        try:
            await connection.connect()
        except NoPermissionError as error:
            raise AccessDenied(str(error)) from error
        except ResponseError as error:
            if any(word in str(error) for word in _NO_DATABASE):
                raise ConfigError(_no_database(self._client, error)) from error
            raise
        if self._greet:
            await connection.send_packed_command(b"".join(_pack(command) for command in self._greet))
            self.greeting = [await _reply(connection) for _ in self._greet]
        self.connects += 1
        return connection

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self.greeting = []  # a restarted server may give the connection's id to another client
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):  # the connection was already broken
                await connection.disconnect()

    @staticmethod
    def _fail(batch: Iterable[_Asked], error: Exception) -> None:
        for _, _, future, _, _ in batch:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the exception as retrieved, which a cancelled caller does not do


def _no_database(client: Any, error: Exception) -> str:
    kwargs = client.connection_pool.connection_kwargs
    place = kwargs.get("path") or f"{kwargs.get('host')}:{kwargs.get('port')}"
    return (
        f"the URL names database {kwargs.get('db')}, and the server at {place} does not have it ({error}). Write a "
        "number below the server's `databases` (CONFIG GET databases), 0 on a cluster"
    )


def _holds(asked: _Asked) -> bool:
    """Return True if the condition of these commands holds; if not, end their future in :class:`Withheld`."""
    _, _, future, _, only_if = asked
    if only_if is None or only_if():
        return True
    if not future.done():
        future.set_exception(Withheld("the condition of these commands is no longer true"))
        future.exception()
    return False


def _raw(word: bytes | str | int | float) -> bytes | int | float:
    """Return the bytes of a name: this project decodes names that are not UTF-8 with ``surrogateescape``."""
    if not isinstance(word, str):
        return word
    try:
        return word.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{word[:100]!r} cannot be sent: it holds half of a surrogate pair") from None


def _pack(command: Command) -> bytes:
    try:
        packed: bytes = pack_command(tuple(command))  # type: ignore[arg-type] # its stub means a tuple of one
    except UnicodeEncodeError:
        return _pack([_raw(word) for word in command])
    except (TypeError, ValueError) as error:
        strange = [word for word in command if not isinstance(word, bytes | str | int | float)]
        what = f"; {strange[0]!r} is a {type(strange[0]).__name__}" if strange else f": {error}"
        raise UsageError(f"{command[0]!r}: the words of a command are text, bytes and numbers{what}") from None
    return packed


async def _replies(connection: Any, count: int) -> list[Reply]:
    """Return this many replies: redis-py reads the first, its parser gives those that have arrived with it."""
    found: list[Reply] = []
    while len(found) < count:
        found.append(await _reply(connection))
        _drain(connection, found, count)
    return found


def _drain(connection: Any, found: list[Reply], count: int) -> None:
    """Take replies that have arrived from the parser: a redis-py coroutine for each would cost more than reading it."""
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    if not isinstance(reader, Reader) or _NOTHING is None:
        return
    gets = reader.gets
    while len(found) < count and (reply := gets(False)) is not _NOTHING:
        first = reply[0] if isinstance(reply, list) and reply else reply
        if isinstance(first, RedisConnectionError):  # LOADING and similar errors, which redis-py raises
            raise first
        found.append(reply)


async def _reply(connection: Any) -> Reply:
    try:
        return await connection.read_response(disable_decoding=True)
    except RedisConnectionError:
        raise
    except ResponseError as refused:
        return refused
