"""The extents of packs with their entries, and extents that no version can use, although their checksums are right."""

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from errno import EIO
from pathlib import Path
from typing import Any

from millstream.engine import ids
from millstream.engine.cold import ColdDamage, ColdReads, Extent, bits_of, pack_bits
from millstream.engine.cold_ops import references
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams import extents
from millstream.engine.streams.cold import ColdNode, PyCold
from millstream.engine.streams.nodes import Block
from millstream.errors import LogCorruptError, StorageError
from millstream.node.log.packs import MissingEntries
from millstream.persistence.check import CheckReport, Problem
from millstream.persistence.disk import Disk, DiskFile, RealDisk, disk_error
from millstream.persistence.frame import HEADER_SIZE, PACK_MAGIC, FileHeader, FormatError
from millstream.persistence.manifest import Manifest, PackEntry, read_manifest
from millstream.persistence.packs import (
    ANY_ENTRIES,
    damage_text,
    examine_pack,
    extents_of,
    pack_damage,
    payload_at,
    read_quietly,
)
from millstream.persistence.segment import ScanResult, salvage
from millstream.texts import plural


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """An entry in a pack."""

    node: int  # Number of its node in the extent, from 0
    id: str  # Entry id as clients see it
    deleted: bool  # True for a tombstone
    fields: list[bytes]  # Fields and values in turn


@dataclass(frozen=True, slots=True)
class PackedExtent:
    """One extent of a pack."""

    offset: int  # Byte of the pack at which its frame begins
    size: int  # Bytes of its payload
    nodes: int  # Number of its nodes
    entries: list[PackedEntry]


