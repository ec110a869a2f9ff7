"""From a URL to a redis-py client: ``redis://``, ``rediss://`` ``unix://``, with timeouts that suit blocking."""

from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.errors import ConfigError

SCHEMES = ("redis://", "rediss://", "unix://")


def check_url(url: str) -> str:
    """The URL itself, if its scheme is one we can reach.

    Raises:
        ConfigError: the scheme is not known; the text lists those that are.
    """
    if not url.startswith(SCHEMES):
        raise ConfigError(
            f"cannot reach {url!r}: a server URL starts with one of {', '.join(SCHEMES)}, for example redis://127.0.0.1:6379/0"
        )
    return url


def sync_client(url: str, **options: Any) -> "redis.Redis":
    """A blocking client for any server that speaks Redis Streams.

    redis-py 8 gives up on a read after five seconds and silently sends it again; a command that blocks on purpose would
    be run twice. So no socket timeout is set unless ``options`` has one, and nothing is sent again by itself.
    """
    options.setdefault("socket_timeout", None)
    options.setdefault("retry", Retry(NoBackoff(), 0))
    client: redis.Redis = redis.Redis.from_url(check_url(url), **options)
    return client


def async_client(url: str, **options: Any) -> "redis.asyncio.Redis":
    """The asyncio client, with the same choices as :func:`sync_client`."""
    from redis.asyncio.retry import Retry as AsyncRetry  # noqa: PLC0415 - only asyncio users pay for it

    options.setdefault("socket_timeout", None)
    options.setdefault("retry", AsyncRetry(NoBackoff(), 0))
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(check_url(url), **options)
    return client
