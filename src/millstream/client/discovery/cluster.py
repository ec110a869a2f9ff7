"""A cluster as its URL names it, and redis-py's clients of it, which follow slots that move.

``redis+cluster://[user:password@]host:port,host:port`` lists some of the nodes: the first that answers names the
others. For the slot of a key see ``millstream.client.slots``; for our own connections
``millstream.client.cluster_line``.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.client import bounded
from millstream.client.discovery.waiting_pool import CONNECTIONS, PATIENCE, HeldTurn, Turns
from millstream.client.slots import Address
from millstream.client.url import CLUSTERS, split
from millstream.errors import ConfigError, UsageError

_PORT = 6379


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts of a cluster's URL."""

    nodes: tuple[Address, ...]  # Addresses of some of the nodes, in query order
    username: str | None  # User for all nodes; None if the URL has none
    password: str | None = field(repr=False)  # Password for all nodes; None if the URL has none

    def url(self, address: Address) -> str:
        """Return the URL of one node."""
        host, port = address
        account = ""
        if self.password is not None:
            account = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return f"redis://{account}{f'[{host}]' if ':' in host else host}:{port}/0"


def parse_cluster(url: str) -> Cluster:
    """Parse a cluster's URL."""
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
    """Return redis-py's blocking client of the cluster, which follows slots that move."""
    cluster = parse_cluster(url)
    nodes = [redis.cluster.ClusterNode(host, port) for host, port in cluster.nodes]  # type: ignore[no-untyped-call] # redis-py's gap
    options = {"socket_timeout": None, "username": cluster.username, "password": cluster.password, **options}
    options.setdefault("retry", Retry(NoBackoff(), 0))
    options.setdefault("connection_class", bounded.Plain)
    return redis.RedisCluster(startup_nodes=nodes, url=cluster.url(cluster.nodes[0]), **options)


# Older versions of redis-py have no pub/sub class for a cluster
_ClusterPubSub: Any = getattr(redis.asyncio.cluster, "ClusterPubSub", object)
# If commands of a pipeline are sent again to another node, they share their owner's turn
_has_turn: ContextVar[bool] = ContextVar("_has_turn", default=False)


class _Pipeline(redis.asyncio.cluster.ClusterPipeline):
    """A pipeline that holds a turn while it executes, and from WATCH on."""

    def __init__(self, client: "_AsyncCluster", transaction: bool | None) -> None:
        super().__init__(client, transaction)
        self._turn = HeldTurn(client.turns)

    async def watch(self, *names: Any) -> Any:  # type: ignore[override] # redis-py's types disagree
        await self._turn.take()
        return await super().watch(*names)  # type: ignore[no-untyped-call] # redis-py's gap

    async def execute(self, *args: Any, **options: Any) -> list[Any]:
        await self._turn.take()
        token = _has_turn.set(True)
        try:
            return await super().execute(*args, **options)
        finally:
            _has_turn.reset(token)

    async def reset(self) -> None:  # type: ignore[override] # as above
        try:
            await super().reset()  # type: ignore[no-untyped-call] # as above
        finally:
            self._turn.give()


class _PubSub(_ClusterPubSub):  # type: ignore[misc] # the line that finds it
    """A pub/sub object that holds a turn from its first command until it is closed."""

    def __init__(self, client: "_AsyncCluster", **options: Any) -> None:
        super().__init__(client, **options)
        self._turn = HeldTurn(client.turns)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        await self._turn.take()
        return await super().execute_command(*args, **options)

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            self._turn.give()


class _AsyncCluster(redis.asyncio.RedisCluster):
    """A client that waits for a free connection of a node, where redis-py raises an error."""

    def __init__(self, *, max_connections: int = CONNECTIONS, timeout: float | None = PATIENCE, **options: Any) -> None:
        # Each owner of a turn has at most one connection to a node, and one more for the node's sharded channels
        super().__init__(max_connections=2 * max_connections, **options)
        self.turns = Turns(max_connections, timeout)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if _has_turn.get():
            return await super().execute_command(*args, **options)
        await self.turns.take()
        try:
            return await super().execute_command(*args, **options)
        finally:
            self.turns.give()

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> _Pipeline:
        super().pipeline(transaction, shard_hint)  # raises an error for unsupported options
        return _Pipeline(self, transaction)  # type: ignore[abstract] # as above

    def pubsub(self, node: Any = None, host: str | None = None, port: int | None = None, **options: Any) -> _PubSub:
        if _ClusterPubSub is object:
            raise UsageError(
                f"redis-py {redis.__version__} has no pub/sub for clusters in asyncio. Install a newer one, or listen "
                "with a client of one node."
            )
        return _PubSub(self, node=node, host=host, port=port, **options)

    async def aclose(self) -> None:
        await super().aclose()
        # After a failed command, redis-py treats the client as if it had no connections
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")


def async_cluster(url: str, **options: Any) -> "redis.asyncio.RedisCluster":
    """Return an asyncio client of the cluster."""
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
