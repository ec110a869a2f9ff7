"""``millstream.connect`` and ``millstream.connect_async``: the one way in for users, whatever the URL names."""

from typing import TYPE_CHECKING, Any

from millstream.client.url import CLUSTERS, async_client, sync_client

if TYPE_CHECKING:
    import redis
    import redis.asyncio


def connect(url: str = "memory://", **options: Any) -> "redis.Redis":
    """A redis-py client.

    For example::

        with millstream.connect("file:///var/lib/orders", decode_responses=True) as client:
            client.xadd("orders", {"item": "tea"})

    Args:
        url: ``memory://`` for a store of this client's own, ``memory://NAME`` for one that all of this process share,
            ``file:///DIR`` for a data directory (``?fsync=everysec`` or ``no`` to wait less for the disk); ``redis://``,
            ``rediss://`` or ``unix://`` for a server; ``redis+sentinel://host:port,host:port/SERVICE`` and
            ``redis+cluster://host:port,host:port``.
        options: those of ``redis.Redis.from_url``. No read times out unless ``socket_timeout`` is given, and nothing is
            sent twice unless ``retry`` is.

    Raises:
        ConfigError: the URL cannot be meant.
        StorageError: the data directory is locked by a process that does not serve it, damaged or not usable.
    """
    if url.startswith(CLUSTERS):
        from millstream.client.cluster import sync_cluster  # noqa: PLC0415 - only its users load it

        cluster: Any = sync_cluster(url, **options)
        return cluster  # type: ignore[no-any-return] # not a Redis for redis-py, but of the same methods
    return sync_client(url, **options)


def connect_async(url: str = "memory://", **options: Any) -> "redis.asyncio.Redis":
    """The asyncio client; see :func:`connect`. A data directory is recovered before this returns."""
    return async_client(url, **options)
