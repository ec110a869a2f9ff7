"""The cold entries of a data directory: its packs by the share that is still needed, and its streams.

The records are loaded as at a start, which reads no pack. So this takes as much memory as a start.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.engine.cold import EXTENT_BYTES
from millstream.engine.cold_ops import references
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import StorageError
from millstream.node.log import replay
from millstream.node.log.packs import payloads_in
from millstream.persistence.disk import Disk, RealDisk, tried
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.inventory import size_of
from millstream.persistence.manifest import Manifest, read_manifest
from millstream.persistence.predecessor import effective_manifest


@dataclass(frozen=True, slots=True)
class PackUsage:
    """A pack and the data in it that are needed."""

    name: str  # File in the data directory
    sealed: bool  # True if the pack is complete
    bytes: int  # Size in bytes
    live_bytes: int  # Bytes of the extents that are needed, by their share of live entries
    extents: int  # Number of extents that are needed
    entries: int  # Number of live entries

    @property
    def live_share(self) -> float:
        """Share of the bytes that is needed, from 0 to 1."""
        return min(self.live_bytes / self.bytes, 1.0) if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The cold and hot entries of a stream."""

    db: int  # Number of the database
    key: bytes  # Key of the stream
    entries: int  # Number of entries
    cold: int  # Number of entries in packs
    cold_bytes: int  # Bytes of its extents


@dataclass(frozen=True, slots=True)
class TierReport:
    """The packs and the streams of a data directory."""

    packs: tuple[PackUsage, ...]  # Packs, that with the smallest live share first
    streams: tuple[StreamUsage, ...]  # Streams with cold entries, the largest cold part first
    index_bytes: int  # Memory that the extents take in a server, in bytes


def loaded(disk: Disk, directory: Path) -> tuple[Keyspace, Manifest, int]:
    """Load the records of a directory without its packs.

    Returns:
        The data, the manifest that a start uses, and the wall milliseconds of the last record.
    """
    manifest = read_manifest(disk, directory)
    if manifest is None:
        raise StorageError(f"{directory} has no log. Give a data directory.")
    manifest, space = effective_manifest(disk, directory, manifest), Keyspace()
    space.packs = {pack.number: pack.identity for pack in manifest.packs}
    _, wall = replay.read_back(space, payloads_in(disk, directory, manifest))
    return space, manifest, wall


def usage_of(space: Keyspace, manifest: Manifest, sizes: Mapping[str, int]) -> tuple[PackUsage, ...]:
    """Return the usage of packs, that with the smallest live share first; ``sizes`` are bytes by name of the file."""
    live, extents, entries = Counter[int](), Counter[int](), Counter[int]()
    for _, _, run in references(space):
        number = run[0].pack
        extents[number] += len(run)
        entries[number] += sum(each.live for each in run)
        live[number] += sum(each.length * each.live // max(each.stored, 1) for each in run)
    found = [
        PackUsage(each.name, each.sealed, sizes.get(each.name, 0), live[number], extents[number], entries[number])
        for each in manifest.packs
        for number in [each.number]
    ]
    return tuple(sorted(found, key=lambda pack: (pack.live_share, pack.name)))


def look_at_tier(directory: Path, disk: Disk | None = None) -> TierReport:
    """Return the packs and the streams of a data directory, in use or not. This changes nothing."""
    disk, directory = disk or RealDisk(), directory.absolute()
    return tried(lambda: _report(disk, directory), f"cannot read {directory}")


def _report(disk: Disk, directory: Path) -> TierReport:
    with FrozenView(disk, directory) as view:
        space, manifest, *_ = loaded(view, directory)
        sizes = {pack.name: size_of(view, directory / pack.name) for pack in manifest.packs}
    memory = sum(EXTENT_BYTES + each.holes.footprint for _, _, run in references(space) for each in run)
    streams = [
        StreamUsage(base.index, key, value.entries.length, value.entries.cold_live, value.entries.cold_bytes)
        for base in space.databases
        for key, value in base.keys.items()
        if isinstance(value, Stream) and value.entries.extent_count
    ]
    by_size = sorted(streams, key=lambda stream: -stream.cold_bytes)
    return TierReport(usage_of(space, manifest, sizes), tuple(by_size), memory)
