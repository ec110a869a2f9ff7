"""A cluster as its URL names it, and redis-py's clients of it, which follow slots that move by themselves.

``redis+cluster://[user:password@]host:port,host:port``, some of the nodes: the first that answers names the others. For
the slot of a key see ``millstream.client.slots``; for connections of our own ``millstream.client.cluster_line``.
"""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.client import bounded
from millstream.client.discovery.waiting_pool import CONNECTIONS, Turns
from millstream.client.slots import Address
from millstream.client.url import CLUSTERS, split
from millstream.errors import ConfigError

_PORT = 6379


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as its URL names it."""

    nodes: tuple[Address, ...]  # Addresses of some of the nodes, asked in this order
    username: str | None  # For all nodes; None if the URL has none
    password: str | None = field(repr=False)  # Likewise

    def url(self, address: Address) -> str:
        """The URL of one node."""
        host, port = address
        account = ""
        if self.password is not None:
            account = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return f"redis://{account}{f'[{host}]' if ':' in host else host}:{port}/0"


def parse_cluster(url: str) -> Cluster:
    """Read a URL."""
    parts = split(url)
    account, _, hosts = parts.netloc.rpartition("@")
    username, _, password = account.partition(":")
    if not hosts or parts.path.strip("/") not in ("", "0") or parts.query:
        raise ConfigError(
            f"cannot use the {CLUSTERS} URL: a cluster is given as {CLUSTERS}host:port,host:port, some of its nodes, "
            "with database 0 and no options, and TLS is not supported here; in a password, / ? # @ are percent-encoded"
        )
    return Cluster(tuple(map(_address, hosts.split(","))), unquote(username) or None, unquote(password) or None)


def sync_cluster(url: str, **options: Any) -> "redis.RedisCluster":
    """Redis-py's blocking client of the cluster; it follows slots that move by itself."""
    cluster = parse_cluster(url)
    nodes = [redis.cluster.ClusterNode(host, port) for host, port in cluster.nodes]  # type: ignore[no-untyped-call] # redis-py's gap
    options = {"socket_timeout": None, "username": cluster.username, "password": cluster.password, **options}
    options.setdefault("retry", Retry(NoBackoff(), 0))
    options.setdefault("connection_class", bounded.Plain)
    return redis.RedisCluster(startup_nodes=nodes, url=cluster.url(cluster.nodes[0]), **options)


class _AsyncCluster(redis.asyncio.RedisCluster):
    def __init__(self, *, max_connections: int = CONNECTIONS, **options: Any) -> None:
        super().__init__(max_connections=max_connections, **options)
        self._turns = Turns(max_connections)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self._turns.turn():  # redis-py refuses one command more than a node has connections
            return await super().execute_command(*args, **options)

    async def aclose(self) -> None:
        await super().aclose()
        # Redis-py takes a client with a failed last command for one without connections
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")


def async_cluster(url: str, **options: Any) -> "redis.asyncio.RedisCluster":
    """The asyncio client."""
    cluster = parse_cluster(url)
    nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in cluster.nodes]
    options = {"socket_timeout": None, "username": cluster.username, "password": cluster.password, **options}
    options.setdefault("retry", AsyncRetry(NoBackoff(), 0))
    client = _AsyncCluster(startup_nodes=nodes, **options)
    client.nodes_manager.connection_kwargs["connection_class"] = bounded.AsyncPlain
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = bounded.AsyncPlain
    return client


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":") if not text.endswith("]") and ":" in text else (text, "", "")
    if not host or (port and not port.isdigit()):
        raise ConfigError(f"cannot use the {CLUSTERS} URL: a node is given as host:port")
    return host.strip("[]"), int(port or _PORT)
