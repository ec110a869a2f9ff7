"""Clients that query Sentinels for the master, at every new connection.

``redis+sentinel://[user:password@]host:port,host:port/SERVICE[/DB]``; user and password are the server's. The
Sentinels' own follow the question mark: ``?sentinel_username=u&sentinel_password=p``. A connection that breaks is
made again to the present master. Without one, connecting fails as for a server that is down.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from millstream.client import bounded
from millstream.client.discovery.waiting_pool import WaitingPool
from millstream.client.url import SENTINELS, split
from millstream.errors import ConfigError, Disconnected

_PORT = 26379
#: Seconds for one Sentinel to reply; a dead one must not delay the query of the next.
_PATIENCE = 1.0
#: Sentinel that replied last, by its service's addresses: a new client queries it first.
_answered: dict[frozenset[tuple[str, int]], tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Service:
    """A service of Sentinel, from its URL."""

    sentinels: tuple[tuple[str, int], ...]  # Addresses, in query order
    name: str  # Service name (the master's name in the Sentinels' configuration)
    options: dict[str, Any] = field(repr=False)  # Options of connections to the master
    sentinel_options: dict[str, Any] = field(repr=False)  # Options of connections to the Sentinels

    def in_order(self) -> list[tuple[str, int]]:
        """Return the addresses of the Sentinels, with the one that answered last first."""
        last = _answered.get(frozenset(self.sentinels))
        return sorted(self.sentinels, key=lambda place: place != last)


def parse_service(url: str) -> Service:
    """Parse a Sentinel URL."""
    parts = split(url)
    account, _, hosts = parts.netloc.rpartition("@")
    name, _, db = parts.path.strip("/").partition("/")
    asked = dict(parse_qsl(parts.query))
    words = zip(("username", "password"), map(unquote, account.split(":", 1)), strict=False)
    options: dict[str, Any] = {key: value for key, value in words if value}
    secrets = {key: asked.pop(f"sentinel_{key}") for key in ("username", "password") if f"sentinel_{key}" in asked}
    if not hosts or not name or "@" in parts.path or asked or (db and not db.isdigit()):
        raise ConfigError(
            f"cannot use the {SENTINELS} URL: a service is given as {SENTINELS}host:port,host:port/SERVICE or "
            ".../SERVICE/DB, with no options but sentinel_username and sentinel_password; in a password, / ? # @ are "
            "percent-encoded"
        )
    options["db"] = int(db or 0)
    return Service(tuple(map(_address, hosts.split(","))), unquote(name), options, secrets)


def sync_master(url: str, **options: Any) -> "redis.Redis":
    """Return a blocking client of the service's master."""
    service = parse_service(url)
    watch = _BlockingSentinels(service.in_order(), sentinel_kwargs=_to_sentinels(service))  # type: ignore[no-untyped-call] # redis-py's gap
    client: BlockingMasterClient = watch.master_for(
        service.name,
        redis_class=BlockingMasterClient,
        **{"connection_class": bounded.Managed, **service.options, **options},
    )  # type: ignore[no-untyped-call] # as above
    client.watchers = watch
    return client


def master_address(url: str) -> tuple[str, int]:
    """Return host and port of the service's present master; blocks."""
    service = parse_service(url)
    watch = _BlockingSentinels(service.in_order(), sentinel_kwargs=_to_sentinels(service))  # type: ignore[no-untyped-call] # redis-py's gap
    try:
        return watch.discover_master(service.name)
    except redis.RedisError as error:
        raise Disconnected(str(error)) from None


def replicas(url: str) -> list[str]:
    """Return the URLs of the service's replicas that the Sentinels report as up; blocks."""
    service = parse_service(url)
    watch = Sentinel(service.in_order(), sentinel_kwargs=_to_sentinels(service))  # type: ignore[no-untyped-call] # redis-py's gap
    account = ""
    if "password" in service.options:
        account = ":".join(quote(service.options.get(word, ""), safe="") for word in ("username", "password")) + "@"
    found = watch.discover_slaves(service.name)  # type: ignore[no-untyped-call] # as above
    return [
        f"redis://{account}{f'[{host}]' if ':' in host else host}:{port}/{service.options['db']}"
        for host, port in found
    ]


