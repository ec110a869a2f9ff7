"""A node whose entries go to packs in small pieces, with a log on a disk, and no event loop."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from millstream.engine.cold_ops import named_packs
from millstream.engine.streams.stream import Stream
from millstream.node.log.compaction import compact
from millstream.node.maintenance.joining import join_tier
from millstream.node.node import Node
from millstream.node.tiering import gathering, policy
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.disk import Disk
from millstream.persistence.log import Log
from support.inprocess import World
from support.simdisk import SimDisk

HOME = Path("/data")
CONFIG = {"tier": "yes", "tier-hot": "0", "stream-node-max-entries": "3"}


class AtOnce(threading.Thread):
    """A thread that has ended when ``start`` returns."""

    def start(self) -> None:
        """Run here."""
        self.run()

    def join(self, timeout: float | None = None) -> None:
        """Return, since there is nothing to wait for."""


class Later(threading.Thread):
    """A thread that runs when a test calls :meth:`run_all`."""

    waiting: ClassVar[list["Later"]] = []

    def start(self) -> None:
        """Wait for :meth:`run_all`."""
        self.waiting.append(self)

    @classmethod
    def run_all(cls) -> None:
        """Run what has begun."""
        while cls.waiting:
            cls.waiting.pop(0).run()

    def join(self, timeout: float | None = None) -> None:
        """Return, since there is nothing to wait for."""


class SpillWorld(World):
    """A node with a log on a disk, and a spiller."""

    def __init__(
        self,
        config: dict[str, str] | None = None,
        *,
        disk: Disk | None = None,
        directory: Path = HOME,
        thread: type[threading.Thread] = AtOnce,
        spare: int = 0,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(CONFIG | (config or {}))
        self.disk = disk or SimDisk()
        self.directory = directory
        self.opened, recovered = Log.open(directory, self.disk, entropy=entropy)
        self.node = Node(self.node.config, self.opened)
        self.node.config.has_files = True
        self.records = self.node.recover(recovered.payloads())
        self.node.cold.open(self.opened)
        self.spiller = Spiller(self.node, self.opened, thread=thread, spare=spare)
        self.vacuum = join_tier(self.node, self.opened, self.spiller)

    def spill(self, turns: int = 1000) -> None:
        """Run turns until nothing more is due."""
        for _ in range(turns):
            if self.spiller.turn(self.clock.now()) != 0.0 and not self.spiller.is_busy:
                break
        self.deliver()

    def written(self) -> None:
        """Bring the log to the disk."""
        self.opened.write()
        self.opened.sync()

    def rewrite(self) -> set[int]:
        """Rewrite the log, and let packs go to which nothing refers, as a server does; return their numbers."""
        self.written()
        rewrite = self.opened.begin_rewrite()
        assert rewrite is not None
        compact(self.disk, self.directory, rewrite)
        needed = {number for number, *_ in named_packs(self.node.keyspace)}
        gone = self.opened.settled_packs(rewrite) - needed
        self.opened.commit_rewrite(rewrite, gone)
        self.node.cold.drop_packs(gone)
        self.opened.remove_obsolete()
        return gone

    def close(self) -> None:
        """End the node."""
        self.spiller.stop()
        self.node.cold.close()
        self.opened.close()

    def again(self, config: dict[str, str] | None = None) -> "SpillWorld":
        """Close, and start from the disk."""
        self.close()
        return SpillWorld(config or self.config, disk=self.disk, directory=self.directory)

    def streams(self) -> Iterator[tuple[bytes, Stream]]:
        """All streams of the first database."""
        for key, value in self.node.keyspace.databases[0].keys.items():
            if isinstance(value, Stream):
                yield key, value

    def extents(self, key: bytes = b"s") -> int:
        """Number of extents of a stream; 0 if there is none."""
        value: Any = self.node.keyspace.databases[0].keys.get(key)
        return value.entries.extent_count if isinstance(value, Stream) else 0


def small(monkeypatch: Any, extent: int = 200, piece: int = 400, batch: int = 1500) -> None:
    """Let a few entries be a whole extent, slice or batch."""
    monkeypatch.setattr(gathering, "EXTENT", extent)
    monkeypatch.setattr("millstream.node.tiering.spilling.SLICE", piece)
    monkeypatch.setattr("millstream.node.tiering.spilling.BATCH", batch)
    monkeypatch.setattr(policy, "_LEAST", 1)
    # It always looks again. Memory of all streams counts otherwise, and with it that of other tests' worlds.
    monkeypatch.setattr("millstream.node.tiering.spilling._GROWN", -(1 << 60))
    monkeypatch.setattr("millstream.node.tiering.spilling._GROWN_PART", -1)
