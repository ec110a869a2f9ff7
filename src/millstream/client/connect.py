"""From a URL to a redis-py client: ``connect`` and ``connect_async`` for users, two factories for the other parts.

``redis://``, ``rediss://`` and ``unix://`` name a server. ``redis+sentinel://`` queries Sentinels for the master, and
``redis+cluster://`` is a cluster (``millstream.client.discovery`` has both). ``memory://`` and ``file:///dir`` give the
same clients over an engine in this process (``millstream.embedded``, loaded only then). If another process serves the
directory, ``file:///dir`` connects to that process.
"""

import codecs
import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.client import bounded
from millstream.client.discovery.cluster import async_cluster, sync_cluster
from millstream.client.discovery.sentinel import async_master, sync_master
from millstream.client.discovery.waiting_pool import WaitingPool
from millstream.client.url import CLUSTERS, EMBEDDED, PLAIN, SENTINELS, check_url, kind_of
from millstream.errors import ConfigError, LogLockedError

if TYPE_CHECKING:
    from millstream.embedded.place import Place


def connect(url: str = "memory://", **options: Any) -> "redis.Redis":
    """A redis-py client.

    For example::

        with millstream.connect("file:///var/lib/orders", decode_responses=True) as client:
            client.xadd("orders", {"item": "tea"})

    Args:
        url: ``memory://`` for a store of this client's own, ``memory://NAME`` for one that all of this process share.
            ``file:///DIR`` for a data directory (``?fsync=everysec`` or ``no`` to wait less for the disk,
            ``?maxmemory=512mb&tier=yes`` for streams larger than memory). ``redis://``,
            ``rediss://`` or ``unix://`` for a server. ``redis+sentinel://host:port,host:port/SERVICE`` and
            ``redis+cluster://host:port,host:port`` for several.
        options: options of ``redis.Redis.from_url``. A server that does not answer for 10 s raises ``TimeoutError``. A
            command that blocks may take its own time in addition; one of more than 10 s waits while the server
            answers PING. ``socket_timeout`` replaces that. Nothing is sent twice unless ``retry`` is given. For
            ``memory://`` and ``file://`` also those of :func:`millstream.open_store`, such as ``maxmemory``.

    Raises:
        ConfigError: the URL is invalid.
        StorageError: the data directory is locked by a process that does not serve it, damaged or not usable.
    """
    if url.startswith(CLUSTERS):
        options.setdefault("socket_connect_timeout", bounded.LIMIT)
        cluster: Any = sync_cluster(url, **options)
        return cluster  # type: ignore[no-any-return] # for redis-py's types not a Redis, but with the same methods
    return sync_client(url, **options)


def connect_async(url: str = "memory://", **options: Any) -> "redis.asyncio.Redis":
    """The asyncio client; see :func:`connect`. A data directory is recovered before this returns.

    A server's client has at most 100 connections. A further command waits for a free one, and after 20 s it raises
    redis-py's ``MaxConnectionsError``. ``max_connections`` and ``timeout`` change that, also in a ``redis://`` URL.

    Args:
        url: as for :func:`connect`.
        options: options of ``redis.asyncio.Redis.from_url``.
    """
    return async_client(url, **options)


def sync_client(url: str, **options: Any) -> "redis.Redis":
    """Return a blocking client for any server that speaks Redis Streams, or for a store of this process.

    redis-py 8 gives up on a read after five seconds and silently sends the command again. A command that blocks on
    purpose would run twice. So ``bounded`` limits the reads unless ``options`` has ``socket_timeout``, and nothing is
    sent again.
    """
    options.setdefault("socket_timeout", None)
    options.setdefault("retry", Retry(NoBackoff(), 0))
    if check_url(url).startswith(EMBEDDED):
        from millstream.embedded.place import parse_place  # noqa: PLC0415 - only its users load the engine
        from millstream.embedded.sync import sync_store  # noqa: PLC0415 - as above

        place = parse_place(url, options)
        try:
            return sync_store(place, **options)
        except LogLockedError as locked:
            url, options = _attach(place, locked, options)
    options.setdefault("socket_connect_timeout", bounded.LIMIT)
    if url.startswith(SENTINELS):
        return sync_master(url, **options)
    if url.startswith(CLUSTERS):
        raise ConfigError(f"{kind_of(url)} is the URL of a cluster, and this needs one server. Give a redis:// URL.")
    options.setdefault("connection_class", _kind(url, bounded.Plain, bounded.Encrypted, bounded.Unix))
    with _options_of(url):
        client: redis.Redis = redis.Redis.from_url(url, **options)
        _try_options(url, client.connection_pool)
    return client