def is_pack(path: Path) -> bool:
    """Return True if a file begins as a pack does, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(PACK_MAGIC)) == PACK_MAGIC
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error


def dump_pack(path: Path, *, past_damage: bool = False, disk: Disk | None = None) -> Iterator[PackedExtent]:
    """Yield the extents of a pack in order. Damage raises after the extents before it, except with ``past_damage``.

    A pack that is cut short raises at its end in any case.
    """
    disk, path = disk or RealDisk(), path.absolute()
    try:
        with closing(disk.open_read(path)) as file:
            header = _header(file, path)
            entry = PackEntry(path.name, header.first, header.identity)
            end = HEADER_SIZE
            for at, payload in extents_of(disk, path.parent, entry):
                yield from _shown(path, at, payload, past_damage=past_damage)
                end = at + 1
            if past_damage:
                for at, _, payload in salvage(file, header, end, 0):
                    yield from _shown(path, at, payload, past_damage=True)
        result = examine_pack(disk, path.parent, entry)
        if text := pack_damage(path, entry, result):
            if past_damage:
                return
            raise LogCorruptError(text, path=str(path), offset=result.end)
        _expect_end(disk, path, entry, result)
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error


def _expect_end(disk: Disk, path: Path, entry: PackEntry, result: ScanResult) -> None:
    """Raise if extents are missing at the end of a pack, by its seal or by the manifest next to it."""
    if result.sealed:
        return
    manifest = None
    with suppress(StorageError):  # its damage is not the pack's
        manifest = read_manifest(disk, path.parent)
    packs = manifest.packs if manifest is not None else ()
    named = next((each for each in packs if (each.name, each.identity) == (path.name, entry.identity)), None)
    if named is not None and result.end >= (named.bytes or 0) and not named.sealed:
        return  # it is being filled, or its writer was killed
    text = f"{path} ends at byte {result.end} after {plural(result.records, 'whole extent')}, without a seal: "
    if named is not None and named.bytes:
        text += f"{plural(named.bytes - result.end, 'byte')} and the entries in them are missing"
    else:
        text += "entries behind it are missing, unless a killed server was filling the pack"
    raise LogCorruptError(f"{text}. All others were shown.", path=str(path), offset=result.end)


def _header(file: DiskFile, path: Path) -> FileHeader:
    """Return the header of a pack, which no manifest describes."""
    try:
        return FileHeader.decode(file.read_at(0, HEADER_SIZE), PACK_MAGIC)
    except FormatError as error:
        if error.version:
            raise FormatError(f"{path}: {error}", version=error.version) from None
        raise LogCorruptError(f"{path}: {error}", path=str(path), offset=0) from None


def _shown(path: Path, at: int, payload: bytes, *, past_damage: bool) -> Iterator[PackedExtent]:
    try:
        packed = list(extents.nodes(payload))
    except ValueError as error:
        if past_damage:
            return
        raise LogCorruptError(_unreadable(path, at, error), path=str(path), offset=at) from None
    entries = [
        PackedEntry(number, ids.text(entry_id).decode(), dead, fields)
        for number, node in enumerate(packed)
        for entry_id, dead, fields in Block.unpack(node, None).entries()
    ]
    yield PackedExtent(at, len(payload), len(packed), entries)


def _unreadable(path: Path, at: int, error: ValueError) -> str:
    return f"{path}: the extent at byte {at} is as it was written, but cannot be read: {error}"


def find_unreadable_extents(
    disk: Disk, report: CheckReport, manifest: Manifest, space: Keyspace | None = None, unread: Container[str] = ()
) -> None:
    """Add each unreadable extent to the report, and those that differ from what the records say of them.

    ``space`` has the loaded records; None if they cannot be loaded. Apart from it, memory use is bounded by the largest
    extent. Packs named in ``unread`` are not read.
    """
    said: dict[int, dict[int, Extent]] = {}
    for _, _, run in references(space) if space is not None else ():
        said.setdefault(run[0].pack, {}).update((each.offset, each) for each in run)
    for entry in manifest.packs:
        path, left = report.directory / entry.name, said.pop(entry.number, {})
        if entry.name in unread:
            continue
        with suppress(LogCorruptError, FormatError):  # the report describes it
            for at, payload in extents_of(disk, report.directory, entry):
                try:
                    for _ in extents.nodes(payload):
                        pass
                    _expect_said(payload, left.pop(at, None))
                except ValueError as error:
                    text = _unreadable(path, at, error)
                    newer = isinstance(error, extents.NewerExtentError)
                    report.problems.append(Problem(str(path), at, text, refuses=False, newer=newer))
        if left and any(problem.path == str(path) and not problem.refuses for problem in report.problems):
            assert space is not None, "it names the extents"
            broken = _lost_extents(disk, path, entry, left)
            needed = [each for _, _, run in references(space) for each in run if each.pack == entry.number]
            found = damages_of(disk, report.directory, entry, [each for each in needed if each.offset in broken])
            _name_entries(report, path, _entries_at(space, entry.number, broken, found or {}))
        elif left and not any(problem.path == str(path) for problem in report.problems):
            at = min(left)
            text = f"{path}: {plural(len(left), 'extent')} that the records name, from byte {at} on, cannot be found"
            report.problems.append(Problem(str(path), at, text, refuses=False))


@dataclass(frozen=True, slots=True)
class Damage:
    """Nodes of an extent that cannot be read."""

    entries: int  # Number of live entries in them
    first: int  # First id in them
    last: int  # Last id in them
    place: list[Any]  # The extent's part of a plan by which they go, without its index

    @classmethod
    def of(cls, each: Extent) -> "Damage":
        """Return the damage of a whole extent."""
        left = ((1 << each.nodes) - 1) & ~each.holes.gone
        return cls(each.live, each.first_live, each.last_live, [0, b"", pack_bits(left), bytes(64)])

    @property
    def is_partial(self) -> bool:
        """True if nodes of the extent are left."""
        return bool(self.place[3] != bytes(64))


def damages_of(
    disk: Disk, directory: Path, entry: PackEntry, needed: Collection[Extent]
) -> dict[Extent, Damage] | None:
    """Return what cannot be read of these extents of a pack; None with a wrong header.

    Bytes that the disk cannot read are damage, as wrong ones are. Other errors are raised, since they may pass. An
    extent that the file's end cuts is damaged as a whole, since a start is refused with it.
    """
    try:
        with _bad_sectors_skipped(), closing(disk.open_read(directory / entry.name)) as file:
            if _header(file, directory / entry.name).identity != entry.identity:
                return None
            found = {each: _damage_of(file, each) for each in needed}
            return {each: damage for each, damage in found.items() if damage is not None}
    except (FileNotFoundError, LogCorruptError, FormatError):
        pass
    return None


def _damage_of(file: DiskFile, each: Extent) -> Damage | None:
    if each.offset + each.length > file.size():
        return Damage.of(each)
    reads = ColdReads()
    reads.source, cold = _OnePack(file), PyCold(reads)
    cold.add([each])
    try:
        nodes = cold.nodes_of(each)
        if (nodes[0].first, nodes[-1].last) != (each.first, each.last):
            return Damage.of(each)
        lost = [node for node in nodes if not _is_readable(node)]
        if not lost:
            return None
        _, *place = cold.plan_loss(0, bits_of(node.number for node in lost))
    except ColdDamage as damage:
        _expect_lasting(damage)
        return Damage.of(each)
    return Damage(each.live - place[0], lost[0].first, lost[-1].last, place)


def _is_readable(node: ColdNode) -> bool:
    try:
        node.block()
    except ColdDamage as damage:
        _expect_lasting(damage)
        return False
    return True


def _expect_lasting(damage: ColdDamage) -> None:
    """Raise an error of the disk that may pass."""
    if isinstance(damage.__cause__, OSError) and damage.__cause__.errno != EIO:
        raise damage.__cause__


class _OnePack:
    """A reader of one open pack."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:  # noqa: ARG002 - it always waits
        """Return a part of the pack."""
        return read_quietly(self._file, offset, length)

    def name(self, pack: int) -> str:
        """Return the number, which no error names."""
        return str(pack)