class _Sentinels(AsyncSentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        first = self.sentinels[0]
        try:
            found: tuple[str, int] = await super().discover_master(service_name)
        except asyncio.CancelledError:
            # A caller with a short timeout gave up on this Sentinel: begin the next attempt with another one
            if self.sentinels[0] is first:
                self.sentinels.append(self.sentinels.pop(0))
            raise
        except AsyncMasterNotFoundError:  # redis-py's text contains the repr of Python objects
            raise AsyncMasterNotFoundError(_none(service_name, len(self.sentinels))) from None
        _remember(self)
        return found


class _BlockingSentinels(Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call] # as above
        except MasterNotFoundError:  # as above
            raise MasterNotFoundError(self._problem(service_name)) from None
        _remember(self)
        return found

    def _problem(self, service_name: str) -> str:
        """Return an error text with the services of the first Sentinel that answers, or with the errors of all."""
        errors = []
        for one in self.sentinels:
            try:
                return _none(service_name, len(self.sentinels), sorted(map(str, one.sentinel_masters())))
            except (redis.RedisError, OSError) as error:
                errors.append(str(error).rstrip("."))
        return f"no Sentinel of {service_name!r} answers: {'; '.join(errors)}"


def _none(name: str, count: int, known: Sequence[str] = ()) -> str:
    others = f"; they know {', '.join(map(repr, known))}" if known else ""
    return f"none of {count} Sentinels knows a master of {name!r} that is up{others}"


class _WaitingPool(SentinelConnectionPool, WaitingPool):
    """Connections to the master; a command waits while all are in use."""


class BlockingMasterClient(redis.Redis):
    """A client of the master that closes its connections to the Sentinels with its own."""

    watchers: "Sentinel | None" = None

    def close(self) -> None:
        """Close the client and its connections to the Sentinels."""
        super().close()
        if self.watchers is not None:
            for one in self.watchers.sentinels:
                one.close()


class MasterClient(redis.asyncio.Redis):
    """An asyncio client of the master that closes its connections to the Sentinels with its own."""

    watchers: "AsyncSentinel | None" = None

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the client and its connections to the Sentinels."""
        await super().aclose(close_connection_pool)
        if self.watchers is not None:
            for one in self.watchers.sentinels:
                await one.aclose()


def async_master(url: str, **options: Any) -> "redis.asyncio.Redis":
    """Return an asyncio client of the service's master."""
    service = parse_service(url)
    watch = _Sentinels(service.in_order(), sentinel_kwargs=_to_sentinels(service, AsyncRetry))  # type: ignore[no-untyped-call] # as above
    client: MasterClient = watch.master_for(
        service.name,
        redis_class=MasterClient,
        connection_pool_class=_WaitingPool,
        **{"connection_class": bounded.AsyncManaged, **service.options, **options},
    )
    client.watchers = watch
    return client


def _to_sentinels(service: Service, kind: type = Retry) -> dict[str, Any]:
    limits = {"socket_timeout": _PATIENCE, "socket_connect_timeout": _PATIENCE}
    # redis-py would try an unresponsive Sentinel for 14 s before the next, so one frozen host would block every query
    return {**service.sentinel_options, **limits, "retry": kind(NoBackoff(), 0)}


def _remember(watch: Any) -> None:
    """Note the Sentinel that answered: redis-py moves it to the front, but only in the list of this client."""
    places = [one.connection_pool.connection_kwargs for one in watch.sentinels]
    found = [(place["host"], place["port"]) for place in places]
    _answered[frozenset(found)] = found[0]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    if port and not port.isdigit():
        raise ConfigError(f"cannot use the {SENTINELS} URL: a Sentinel is given as host:port")
    return host.strip("[]"), int(port or _PORT)