def async_client(url: str, **options: Any) -> "redis.asyncio.Redis":
    """Return an asyncio client, with the same choices as :func:`sync_client`."""
    options.setdefault("socket_timeout", None)
    options.setdefault("retry", AsyncRetry(NoBackoff(), 0))
    if check_url(url).startswith(EMBEDDED):
        from millstream.embedded.aio import async_pool  # noqa: PLC0415 - only its users load the engine
        from millstream.embedded.place import parse_place  # noqa: PLC0415 - as above

        place = parse_place(url, options)
        try:
            return redis.asyncio.Redis.from_pool(async_pool(place, **options))
        except LogLockedError as locked:
            url, options = _attach(place, locked, options)
    options.setdefault("socket_connect_timeout", bounded.LIMIT)
    if url.startswith(SENTINELS):
        return async_master(url, **options)
    if url.startswith(CLUSTERS):
        cluster: Any = async_cluster(url, **options)
        return cluster  # type: ignore[no-any-return] # for redis-py's types not a Redis, but with the same methods
    options.setdefault("connection_class", _kind(url, bounded.AsyncPlain, bounded.AsyncEncrypted, bounded.AsyncUnix))
    with _options_of(url):
        pool = WaitingPool.from_url(url, **options)
        pool.connection_class = options["connection_class"]  # replaces redis-py's class for the scheme
        client = redis.asyncio.Redis.from_pool(pool)
        _try_options(url, client.connection_pool)
    return client


def _kind(url: str, plain: type, tls: type, unix: type) -> type:
    """Return the class of connections for a URL of one server."""
    return plain if url.startswith(PLAIN) else unix if url.startswith("unix://") else tls


@contextlib.contextmanager
def _options_of(url: str) -> Iterator[None]:
    """Turn redis-py's errors about the URL's options into an error that names the URL."""
    try:
        yield
    except (TypeError, ValueError, LookupError, redis.RedisError) as reason:
        raise ConfigError(f"cannot use {kind_of(url)}: {_fault(url, str(reason))}") from None


def _fault(url: str, said: str) -> str:
    """Return the fault with the wrong option's name, unless that may be part of a password with a question mark."""
    if "@" in url.partition("?")[2]:
        return "an @ follows the question mark; in a password write %3F for ? and %40 for @"
    if (unknown := re.search(r"unexpected keyword argument ('[a-z_]{1,40}')", said)) is not None:
        return f"there is no option {unknown[1]} for a connection"
    invalid = re.match(r"Invalid value for '[a-z_]{1,40}'", said)
    return invalid[0] if invalid is not None else "an option after the question mark has an invalid name or value"


#: Options of redis-py's connections that take a Python object, which a URL cannot contain.
_OBJECTS = (
    *("retry", "retry_on_error", "credential_provider", "redis_connect_func", "event_dispatcher", "parser_class"),
    *("connection_class", "maint_notifications_config", "socket_keepalive_options", "command_packer"),
)


def _try_options(url: str, pool: Any) -> None:
    """Make a connection object without connecting: only then does redis-py check the names of the URL's options."""
    asked = parse_qs(urlsplit(url).query)
    for name in asked:
        if name in _OBJECTS:
            raise TypeError(f"unexpected keyword argument {name!r}")
    codecs.lookup(asked.get("encoding", ["utf-8"])[0])
    codecs.lookup_error(asked.get("encoding_errors", ["strict"])[0])
    if asked:
        pool.connection_class(**pool.connection_kwargs)


def _attach(place: "Place", locked: LogLockedError, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the address at which another process serves a directory, and the options to connect to it."""
    if locked.address is None:
        raise locked
    given = [*(["fsync"] if place.fsync else []), *(name for name, _ in place.parameters)]
    if given:
        raise ConfigError(
            f"the options name {given[0]}: process {locked.pid} serves this directory at {locked.address} and controls "
            f"{given[0]}. Leave it out."
        )
    return locked.address, {"db": place.db, **options}
