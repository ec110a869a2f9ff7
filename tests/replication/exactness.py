"""The contents of two servers of ours compared to the last byte: a leader in this process and its followers."""

from typing import Any

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.dump import dump
from millstream.engine.streams.stream import Stream
from millstream.node.node import Node
from millstream.node.obeying import Obedience
from millstream.replication.followers import Follower
from millstream.replication.received import ReceivedStream
from support.inprocess import World

Held = dict[tuple[int, bytes], Any]


class Told:
    """Shell without sockets, which collects the bytes for replicas."""

    def begin(self, feed: Any) -> None:
        self.feed = feed

    def join(self, follower: Follower) -> None: ...

    def leave(self, follower: Follower) -> None: ...

    def follow(self, host: str, port: int) -> None: ...

    def stop(self) -> None: ...


def fed(world: World) -> Told:
    """Attach a replica to the world's node."""
    told = world.node.primary.shell = Told()
    world.client().raw("PSYNC", "?", "-1")
    return told


class Replica:
    """A node of ours that runs a primary's bytes.

    Args:
        told: of the primary.
        clock: its own.
    """

    def __init__(self, told: Told, clock: ManualClock) -> None:
        self.clock, self._told = clock, told
        self.node = Node(Config({}), None)
        self.node.primary.shell = self.node.following.shell = Told()
        self.node.following.follow("primary", 6379, clock.now())
        self.obedience = Obedience(self.node, self.node.following)
        self.obedience.begin()
        self.received = ReceivedStream()
        self._offset = told.feed.backlog.first

    def catch_up(self) -> bytes:
        """Run the bytes since the last call, and return them."""
        backlog, parts = self._told.feed.backlog, []
        backlog.sendable = backlog.end
        while data := backlog.read(self._offset, 1 << 20):
            parts.append(data)
            self._offset += len(data)
        data = b"".join(parts)
        self.hear(data)
        return data

    def hear(self, data: bytes) -> None:
        """Run bytes of a primary."""
        self.received.feed(data)
        while self.obedience.run(self.received, self.clock.now()):
            pass


def held(space: Keyspace, *, times: bool) -> Held:
    """Return all keys as dump payloads, with their times to live.

    Args:
        space: the data.
        times: include the consumers' seen and active times.
    """
    return {
        (db.index, key): (_bytes(value, times=times), db.expires.get(key))
        for db in space.databases
        for key, value in db.keys.items()
    }


def _bytes(value: Any, *, times: bool) -> bytes:
    if isinstance(value, Stream) and not times:
        value = value.copy()
        for group in value.groups.values():
            for consumer in group.consumers.values():
                consumer.seen, consumer.active = 0, -1
    return dump(value)
