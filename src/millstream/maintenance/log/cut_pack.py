"""Going on without packs: their entries leave the data as if they had been deleted, and their files are kept aside.

Or only the entries go that cannot be read. The pack then stays, up to the last one of the others.

Each step may be interrupted, and the same cut can then be repeated: until its last step a start is refused. Replicas
get a full copy, since no offset of the history counts the change.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.engine.cold import Extent
from millstream.engine.cold_ops import references
from millstream.engine.ids import MIN_ID, pack, pack_all
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import UsageError
from millstream.maintenance.log.cut import PREFIX
from millstream.maintenance.log.packs import Damage, damages_of
from millstream.maintenance.log.tier import loaded
from millstream.node.log import codec
from millstream.node.log.feeding import given_up
from millstream.node.log.packs import MissingEntries, broken_packs, cut_advice, refusing_packs
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, RealDisk, tried
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.lockfile import take_lock
from millstream.persistence.log import Log
from millstream.persistence.manifest import Manifest, PackEntry, is_pack_name, pack_number
from millstream.persistence.recovery import free_name, switch_manifest


@dataclass(frozen=True, slots=True)
class PackCutReport:
    """The result of a cut."""

    kept: tuple[Path, ...]  # Packs under their new names, of those that were there
    missing: tuple[MissingEntries, ...]  # Entries that are not in the data any more


Lost = dict[int, dict[Extent, Damage] | None]
"""Nodes that are given up, by number of the pack and extent; None for all of a pack."""


def entries_without(
    directory: Path, names: Sequence[str], disk: Disk | None = None, *, keeps_readable: bool = False
) -> list[MissingEntries]:
    """Return the entries that a cut of packs would take out of the data."""
    disk, directory = disk or RealDisk(), directory.absolute()

    def read() -> list[MissingEntries]:
        with FrozenView(disk, directory) as view:
            space, manifest, _ = loaded(view, directory)
            lost = _lost(view, directory, manifest, space, _numbers(space, manifest, names), some=keeps_readable)
        return _missing(space, lost)

    return tried(read, f"cannot read {directory}")


def cut_packs(
    directory: Path, names: Sequence[str], disk: Disk | None = None, *, keeps_readable: bool = False
) -> PackCutReport:
    """Take packs, missing or damaged, out of a log that no server uses; or only their entries that cannot be read."""
    disk, directory = disk or RealDisk(), directory.absolute()
    return tried(lambda: _cut(directory, names, disk, some=keeps_readable), f"cannot cut packs of {directory}")


def _numbers(space: Keyspace, manifest: Manifest, names: Sequence[str]) -> set[int]:
    """Return the numbers of packs that the manifest names, or to which only the data refer."""
    right = {pack.number: pack.name for pack in manifest.packs}
    known = right.keys() | {run[0].pack for _, _, run in references(space)}
    found = set()
    for name in names:
        number = pack_number(name) if is_pack_name(name) else int(name) if name.isdecimal() else -1
        if number not in known:
            shown = ", ".join(pack.name for pack in manifest.packs)
            hint = f"Give one of: {shown}." if shown else "The log has no pack."
            raise UsageError(f"{name!r} is not a pack of this log. {hint}")
        if is_pack_name(name) and right.get(number, name) != name:
            text = f"pack {number} is {right[number]!r}. Give that name, or {number}."
            raise UsageError(f"{name!r} is not a pack of this log: {text}")
        found.add(number)
    return found


def _lost(disk: Disk, directory: Path, manifest: Manifest, space: Keyspace, numbers: set[int], *, some: bool) -> Lost:
    """Return the extents to give up: of each pack all, or those that cannot be read."""
    lost: Lost = dict.fromkeys(numbers)
    for entry in manifest.packs:
        if some and entry.number in numbers:
            needed = list(_extents(space, entry.number))
            found = damages_of(disk, directory, entry, needed)
            is_whole = found is not None and all(each in found and not found[each].is_partial for each in needed)
            lost[entry.number] = None if is_whole else found
    return lost


def _extents(space: Keyspace, number: int) -> Iterator[Extent]:
    return (each for _, _, run in references(space) if run[0].pack == number for each in run)


def _damage(extent: Extent, lost: Lost) -> Damage | None:
    found = lost.get(extent.pack, {})
    return Damage.of(extent) if found is None else found.get(extent)


def _stays(extent: Extent, lost: Lost) -> bool:
    damage = _damage(extent, lost)
    return damage is None or damage.is_partial


def _missing(space: Keyspace, lost: Lost) -> list[MissingEntries]:
    """Return the entries that go, by stream."""
    found: dict[tuple[int, bytes], MissingEntries] = {}
    for db, key, run in references(space):
        for each in run:
            damage = _damage(each, lost)
            if damage is not None and damage.entries:
                before = found.get((db, key)) or MissingEntries(db, key, damage.first, 0, 0)
                found[db, key] = replace(before, last=damage.last, entries=before.entries + damage.entries)
    return list(found.values())


def _cut(directory: Path, names: Sequence[str], disk: Disk, *, some: bool) -> PackCutReport:
    lock = take_lock(disk, directory)
    try:
        space, manifest, wall = loaded(disk, directory)
        numbers = _numbers(space, manifest, names)
        broken = broken_packs(disk, directory, manifest)
        refusing = refusing_packs(disk, directory, manifest, space)
        if others := [name for number, name in refusing.items() if number not in numbers]:
            shown = ", ".join(others)
            command = cut_advice(disk, directory, [*names, *others])
            raise UsageError(f"{shown} cannot be used either. Put the file back, or name all: {command}.")
        lost = _lost(disk, directory, manifest, space, numbers, some=some)
        whole = {number for number, offsets in lost.items() if offsets is None}
        kept = tuple(path for number in sorted(whole) if (path := _set_aside(disk, directory, manifest, number)))
        left = tuple(
            _shortened(space, pack, lost) if pack in broken else pack
            for pack in manifest.packs
            if pack.number not in whole
        )
        if left != manifest.packs:
            with suppress(FileNotFoundError):  # an interrupted start or cut may have left it
                disk.remove(directory / manifests.NEW_NAME)
            switch_manifest(disk, directory, replace(manifest, packs=left))
    finally:
        lock.release()
    missing = _missing(space, lost)
    steps = _losses(space, lost)
    if steps:
        log, _ = Log.open(directory, disk)
        try:
            steps += [given_up(space, had_replicas=True)] if space.history.replid else []
            log.append(codec.pack(max(wall, time.time_ns() // 1_000_000), steps))
        finally:
            log.close()
    return PackCutReport(kept, tuple(missing))


def _shortened(space: Keyspace, pack: PackEntry, lost: Lost) -> PackEntry:
    """Return the entry of a pack that ends behind the last extent that stays."""
    ends = (each.offset + each.length for each in _extents(space, pack.number) if _stays(each, lost))
    return replace(pack, bytes=max(ends), sealed=False)


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


def _losses(space: Keyspace, given: Lost) -> list[Transition]:
    """Return the transitions by which extents go, with their entries."""
    indexes: dict[tuple[int, bytes], int] = {}
    lost: dict[tuple[int, bytes], list[tuple[int, Damage]]] = {}
    for db, key, run in references(space):
        at = indexes.get((db, key), 0)
        indexes[db, key] = at + len(run)
        if found := [(index, damage) for index, each in enumerate(run, at) if (damage := _damage(each, given))]:
            lost.setdefault((db, key), []).extend(found)
    steps: list[Transition] = []
    for (db, key), gone in lost.items():
        places = [[at, *damage.place] for at, damage in gone]
        last = max((damage.last for _, damage in gone if damage.entries), default=0)
        deletes = ("xdel", db, key, pack_all([last]), places)
        steps.append(deletes if last else ("xdrop", db, key, b"", pack(MIN_ID), places))
    return steps
