"""A Redis Cluster on this machine: three persistent primaries, an optional replica, and slots that move."""

from pathlib import Path
from typing import Any

import redis

from millstream.client.slots import slot_of
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.waiting import eventually

SLOTS = 16_384


class Three:
    """A cluster of three primaries.

    Args:
        folder: Folder for their data and output.
        spare: Key whose node gets a replica.
        path: Path of another program than redis-server.
    """

    def __init__(self, folder: Path, *, spare: str | None = None, path: str = "") -> None:
        self._path = path
        self.nodes = [self._node(folder / str(number)) for number in range(3)]
        self.replica = self._node(folder / "replica") if spare is not None else None
        self._spare = spare
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def _node(self, folder: Path) -> ServerProcess:
        words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(free_port())]
        return redis_server(folder, *words, "--appendonly", "yes", "--appendfsync", "always", path=self._path)

    @property
    def all(self) -> list[ServerProcess]:
        """Return every server."""
        return [*self.nodes, *([self.replica] if self.replica else [])]

    def __enter__(self) -> "Three":
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.all:
            if node.process is not None:
                node.kill()

    def start(self) -> None:
        """Start all servers, give each primary a third of the slots, and wait until they agree."""
        for node in self.all:
            node.start()
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.all[1:]:
            with self.nodes[0].client() as client:
                bus = node.command[node.command.index("--cluster-port") + 1]
                client.execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
        self.settle()
        if self.replica is not None and self._spare is not None:
            with self.owner(self._spare).client() as there, self.replica.client() as here:
                name = there.execute_command("CLUSTER MYID")
                eventually(lambda: _told(here, "CLUSTER REPLICATE", name), what="the replica knows its primary")
                eventually(lambda: _link(here) == "up", what="the replica is in step")
            slot = slot_of(self._spare)
            eventually(lambda: all(_copies(node, slot) == 2 for node in self.nodes), what="all know the replica")

    def settle(self) -> None:
        """Wait until all nodes are connected and agree."""
        eventually(lambda: all(map(self._ok, self.all)), what="the nodes agree")

    @staticmethod
    def _ok(node: ServerProcess) -> bool:
        with node.client(decode_responses=True) as client:
            told: Any = _told(client, "CLUSTER INFO")
        return bool(told and told["cluster_state"] == "ok" and told["cluster_size"] == "3")

    def flush(self) -> None:
        """Empty all primaries."""
        for node in self.nodes:
            with node.client() as one:
                one.flushall()

    def owner(self, key: str) -> ServerProcess:
        """Return the node that holds a key."""
        alive = next(node for node in self.all if node.process is not None)
        with alive.client(decode_responses=True) as client:
            for first, last, address, *_ in _slots(client):
                if first <= slot_of(key) <= last:
                    return next(node for node in self.all if node.port == address[1])
        raise AssertionError(key)

    def move(self, key: str) -> None:
        """Move the slot of a key with its content to the next node, as redis-cli does."""
        self.end_move(self.begin_move(key))

    def begin_move(self, key: str) -> "tuple[str, ServerProcess, ServerProcess]":
        """Move all keys of a slot. Until :meth:`end_move`, its old node owns the slot and replies ASK."""
        slot, source = slot_of(key), self.owner(key)
        target = self.nodes[(self.nodes.index(source) + 1) % 3]
        with source.client() as here, target.client() as there:
            ours, theirs = (one.execute_command("CLUSTER MYID").decode() for one in (here, there))
            there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ours)
            here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", theirs)
        self._carry(slot, source, target)
        return key, source, target

    def end_move(self, moving: "tuple[str, ServerProcess, ServerProcess]") -> None:
        """Assign the slot to the node that has its keys."""
        key, source, target = moving
        slot = slot_of(key)
        self._carry(slot, source, target)
        with target.client() as there:
            theirs = there.execute_command("CLUSTER MYID").decode()
        for node in (target, source, *self.nodes):
            with node.client() as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", theirs)

    @staticmethod
    def _carry(slot: int, source: ServerProcess, target: ServerProcess) -> None:
        with source.client() as here:
            while found := here.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *found)


def _told(client: Any, *words: Any) -> Any:
    try:
        return client.execute_command(*words)
    except redis.RedisError:
        return None


def _link(replica: redis.Redis) -> str:
    told: Any = replica.info("replication")
    return str(told.get("master_link_status", ""))


def _copies(node: ServerProcess, slot: int) -> int:
    """Return the number of nodes that have a slot, as one node reports."""
    with node.client(decode_responses=True) as client:
        return next(len(row) - 2 for row in _slots(client) if row[0] <= slot <= row[1])


def _slots(client: redis.Redis) -> Any:
    connection: Any = client.connection_pool.get_connection()
    try:
        connection.send_command("CLUSTER", "SLOTS")
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)
