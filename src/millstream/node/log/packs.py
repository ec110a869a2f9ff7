"""Packs and the data that refer to them: packs that are needed, and those that a start cannot do without.

A replay reads no pack. So a start checks two things. ``Log.open`` looks at header, size and seal of each pack that the
manifest names. After the load, :func:`expect_packs` looks for extents in other places. If either fails, the start is
refused with the streams and ids that would be missing. They are found by loading the records, which the other files
still have.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millstream.engine.cold import Extent
from millstream.engine.cold_ops import named_packs, references
from millstream.engine.ids import text
from millstream.engine.keyspace import Keyspace
from millstream.errors import DiskError, DiskFullError, LogCorruptError, MillstreamError, StorageError
from millstream.logs import logger
from millstream.node.log import replay
from millstream.persistence.disk import FULL, Disk, RealDisk, disk_error
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.inventory import Progress, payloads_of, size_of, take_inventory
from millstream.persistence.log import Log
from millstream.persistence.manifest import Manifest, PackEntry, is_pack_name, pack_name, pack_number, read_manifest
from millstream.persistence.packs import expect_pack
from millstream.persistence.predecessor import effective_manifest
from millstream.persistence.recovery import RecoveredLog
from millstream.persistence.snapshot import snapshot_payloads
from millstream.printable import printable
from millstream.texts import plural

logs = logger("millstream.node")

InTurn = Callable[[Callable[[], Any]], Any]
"""Runs a job between two commands, and waits for its result."""

_SHOWN = 100  # bytes of a key in a sentence
_STREAMS_SHOWN = 3
_PACKS_SHOWN = 3


class KeyspacePacks:
    """The packs of a running server, as a rewrite needs them; its thread calls all methods."""

    def __init__(
        self,
        space: Keyspace,
        in_turn: InTurn,
        drop: Callable[[set[int]], None] = lambda _: None,
        taking: Callable[[Sequence[PackEntry]], AbstractContextManager[Callable[[], None]]] = lambda _: nullcontext(
            lambda: None
        ),
        damaged: Callable[[], set[tuple[int, int]]] = set,
    ) -> None:
        self._space = space
        self._in_turn = in_turn
        self._drop = drop  # Closes packs; called between two commands
        self._damaged = damaged  # Returns pack and offset of each extent that is known to be damaged
        self._named_before: set[tuple[int, int]] = set()  # Those that were named before
        # Opens the packs of a copy, and waits until no other pack is written. The context yields a function to be
        # called once the copy is the log: it lets all other packs go
        self.taking = taking

    def needed(self, among: set[int]) -> set[int]:
        """Numbers of those packs to which the data in memory refer."""
        found: set[int] = self._in_turn(lambda: _needed(self._space, among))
        return found

    def released(self, packs: set[int]) -> None:
        """Let go of packs whose files will be removed."""
        self._in_turn(lambda: self._drop(packs))

    def unreadable(self, gone: set[int]) -> str:
        """Name the entries at places that are known to be damaged, once, except in packs that go; empty for none."""

        def look() -> str:
            found = {each for each in self._damaged() - self._named_before if each[0] not in gone}
            self._named_before |= found
            lost = entries_where(self._space, lambda each: each[:2] in found) if found else []
            shown = [each.sentence() for each in lost[:_STREAMS_SHOWN]]
            more = len(lost) - len(shown)
            return ", ".join(shown) + (f" and those of {more} more" if more > 0 else "")

        named: str = self._in_turn(look)
        return named


def _needed(space: Keyspace, among: set[int]) -> set[int]:
    found = among & space.reads.packs()
    # A stream that was deleted may still be in memory, so only a look at all keys proves a reference
    return found and found & {number for number, *_ in named_packs(space)}


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """Entries of a stream that a pack alone holds."""

    db: int  # Number of the database
    key: bytes  # Key of the stream
    first: int  # First live id
    last: int  # Last live id
    entries: int  # Number of live entries

    def sentence(self) -> str:
        """Return the entries in words."""
        shown = printable(self.key[:_SHOWN].decode("utf-8", "surrogateescape")).replace("\n", " ")
        first, last = (text(each).decode() for each in (self.first, self.last))
        return f"{plural(self.entries, 'entry', 'entries')} {first} to {last} of '{shown}'"


def entries_in(space: Keyspace, pack: int) -> list[MissingEntries]:
    """Return the live entries that a pack holds, by stream."""
    return entries_where(space, lambda each: each.pack == pack)


def entries_where(space: Keyspace, is_wanted: Callable[[Extent], bool]) -> list[MissingEntries]:
    """Return the live entries of the extents that are wanted, by stream."""
    found: dict[tuple[int, bytes], MissingEntries] = {}
    for db, key, extents in references(space):
        for each in extents:
            if each.live and is_wanted(each):
                before = found.get((db, key)) or MissingEntries(db, key, each.first_live, 0, 0)
                found[db, key] = replace(before, last=each.last_live, entries=before.entries + each.live)
    return list(found.values())


def damage_at(space: Keyspace, pack: int, offset: int, name: str) -> str:
    """Return the damage of a pack at an offset in a sentence, by the entries there; empty if no stream needs them."""
    there = entries_where(space, lambda each: each.pack == pack and each.offset <= offset < each.offset + each.length)
    if not there:
        return ""
    return f"{there[0].sentence()} cannot be read: {name} is damaged at byte {offset}; see millstream log check"


def loss_of(missing: list[MissingEntries]) -> str:
    """Return what would be missing without packs, in one sentence."""
    if not missing:
        return "Without it, no entry would be missing"
    shown = [each.sentence() for each in missing[:_STREAMS_SHOWN]]
    more = len(missing) - len(shown)
    return "Without it, these would be missing: " + ", ".join(shown) + (f" and those of {more} more" if more else "")


def broken_packs(disk: Disk, directory: Path, manifest: Manifest) -> list[PackEntry]:
    """Return the packs that stop a start: those that are missing, cut short, or have another header or seal.

    Raises:
        DiskFullError: open files or memory lack, which says nothing about a pack.
    """
    broken = []
    for each in manifest.packs:
        try:
            expect_pack(disk, directory, each)
        except OSError as error:
            if error.errno in FULL:
                raise disk_error(f"cannot open {directory / each.name}", error) from error
            broken.append(each)
        except MillstreamError:
            broken.append(each)
    return broken


@dataclass(frozen=True, slots=True)
class LackingPack:
    """A pack that does not have all extents which loaded data need."""

    number: int  # Number of the pack
    name: str  # Name that a cut takes: that of its file, or its number
    path: Path  # Path of the file that the records need
    end: int  # Byte up to which the records need it
    reason: str  # The lack in one sentence, without a full stop


def lacking_packs(
    space: Keyspace, directory: Path, packs: Iterable[PackEntry], sizes: Mapping[int, int]
) -> list[LackingPack]:
    """Return the packs without an extent of loaded data, by their sizes. This reads no pack."""
    found: dict[int, LackingPack] = {}
    named = {pack.number: pack for pack in packs}
    ends: dict[int, int] = {}
    for _, _, extents in references(space) if space.reads.streams else ():
        ends[extents[0].pack] = max(ends.get(extents[0].pack, 0), *(each.offset + each.length for each in extents))
    for number, end in ends.items():
        identity = space.packs.get(number, "")
        pack = named.get(number)
        name = pack_name(number, identity) if identity else pack.name if pack else str(number)
        if pack is None:
            reason = "is not in the manifest"
        elif identity not in {"", pack.identity}:
            reason = f"is not the one that the manifest names ({pack.name})"
        elif end > sizes[number]:
            reason = f"ends at byte {sizes[number]}, and they need it up to byte {end}"
        else:
            continue
        reason = f"records of the log need pack {name}, which {reason}"
        found[number] = LackingPack(number, pack.name if pack else name, directory / name, end, reason)
    return list(found.values())


def refusing_packs(disk: Disk, directory: Path, manifest: Manifest, space: Keyspace) -> dict[int, str]:
    """Return the names of all packs that stop a start with these loaded data, by number."""
    broken = {each.number: each.name for each in broken_packs(disk, directory, manifest)}
    sizes = sizes_of(disk, directory, manifest)
    return broken | {each.number: each.name for each in lacking_packs(space, directory, manifest.packs, sizes)}


def sizes_of(disk: Disk, directory: Path, manifest: Manifest) -> dict[int, int]:
    """Return the number of valid bytes of each pack by its number, as a start takes it."""
    return {each.number: each.bytes or size_of(disk, directory / each.name) for each in manifest.packs}


def cut_advice(disk: Disk, directory: Path, names: Collection[str]) -> str:
    """Return the command to go on without packs, all of which it must name, and the option that keeps parts of them."""
    is_partial = False
    with suppress(StorageError):  # a pack cannot be opened
        is_partial = any(size_of(disk, directory / name) > HEADER_SIZE for name in names)
    kept = ". With --keep-readable it gives up only the entries that cannot be read"
    return f"`millstream log cut {' '.join(f'--pack {name}' for name in names)} {directory}`" + kept * is_partial


def _remedy(missing: list[MissingEntries], names: Collection[str], directory: Path, disk: Disk) -> str:
    return (
        f"{loss_of(missing)}. Put the file back, or restore a backup. To go on without these entries: "
        f"{cut_advice(disk, directory, names)}"
    )


def payloads_in(disk: Disk, directory: Path, manifest: Manifest) -> Iterator[bytes]:
    """Yield the payloads that a start would load, whatever packs there are; nothing is changed."""
    manifest = replace(effective_manifest(disk, directory, manifest), packs=())
    found = [one for one, _ in take_inventory(disk, directory, manifest)]
    if manifest.snapshot is not None:
        yield from snapshot_payloads(disk, directory, manifest.snapshot)
    for one in found:
        yield from payloads_of(disk, directory, one, lambda _: None)


def open_log(
    directory: Path, disk: Disk | None = None, on_progress: Progress | None = None
) -> tuple[Log, RecoveredLog]:
    """Open a log; if a pack stops that, the error names the entries in it and the command to go on without them."""
    try:
        return Log.open(directory, disk, on_progress)
    except LogCorruptError as error:
        name = Path(error.path).name
        if not is_pack_name(name):
            raise
        disk, space = disk or RealDisk(), Keyspace()
        try:
            manifest = read_manifest(disk, directory)
            assert manifest is not None, "it names the pack"
            replay.read_back(space, payloads_in(disk, directory, manifest))
            broken = refusing_packs(disk, directory, manifest, space)
        except (MillstreamError, OSError):
            raise error from None  # other files are damaged too, so nobody knows the entries
        broken = broken or {pack_number(name): name}
        lost = entries_where(space, lambda each: each.pack in broken)
        remedy = _remedy(lost, broken.values(), directory, disk)
        raise LogCorruptError(f"{error}. {remedy}", path=error.path, offset=error.offset) from None


def lack_of(log: Log, pack: PackEntry, least: int) -> str:
    """Return why a pack is not the file that a log needs, by its size; empty if it may be.

    A pack that was removed while this process has it open is written anew.

    Raises:
        DiskFullError: open files, memory or space lack, so the pack cannot be opened, or not be written anew.
        DiskError: the log's path leads to another directory, or nowhere.
    """
    lack = _look(log, pack, least)
    if lack:
        try:
            if log.bring_back(pack):
                logs.error(
                    "%s was removed or replaced (%s); it was written anew from the open file. Find out what removes "
                    "files there",
                    pack.name,
                    lack,
                )
                return _look(log, pack, least)
        except OSError as error:
            reason = disk_error(f"{lack}; it cannot be written anew", error)
            if error.errno in FULL:
                raise reason from error
            return str(reason)
    return lack


def _look(log: Log, pack: PackEntry, least: int) -> str:
    try:
        with closing(log.open_pack(pack.name)) as file:
            size = file.size()
    except DiskFullError:
        raise
    except (StorageError, OSError) as error:
        return str(error)
    return f"{pack.name} has {size} bytes instead of {least}" if size < least else ""


def _lack_at_stop(log: Log, pack: PackEntry, least: int) -> str:
    """Return why a pack is not the file that the next start needs; empty if it may be."""
    try:
        if not _look(log, pack, least):
            return ""
    except DiskFullError as error:
        logs.error("%s could not be looked at: %s", pack.name, error)  # noqa: TRY400 - the sentence says all
        return ""
    try:
        return lack_of(log, pack, least)
    except DiskFullError as error:
        return str(error)


def bring_packs_back(log: Log) -> None:
    """Write packs anew that were removed while this process has them open, before it ends.

    Raises:
        DiskError: packs are missing or too short, so a start would be refused; all others are there. Or the log's path
            leads to another directory, or nowhere.
    """
    sizes = log.pack_sizes()
    # All of them, since the open file of each is its only copy
    found = {pack.name: lack for pack in log.packs if (lack := _lack_at_stop(log, pack, sizes[pack.number]))}
    if found:
        more = len(found) - _PACKS_SHOWN
        shown = "; ".join(list(found.values())[:_PACKS_SHOWN]) + (f"; and {more} more packs" if more > 0 else "")
        raise DiskError(
            f"{shown}. A start is refused until all packs are back. Without copies of them, run "
            f"{cut_advice(log.disk, log.directory, found)}"
        )


def expect_packs(space: Keyspace, log: Log) -> None:
    """Raise unless all extents of loaded data lie in packs that the manifest names. This reads no pack."""
    lacking = lacking_packs(space, log.directory, log.packs, log.pack_sizes())
    if lacking:
        names, first = {each.number: each.name for each in lacking}, lacking[0]
        lost = entries_where(space, lambda each: each.pack in names)
        remedy = _remedy(lost, names.values(), log.directory, log.disk)
        raise LogCorruptError(f"{first.reason}. {remedy}", path=str(first.path), offset=first.end)
