"""Going on without a pack: its entries leave the data as if they had been deleted, and its file is kept aside.

Each step may be interrupted, and the same cut can then be repeated: until its last step a start is refused. Replicas
get a full copy, since no offset of the history counts the change.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.engine.cold import Extent, pack_bits
from millstream.engine.cold_ops import references
from millstream.engine.ids import MIN_ID, pack, pack_all
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import UsageError
from millstream.maintenance.log.cut import PREFIX
from millstream.maintenance.log.tier import loaded
from millstream.node.log import codec
from millstream.node.log.feeding import given_up
from millstream.node.log.packs import MissingEntries, entries_in
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, RealDisk, tried
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.lockfile import take_lock
from millstream.persistence.log import Log
from millstream.persistence.manifest import Manifest, is_pack_name, pack_number
from millstream.persistence.recovery import free_name, switch_manifest


@dataclass(frozen=True, slots=True)
class PackCutReport:
    """The result of a cut."""

    kept: Path | None  # The pack under its new name; None if it was missing
    missing: tuple[MissingEntries, ...]  # Entries that are not in the data any more


def entries_without(directory: Path, name: str, disk: Disk | None = None) -> list[MissingEntries]:
    """Return the entries that a cut of a pack would take out of the data."""
    disk, directory = disk or RealDisk(), directory.absolute()

    def read() -> list[MissingEntries]:
        with FrozenView(disk, directory) as view:
            space, manifest, _ = loaded(view, directory)
        return entries_in(space, _number(space, manifest, name))

    return tried(read, f"cannot read {directory}")


def cut_pack(directory: Path, name: str, disk: Disk | None = None) -> PackCutReport:
    """Take a pack, missing or damaged, out of a log that no server uses."""
    disk, directory = disk or RealDisk(), directory.absolute()
    return tried(lambda: _cut(directory, name, disk), f"cannot cut a pack of {directory}")


def _number(space: Keyspace, manifest: Manifest, name: str) -> int:
    """Return the number of a pack that the manifest names, or to which only the data refer."""
    known = {pack.number for pack in manifest.packs} | {run[0].pack for _, _, run in references(space)}
    number = pack_number(name) if is_pack_name(name) else int(name) if name.isdecimal() else -1
    if number not in known:
        names = ", ".join(pack.name for pack in manifest.packs) or "none"
        raise UsageError(f"{name!r} is not a pack of this log; these are: {names}")
    return number


def _cut(directory: Path, name: str, disk: Disk) -> PackCutReport:
    lock = take_lock(disk, directory)
    try:
        space, manifest, wall = loaded(disk, directory)
        number = _number(space, manifest, name)
        kept = _set_aside(disk, directory, manifest, number)
        left = tuple(pack for pack in manifest.packs if pack.number != number)
        if left != manifest.packs:
            with suppress(FileNotFoundError):  # an interrupted start or cut may have left it
                disk.remove(directory / manifests.NEW_NAME)
            switch_manifest(disk, directory, replace(manifest, packs=left))
    finally:
        lock.release()
    missing = entries_in(space, number)
    steps = _losses(space, number)
    if steps:
        log, _ = Log.open(directory, disk)
        try:
            steps += [given_up(space, had_replicas=True)] if space.history.replid else []
            log.append(codec.pack(max(wall, time.time_ns() // 1_000_000), steps))
        finally:
            log.close()
    return PackCutReport(kept, tuple(missing))


def _set_aside(disk: Disk, directory: Path, manifest: Manifest, number: int) -> Path | None:
    """Rename the pack's file, so that a person can look at it; return its new path."""
    named = {pack.name for pack in manifest.packs if pack.number == number}  # others may have had its number
    for name in disk.list(directory):
        if name in named or (not named and is_pack_name(name) and pack_number(name) == number):
            path = free_name(disk, directory, f"{PREFIX}{name}")
            disk.rename(directory / name, path)
            disk.sync_directory(directory)
            return path
    return None


def _losses(space: Keyspace, number: int) -> list[Transition]:
    """Return the transitions by which all extents in a pack go, with their entries."""
    indexes: dict[tuple[int, bytes], int] = {}
    lost: dict[tuple[int, bytes], list[tuple[int, Extent]]] = {}
    for db, key, run in references(space):
        at = indexes.get((db, key), 0)
        indexes[db, key] = at + len(run)
        if run[0].pack == number:
            lost.setdefault((db, key), []).extend(enumerate(run, at))
    steps: list[Transition] = []
    for (db, key), found in lost.items():
        places = [[at, 0, b"", pack_bits(_left(extent)), bytes(64)] for at, extent in found]
        last = max(extent.last_live for _, extent in found)
        deletes = ("xdel", db, key, pack_all([last]), places)
        steps.append(deletes if last else ("xdrop", db, key, b"", pack(MIN_ID), places))
    return steps


def _left(extent: Extent) -> int:
    """Return the set of the nodes that are left."""
    return ((1 << extent.nodes) - 1) & ~extent.holes.gone
