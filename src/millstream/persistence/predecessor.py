"""The sources of a snapshot, if they still exist: a replacement for a snapshot that cannot be used.

A rewrite replaces the manifest first and removes the old files afterwards. If the snapshot is missing or damaged before
that, the log files listed as obsolete still hold every record, after an older snapshot if there was one. They are used
only if all of them are proved whole and without a gap. They may need the packs that the rewrite released, so these must
exist too. This module only reads.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk
from millstream.persistence.frame import FormatError
from millstream.persistence.inventory import gap, take_inventory
from millstream.persistence.manifest import Manifest, SegmentEntry, SnapshotEntry
from millstream.persistence.snapshot import damage, examine_snapshot


def predecessor(disk: Disk, directory: Path, manifest: Manifest) -> Manifest | None:
    """Return a manifest of the same records without this one's snapshot; None if the files are incomplete."""
    if manifest.snapshot is None:
        return None
    names = frozenset(disk.list(directory))
    return next((one for one in _candidates(manifest, names) if _is_whole(disk, directory, one)), None)


def fallback_of(disk: Disk, directory: Path, manifest: Manifest) -> Manifest | None:
    """Return this manifest's predecessor if its snapshot cannot be used; otherwise None."""
    made, names = manifest.snapshot, frozenset(disk.list(directory))
    if made is None or not any(entry.name in names for entry in manifest.obsolete):
        return None
    try:
        if damage(directory, made, examine_snapshot(disk, directory, made)) is None:
            return None
    except LogCorruptError:
        pass
    except FormatError:  # a newer program wrote it
        return None
    return predecessor(disk, directory, manifest)


def effective_manifest(disk: Disk, directory: Path, manifest: Manifest) -> Manifest:
    """Return the manifest that a start uses: this one, or its predecessor if its snapshot cannot be used.

    Programs that only read a directory must use the same manifest. Otherwise they would copy and report another log.
    """
    return fallback_of(disk, directory, manifest) or manifest


def _candidates(manifest: Manifest, names: frozenset[str]) -> Iterator[Manifest]:
    """Yield possible manifests, from the latest older snapshot back; the last one begins with the first record ever."""
    assert manifest.snapshot is not None
    replaced = sorted((entry for entry in manifest.obsolete if entry.name in names), key=lambda entry: entry.first)
    packs = sorted((*manifest.packs, *manifest.gone), key=lambda entry: entry.number)
    if len({entry.number for entry in packs}) < len(packs):
        return  # a primary's copy has replaced the data before, with packs of its own
    all_packs = replace(manifest, packs=tuple(packs), gone=())
    older = [name for name in names if manifests.is_snapshot_name(name) and name != manifest.snapshot.name]
    for name in sorted(older, reverse=True):
        last = manifests.snapshot_last(name)
        segments = tuple(entry for entry in replaced if entry.first > last)
        if segments:
            made = SnapshotEntry(name, last, manifests.snapshot_identity(name))
            obsolete = _before(manifest, last + 1)
            yield replace(all_packs, segments=(*segments, *manifest.segments), snapshot=made, obsolete=obsolete)
    if replaced and replaced[0].first == 1:
        yield replace(all_packs, segments=(*replaced, *manifest.segments), snapshot=None, obsolete=())


def _before(manifest: Manifest, first: int) -> tuple[SegmentEntry, ...]:
    return tuple(entry for entry in manifest.obsolete if entry.first < first)


def _is_whole(disk: Disk, directory: Path, manifest: Manifest) -> bool:
    try:
        inventory = take_inventory(disk, directory, manifest)
        return not any(gap(directory, found, following) for found, following in inventory)
    except (LogCorruptError, FormatError):
        return False