@contextmanager
def _bad_sectors_skipped() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != EIO:
            raise


def _lost_extents(disk: Disk, path: Path, entry: PackEntry, left: dict[int, Extent]) -> set[int]:
    """Return the offsets of extents that cannot be read, of those behind the first damage of a pack."""
    found = set()
    with closing(disk.open_read(path)) as file:
        for at, each in sorted(left.items()):
            try:
                payload = payload_at(file, entry, at, each.length)
                for _ in extents.nodes(payload):
                    pass
                _expect_said(payload, each)
            except ValueError:
                found.add(at)
    return found


def _entries_at(space: Keyspace, pack: int, offsets: set[int], damages: Mapping[Extent, Damage]) -> dict[int, str]:
    """Return the lost entries of the extents at these offsets, in words; a copied stream has the same extents."""
    found: dict[int, list[str]] = {at: [] for at in offsets}
    for db, key, run in references(space):
        for each in run:
            damage = damages.get(each) if each.pack == pack else None
            if damage is not None and damage.entries:
                lost = MissingEntries(db, key, damage.first, damage.last, damage.entries)
                found[each.offset].append(lost.sentence())
    return {at: ", ".join(lost) for at, lost in found.items()}


def _name_entries(report: CheckReport, path: Path, lost: dict[int, str]) -> None:
    """Name the entries that are lost at damaged places of a pack, and add places that only the records show."""
    shown = {problem.offset: problem for problem in report.problems if problem.path == str(path)}
    for at, entries in lost.items():
        known = shown.get(at) or Problem(str(path), at, damage_text(path, at), refuses=False)
        said = f"but {entries} cannot be read" if entries else "and all entries that are left in it can be read"
        shown[at] = replace(known, text=known.text.replace(f"but {ANY_ENTRIES} cannot be read", said))
    first = next(number for number, problem in enumerate(report.problems) if problem.path == str(path))
    others = [problem for problem in report.problems if problem.path != str(path)]
    report.problems[:] = [*others[:first], *(shown[at] for at in sorted(shown)), *others[first:]]


def _expect_said(payload: bytes, said: Extent | None) -> None:
    """Raise ValueError unless an extent is what the records say; without a record its entries are deleted."""
    if said is None:
        return
    rows = [row.facts for row in extents.rows(payload)]
    left = [row for number, row in enumerate(rows) if not said.holes.gone >> number & 1]
    found = (len(rows), sum(row.stored for row in rows), left[0].first if left else 0, left[-1].last if left else 0)
    if found != (said.nodes, said.stored, said.first, said.last):
        raise ValueError("it has other entries than the records say")
