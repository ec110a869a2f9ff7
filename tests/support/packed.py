"""A node on a data directory with real packs, on the real disk or a simulated one, without a server or spilling.

The nodes of a stream are small. :meth:`PackedWorld.chill` writes all sealed nodes of one to the pack being filled, and
makes them cold by a record. So files, records and memory are those of a server that has spilled.
"""

import contextlib
import os
from pathlib import Path

from millstream.clock import ManualClock, Now
from millstream.commands.context.config import Config
from millstream.engine.cold import extent_of
from millstream.engine.streams import extents
from millstream.engine.streams.stream import Stream
from millstream.node.log.packs import KeyspacePacks
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.persistence.disk import Disk, RealDisk
from millstream.persistence.log import Log
from millstream.persistence.packs import PackFiles, PackWriter
from support.inprocess import Client, World

SMALL = {"stream-node-max-entries": "3"}
FIELDS = b"v" * 40


class PackedWorld(World):
    """A node on a data directory with packs.

    Args:
        home: The data directory, new or existing.
        disk: The disk; the real one if omitted.
        config: Parameters that differ from the defaults, by name.
    """

    log: Log  # type: ignore[assignment] # a real one in place of a list

    def __init__(self, home: Path, disk: Disk | None = None, config: dict[str, str] | None = None) -> None:
        self.clock = ManualClock()
        self.home, self.disk, self.config = home, disk or RealDisk(), config or SMALL
        self.log, recovery = Log.open(home, self.disk)
        self.node = Node(Config(self.config), self.log)
        self._files = self.node.keyspace.reads.source = PackFiles(self.log.open_pack, lambda: self.log.packs)
        self.node.recover(recovery.payloads())
        self.pack: PackWriter | None = None  # pack being filled
        self._clients: dict[int, Client] = {}

    def fill(self, key: str = "s", count: int = 20, first: int = 1) -> Client:
        """Add entries ``first``-1 and so on to a stream; return the client."""
        client = self.client()
        for number in range(first, first + count):
            client.call("XADD", key, f"{number}-1", "f", f"v{number}")
        return client

    def stream(self, key: bytes = b"s", db: int = 0) -> Stream:
        """Return the stream at a key."""
        found = self.node.keyspace.databases[db].keys[key]
        assert isinstance(found, Stream)
        return found

    def chill(self, key: bytes = b"s", db: int = 0, each: int = 2) -> None:
        """Make all sealed nodes of a stream cold, ``each`` of them in one extent."""
        self.pack = self.pack or self.log.add_pack()
        spill(self.node, self.clock.now(), self.pack, db, key, each)
        self.sync()

    def rewriter(self) -> Rewriter:
        """Return a rewriter of the log, whose child is a real process."""
        return Rewriter(self.log, self.node.config, packs=KeyspacePacks(self.node.keyspace, lambda job: job()))

    def sync(self) -> None:
        """Make all records durable."""
        self.log.write()
        self.log.sync()

    def seal(self) -> None:
        """End the pack being filled."""
        if self.pack is not None:
            self.log.end_pack(self.pack)
            self.pack = None

    def close(self) -> None:
        """End the pack being filled, and close the log."""
        self.seal()
        self._files.close()
        self.log.close()


def spill(node: Node, now: Now, pack: PackWriter, db: int, key: bytes, each: int) -> None:
    """Write the sealed nodes of a stream to a pack, ``each`` of them in one extent, and make them cold by a record."""
    stream, number = node.keyspace.databases[db].keys[key], pack.entry.number
    assert isinstance(stream, Stream)
    hot = list(stream.entries.hot_nodes())[:-1]
    parts = [hot[at : at + each] for at in range(0, len(hot), each)]
    if not parts:
        return
    places = pack.add([extents.encode(part) for part in parts])
    rows = b"".join(extent_of(part, number, *place).row() for part, place in zip(parts, places, strict=True))
    ctx = node.context(node.sessions.open(now), now)
    ctx.commit(("tcold", db, key, number, rows, []), soft=True)
    node.close(ctx)


def packed(home: Path, disk: Disk | None = None, count: int = 20) -> None:
    """Make a data directory with a stream ``s`` of this many entries, 1-1 and so on, most of them in a sealed pack."""
    world = PackedWorld(home, disk)
    world.fill(count=count)
    world.chill()
    world.close()


def two_packs(home: Path) -> list[Path]:
    """Make a data directory with streams ``s`` and ``t``; return the sealed pack of each."""
    world = PackedWorld(home)
    for key in ("s", "t"):
        world.fill(key)
        world.chill(key.encode())
        world.seal()
    world.close()
    return sorted(home.glob("*.pack"))


def make_packed(home: Path, keys: dict[str, int], *, each: int = 4, sealed: bool = True) -> None:
    """Make a data directory with streams of so many entries, most of them in one pack, ``each`` nodes in an extent."""
    world = PackedWorld(home)
    client = world.client()
    for key, count in keys.items():
        for number in range(1, count + 1):
            client.call("XADD", key, f"{number}-1", "f", FIELDS + b"%d" % number)
    for key in keys:
        world.chill(key.encode(), each=each)
    if not sealed and world.pack is not None:
        world.pack.close()
        world.pack = None
    world.close()


def forget_packs(home: Path) -> None:
    """Drop the packs of a directory from the page cache."""
    for path in home.glob("pack-*.pack"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def open_packs(home: Path) -> list[str]:
    """Return the packs of this folder that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was the directory's own
            found.append(str(each.readlink()))
    return [each for each in found if each.startswith(f"{home}/") and ".pack" in each]
