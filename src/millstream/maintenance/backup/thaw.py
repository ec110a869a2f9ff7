"""Thawing: a copy of a data directory without packs, which programs without packs can read.

The copy's log is one snapshot. It is made stream by stream, with one cold node in memory at a time. Positions, history
and everything else that a start restores stay the same.
"""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from millstream.engine.cold import ColdDamage
from millstream.engine.keyspace import Keyspace
from millstream.errors import DiskFullError, UsageError
from millstream.maintenance.backup.copying import staged, verify
from millstream.maintenance.log.tier import loaded
from millstream.node.log.compaction import damaged
from millstream.node.log.snapshot import payloads
from millstream.persistence.disk import Disk, RealDisk, tried
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.inventory import examine, size_of
from millstream.persistence.manifest import NAME, Manifest
from millstream.persistence.packs import PackFiles
from millstream.persistence.recovery import stage_segment, write_whole
from millstream.persistence.snapshot import new_entry, write_snapshot

# Bytes that an entry takes in a snapshot, more than in a pack
_MORE = 80


@dataclass(frozen=True, slots=True)
class ThawReport:
    """The result of thawing."""

    directory: Path  # The new data directory
    last: int  # Position of the last record, as in the source
    entries: int  # Number of entries that were in packs
    bytes: int  # Size of the snapshot in bytes


def thaw(directory: Path, out: Path, disk: Disk | None = None) -> ThawReport:
    """Write a data directory without packs. Return when it is on disk and was read back."""
    disk = disk or RealDisk()
    directory, out = directory.absolute(), out.absolute()
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists already, and nothing is overwritten. Give another path.")
    if not out.parent.is_dir():
        raise UsageError(f"the directory {out.parent} for {out.name} is missing. Create it first.")
    return tried(lambda: _make(directory, out, disk), f"cannot write {out} from {directory}")


def _make(directory: Path, out: Path, disk: Disk) -> ThawReport:
    with FrozenView(disk, directory) as view:
        space, manifest, wall = loaded(view, directory)
        packs = PackFiles(lambda name: view.open_read(directory / name), lambda: manifest.packs)
        tail = examine(view, directory, manifest.segments[-1])
        last = tail.entry.first + tail.result.records - 1
        cold = sum(stream.entries.cold_live for stream in space.reads.streams)
        entry = new_entry(last, os.urandom)
        _expect_room(disk, out.parent, space)
        with closing(packs) as space.reads.source, staged(disk, out) as partial:
            try:
                write_snapshot(disk, partial, entry, payloads(space, wall, is_thawed=True))
            except ColdDamage as damage:
                raise damaged(directory, damage, "nothing was written") from damage
            segment, _, file = stage_segment(disk, partial, last + 1, os.urandom)
            file.close()
            write_whole(disk, partial / NAME, Manifest((segment,), entry).encode())
            disk.sync_directory(partial)
            verify(partial, directory, disk, None)
            size = size_of(disk, partial / entry.name)
    return ThawReport(out, last, cold, size)


def _expect_room(disk: Disk, parent: Path, space: Keyspace) -> None:
    """Raise unless a disk has room for what a snapshot of the streams with cold entries takes, about."""
    stores = [stream.entries for stream in space.reads.streams]
    needed = sum(each.cold_bytes + each.sealed_bytes + _MORE * each.length for each in stores)
    if (free := disk.free(parent)) < needed:
        raise DiskFullError(
            f"{parent} has {free} free bytes, and the new directory needs about {needed}; nothing was written. Make "
            "room, or give a path on another disk"
        )
