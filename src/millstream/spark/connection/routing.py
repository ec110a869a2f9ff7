"""The server of a key: the one module of Spark's part that interprets a URL.

A plain URL names one server. Sentinels are queried for the primary at every new connection (by redis-py). A cluster's
nodes report which node has which slot. The process keeps that map, corrects it by every redirection, and reads it again
when it cannot reach a node. Callers get from this module the server to connect to, and the meaning of a redirection.
The rules of slots and of a cluster's URL are in ``client``.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import urlsplit, urlunsplit

from redis.exceptions import RedisError

from millstream.client.cluster_line import masters, part_of
from millstream.client.discovery import sentinel
from millstream.client.routes import Routes, no_node
from millstream.client.slots import Address, Slots, key_of
from millstream.client.url import CLUSTERS, SENTINELS
from millstream.errors import ConfigError, NotLetInError, UsageError
from millstream.spark.connection.connection import BlockingConnection, Command, ErrorReply, Reply

MOVE_PAUSE = 0.05
"""Seconds until a command is sent again to the reported server, while a slot moves."""

_SLOTS_SECONDS = 2.0
"""Seconds for one node to report the slots; a dead node must not block the next one."""
_ROLE_SECONDS = 10


class Redirected(ConnectionError):  # noqa: N818 - a state of the cluster, not a fault of the caller
    """The server did not run a command, because another one has its key now or soon: look up the server again."""


class _ClusterMap:
    """The known nodes of each slot of one cluster, shared by this process's threads."""

    def __init__(self, url: str) -> None:
        self.routes = Routes(url)
        self.cluster = self.routes.cluster
        self._lock = threading.Lock()

    def slots(self) -> Slots:
        with self._lock:
            if not self.routes.known:
                self._ask()
            return self.routes.slots

    def _ask(self) -> None:
        """Read the slots from the first node that answers."""
        reason: Exception | None = None
        for address in self.routes.candidates:
            try:
                rows = _ask_once(self.cluster.url(address), ("CLUSTER", "SLOTS"), _SLOTS_SECONDS)
            except (RedisError, OSError, UsageError) as error:
                reason = error
            else:
                self.routes.learn(rows, address)
                return
        if isinstance(reason, NotLetInError):
            raise reason
        raise ConnectionError(f"no node of the cluster answers: {reason}")

    def primary(self, key: str | bytes) -> Address:
        self.slots()
        address = self.routes.of(key)
        if address is None:
            raise ConnectionError(no_node(key))
        return address


_maps: dict[tuple[int, str], _ClusterMap] = {}
"""Maps by process id (workers are forked) and URL."""


def _map(url: str) -> _ClusterMap:
    return _maps.setdefault((os.getpid(), url), _ClusterMap(url))


def _ask_once(server: str, command: Command, patience: float) -> Reply:
    """Return the reply of one server, over a separate connection."""
    with closing(BlockingConnection(server, patience=patience)) as connection:
        (reply,) = connection.ask([command])
    if isinstance(reply, ErrorReply):
        raise UsageError(f"the server refused {command[0]!s}: {reply}")
    return reply


def server_of(url: str, key: str | bytes) -> str:
    """Return the URL to connect to for a key: the URL of the cluster's node that has it, or the given URL."""
    if not url.startswith(CLUSTERS):
        return url
    found = _map(url)
    return found.cluster.url(found.primary(key))


def by_server(url: str, commands: Sequence[Command], last: str = "") -> dict[str, list[int]]:
    """Return the indexes of the commands that go to each server, by its URL.

    On a cluster a command without a key (TIME, MULTI) goes with the next one that has a key, or else with the previous
    one.
    """
    if not url.startswith(CLUSTERS):
        return {url: list(range(len(commands)))}
    keys = [key_of(command) for command in commands]
    where = [None if key is None else server_of(url, key) for key in keys]
    following: str | None = None
    for at in reversed(range(len(where))):
        following = where[at] = where[at] or following
    before = last
    found: dict[str, list[int]] = {}
    for at, place in enumerate(where):
        before = place or before or primaries(url)[0]
        found.setdefault(before, []).append(at)
    return found


def primaries(url: str) -> list[str]:
    """Return the URLs of all servers that have keys."""
    if not url.startswith(CLUSTERS):
        return [url]
    found = _map(url)
    found.routes.forget()  # a missing node would cause an unnoticed gap
    return [found.cluster.url(address) for address in found.slots().primaries]


def forget(url: str) -> None:
    """Have the cluster's slots read again before the next connection, because a connection broke."""
    if url.startswith(CLUSTERS):
        _map(url).routes.forget()


# --- replies that redirect -------------------------------------------------------------------------------------------


def redirection(url: str, reply: Reply) -> str | None:
    """Return the redirection in a reply: ``""`` to send the command again, None if it is not a redirection.

    Otherwise return the URL of the node to which to send this one command, after ASKING: its slot is being moved there,
    and the key has arrived.
    """
    if not isinstance(reply, ErrorReply):
        return None
    code, _, rest = str(reply).partition(" ")
    if url.startswith(SENTINELS):
        return "" if code == "READONLY" else None  # the server was the primary when the connection was opened
    if not url.startswith(CLUSTERS):
        return None
    found = _map(url)
    heeded = found.routes.heed(code, rest)
    if heeded is None:
        return None
    return "" if heeded.ask is None else found.cluster.url(heeded.ask)


def refusal(reply: Reply, said: str) -> UsageError:
    """Return the error to raise if a server refused a command.

    A plain URL may turn out to name one node of a cluster.
    """
    code = str(reply).split(" ", 1)[0]
    if code not in ("MOVED", "ASK", "CROSSSLOT"):
        return NotLetInError(said) if code == "NOPERM" else UsageError(said)
    return ConfigError(
        f"option 'url' names one node of a Redis Cluster ({reply}): write {CLUSTERS}host:port,host:port, some of its "
        "nodes"
    )


def require_whole(reply: Reply) -> None:
    """Raise unless the server has all keys, before a scan of them; ``reply`` is the reply to CLUSTER INFO."""
    if (count := masters(reply)) > 1:
        raise ConfigError(f"option 'url': {part_of(count)}. Write {CLUSTERS}host:port,host:port, some of its nodes.")


# --- replicas --------------------------------------------------------------------------------------------------------


def replicas(url: str, key: str | bytes | None = None) -> list[str]:
    """Return the URLs of the replicas of the server that has a key; of all servers for None."""
    if url.startswith(CLUSTERS):
        found = _map(url)
        slots = found.slots()
        if key is not None:
            return [found.cluster.url(address) for address in slots.nodes(key)[1:]]
        return sorted({found.cluster.url(address) for _, _, nodes in slots.ranges for address in nodes[1:]})
    if url.startswith(SENTINELS):
        return sentinel.replicas(url)
    parts = urlsplit(url)
    if parts.scheme == "unix":
        raise ConfigError("option 'readFrom' is 'replica', and option 'url' is a socket of this machine. Name a port.")
    account = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    role = _ask_once(url, ("ROLE",), _ROLE_SECONDS)
    there = role[2] if role and role[0] == b"master" else []
    hosts = [(row[0].decode(), row[1].decode()) for row in there]
    return [
        urlunsplit(parts._replace(netloc=f"{account}{f'[{host}]' if ':' in host else host}:{port}"))
        for host, port in hosts
    ]
