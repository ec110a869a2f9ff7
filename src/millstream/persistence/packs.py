"""A pack: a file of entries that no record of the log holds any more. It is filled once and then only read.

The file is a header and frames as in a log file (see ``frame``), with a magic of its own and the pack's number in place
of a position. Each frame holds one opaque payload, an extent (:mod:`millstream.engine.streams.extents`). A seal ends a
full pack. Its name has its number and its identity.

The order of writing makes it safe:

1. The header, synced; the file's name; then the manifest names the pack. So a pack that the manifest does not name
   holds no entry, or a rewrite released it.
2. Extents, synced and read back. Only then may a record refer to them, since after the next rewrite the pack is the
   only place of their entries.
3. At the end a seal; then the manifest gets the number of valid bytes.

After an error that leaves its content unknown, and after a restart, a pack is not written to any more. So a part of a
batch may follow the valid bytes. A start reads only header, size and seal. So damage in between never stops a
start; it is an error for a reader of these entries.
"""

import contextlib
import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from millstream.errors import DiskError, LogCorruptError, MillstreamError, StorageError, UsageError
from millstream.persistence.disk import FULL, Disk, DiskFile, RealFile, datasync, disk_error, put
from millstream.persistence.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAX_PAYLOAD,
    PACK_MAGIC,
    Entropy,
    FileHeader,
    Head,
    decode_head,
    encode_records,
    encode_seal,
    payload_matches,
)
from millstream.persistence.manifest import PackEntry, pack_name, taken_name
from millstream.persistence.segment import Scan, ScanResult, TailState, assess, open_file, read_header
from millstream.texts import plural

# Bytes that are written or read back by one call, about
_PART = 1 << 20

ANY_ENTRIES = "the entries in it"
"""Part of a sentence on a damaged extent that stands for the entries, if their ids are unknown."""


def new_pack(number: int, entropy: Entropy) -> PackEntry:
    """Return a new pack's manifest entry."""
    identity = FileHeader.new(number, entropy, PACK_MAGIC).identity
    return PackEntry(pack_name(number, identity), number, identity)


def begin_pack(disk: Disk, directory: Path, entry: PackEntry) -> "PackWriter":
    """Create an empty pack on the medium; its name is durable after ``sync_directory``."""
    file = disk.create(directory / entry.name)
    try:
        put(file, _header(entry).encode())
        datasync(file)
    except BaseException:
        file.close()
        raise
    return PackWriter(file, directory / entry.name, entry)


def _header(entry: PackEntry) -> FileHeader:
    return FileHeader.of(entry.identity, entry.number, PACK_MAGIC)


class HeldFiles:
    """Names of files that are not removed meanwhile, with the number of their users; used in any thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, names: Iterable[str]) -> None:
        """Count one user more for each name."""
        with self._gate:
            self._counts.update(names)

    def drop(self, names: Iterable[str]) -> None:
        """Count one user less for each name."""
        with self._gate:
            self._counts -= Counter(names)

    def __contains__(self, name: str) -> bool:
        return name in self._counts


class PackWriter:
    """Writer that fills one pack, used by one thread at a time."""

    def __init__(self, file: DiskFile, path: Path, entry: PackEntry) -> None:
        self._file = file
        self._path = path
        self.entry = entry  # entry of the pack in the manifest
        self._count = 0  # number of extents so far
        self._size = HEADER_SIZE  # number of valid bytes
        self._closed = False  # True if nothing more may be written
        self._has_file = True

    @property
    def size(self) -> int:
        """Number of valid bytes."""
        return self._size

    @property
    def is_closed(self) -> bool:
        """True if the pack takes nothing more."""
        return self._closed

    def add(self, extents: Sequence[bytes]) -> list[tuple[int, int]]:
        """Write extents, sync them and read them back; return offset and size of each frame in bytes.

        After a ``DiskFullError`` of the write, the call may be repeated. After other errors the pack is closed: end it.
        """
        if self._closed:
            raise DiskError(f"{self._path} takes no more entries: end it and begin another pack")
        if any(len(extent) > MAX_PAYLOAD for extent in extents):  # no reader would take such a frame for whole
            raise UsageError(f"an extent of a pack holds at most {MAX_PAYLOAD} bytes")
        self._write(lambda: self._frames(extents))
        places = []
        for extent in extents:
            places.append((self._size, FRAME_SIZE + len(extent)))
            self._size += FRAME_SIZE + len(extent)
        self._count += len(extents)
        return places

    def _frames(self, extents: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the frames in parts. Both passes make them, since frames of a whole batch are memory nobody counts."""
        header, index, run, size = _header(self.entry), self._count, list[bytes](), 0
        for number, extent in enumerate(extents, 1):
            run.append(extent)
            size += len(extent)
            if size >= _PART or number == len(extents):
                yield b"".join(encode_records(header, run, index, self._count))
                index += len(run)
                run, size = [], 0

    def _write(self, parts: Callable[[], Iterable[bytes]]) -> None:
        self._closed = True  # True until all bytes are known to be on the medium
        try:
            try:
                for part in parts():
                    put(self._file, part)
            except OSError as error:
                if error.errno in FULL:
                    self._file.truncate(self._size)
                    datasync(self._file)
                    self._closed = False
                raise
            datasync(self._file)
            self._file.drop_cache(self._size)
            at = self._size
            for part in parts():
                if self._file.read_at(at, len(part)) != part:
                    raise DiskError(f"{self._path} returns other bytes than were written to it, from byte {at} on")
                at += len(part)
            if what := self._file.displaced(at):  # a start would not find these bytes
                raise DiskError(f"{self._path} {what}")
        except OSError as error:
            raise disk_error(f"cannot write to {self._path}", error) from error
        self._closed = False

    def end(self) -> PackEntry:
        """End the pack, with a seal if it is whole. Return its final manifest entry."""
        if not self._closed:
            try:
                self._write(lambda: [encode_seal(_header(self.entry), self._count)])
                self._size += FRAME_SIZE
                self.entry = replace(self.entry, sealed=True)
            except DiskError:
                pass  # the bytes before the seal count, whatever follows
            self._closed = True
        return replace(self.entry, bytes=self._size)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._has_file:
            self._has_file = False
            self._file.close()


def bring_back(disk: Disk, directory: Path, entry: PackEntry) -> bool:
    """Write a pack anew that was removed while this process has it open; return False if it does not have it.

    The open file, which Linux shows, is then the only copy, and would go with the process.

    Raises:
        OSError: the disk is full, or fails.
    """
    links = Path("/proc/self/fd")
    removed = f"{os.path.realpath(directory / entry.name)} (deleted)"
    for number in sorted(os.listdir(links) if links.is_dir() else ()):  # noqa: PTH208 - the names alone
        try:
            if str((links / number).readlink()) != removed:
                continue
            source = (links / number).open("rb")
        except OSError as error:
            if error.errno in FULL:
                raise
            continue  # it was closed meanwhile
        with source:
            if str((links / str(source.fileno())).readlink()) != removed:  # the number was given to another file
                continue
            _write_anew(disk, directory, entry, source)
        return True
    return False


def _write_anew(disk: Disk, directory: Path, entry: PackEntry, source: BinaryIO) -> None:
    # A start removes a file of such a name, so a crash leaves no part of a pack that it would take for the pack
    staged = directory / taken_name(entry.number, entry.identity, os.urandom(4).hex())
    file = disk.create(staged)
    try:
        with closing(file):
            while data := source.read(_PART):
                put(file, data)
            datasync(file)
        disk.rename(staged, directory / entry.name)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(staged)  # its space is needed for the log
        raise
    disk.sync_directory(directory)


def packs_of(taken: Iterable[PackEntry], packs: Iterable[PackEntry]) -> list[PackEntry]:
    """Return the packs of a copy; those without a name are of these packs of the log, since it does not bring them."""
    own = {replace(each, name=""): each for each in packs if each.sealed}
    found = [each if each.name else own.get(each, each) for each in taken]
    for each in found:
        if not each.name:  # removed since this server said that it has it, or the other one is at fault
            raise StorageError(f"the primary's copy does not bring pack {each.number}, which is not here either")
    return found


@contextmanager
def _opened(disk: Disk, directory: Path, entry: PackEntry) -> Iterator[DiskFile]:
    """Open a pack and check its header and size."""
    path = directory / entry.name
    with closing(open_file(disk, path, "entries that are in no other file")) as file:
        read_header(file, path, _header(entry))
        size, least = file.size(), entry.bytes or HEADER_SIZE
        if size < least or (entry.sealed and size > least):
            text = f"{path} has {size} bytes instead of {least}; it alone holds the entries in it. Nothing was changed"
            raise LogCorruptError(text, path=str(path), offset=min(size, least))
        yield file


def expect_pack(disk: Disk, directory: Path, entry: PackEntry) -> None:
    """Raise an error unless a pack exists with correct header, size and seal. This reads none of its entries."""
    path = directory / entry.name
    with _opened(disk, directory, entry) as file:
        if not entry.sealed:
            return
        at = file.size() - FRAME_SIZE
        data = file.read_at(at, FRAME_SIZE) if at >= HEADER_SIZE else b""
        head = decode_head(_header(entry), data, 0)
        if head is None or data != encode_seal(_header(entry), head.number):
            raise LogCorruptError(f"{path} has no seal at its end. Nothing was changed", path=str(path), offset=at)


def sealed_packs(disk: Disk, directory: Path, entries: Iterable[PackEntry]) -> Iterator[PackEntry]:
    """Yield the packs with a correct header, size and seal; a copy need not bring these."""
    for entry in entries:
        if entry.sealed:
            with contextlib.suppress(MillstreamError, OSError):
                expect_pack(disk, directory, entry)
                yield entry


def settle_pack(disk: Disk, directory: Path, entry: PackEntry) -> PackEntry:
    """Sync a pack that came with a copy, and read it back; return its entry, or raise an error if it is damaged."""
    path = directory / entry.name
    with closing(disk.open_append(path)) as file:
        datasync(file)
        file.drop_cache()
    result = examine_pack(disk, directory, entry)
    if reason := pack_damage(path, entry, result):
        raise LogCorruptError(reason, path=str(path), offset=result.end)
    return replace(entry, bytes=entry.bytes or result.end)


def _scan(file: DiskFile, entry: PackEntry) -> Scan:
    return Scan(file, _header(entry), file.size() if entry.bytes is None else entry.bytes)


def examine_pack(
    disk: Disk, directory: Path, entry: PackEntry, tick: Callable[[int], None] | None = None
) -> ScanResult:
    """Read a pack to the end of its valid bytes; the result's ``records`` are its extents."""
    expect_pack(disk, directory, entry)
    with _opened(disk, directory, entry) as file:
        scan = _scan(file, entry)
        for _ in scan.runs():
            if tick is not None:
                tick(scan.end)
        return assess(scan)


def pack_damage(path: Path, entry: PackEntry, result: ScanResult) -> str:
    """Return the damage of a pack in one sentence; empty if there is none."""
    if result.state is TailState.WHOLE:
        return ""
    if entry.bytes is None and result.state is TailState.TORN:
        return ""  # the pack is being filled, or its writer was killed
    return damage_text(path, result.end, f", after {plural(result.records, 'whole one')},")


def damage_text(path: Path, offset: int, after: str = "") -> str:
    """Return the damage of one extent in one sentence."""
    return f"{path}: the extent at byte {offset}{after} is damaged; a start works, but {ANY_ENTRIES} cannot be read"


def damages_behind(disk: Disk, directory: Path, entry: PackEntry, first: int) -> list[int]:
    """Return the offsets of damaged extents from the one at ``first`` on; this may read the pack to its end.

    A pack without a seal may end in the middle of an extent, which is not damage.
    """
    with _opened(disk, directory, entry) as file:
        end = (entry.bytes or file.size()) - FRAME_SIZE * entry.sealed
        found, _, whole = _search(file, _header(entry), first, end, end)
        return found if entry.bytes is not None else [at for at in found if at < whole or at == first]


def extents_of(disk: Disk, directory: Path, entry: PackEntry) -> Iterator[tuple[int, bytes]]:
    """Yield the whole extents before the first damage, each with the offset of its frame."""
    with _opened(disk, directory, entry) as file:
        at = HEADER_SIZE
        for run in _scan(file, entry).runs():
            for payload in run:
                yield at, payload
                at += FRAME_SIZE + len(payload)


class PackFiles:
    """A reader of packs for programs that may wait for the disk; the pack that was read last is open."""

    def __init__(self, open_pack: Callable[[str], DiskFile], entries: Callable[[], Iterable[PackEntry]]) -> None:
        self._open, self._entries = open_pack, entries  # the first one opens a pack by its name
        self._number = 0
        self._file: DiskFile | None = None

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:  # noqa: ARG002 - it always waits
        """Return a part of a pack; raise OSError if it cannot be read."""
        if self._file is None or pack != self._number:
            self.close()
            self._file, self._number = self._open(self.name(pack)), pack
        return self._file.read_at(offset, length)

    def close(self) -> None:
        """Close the open pack."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def name(self, pack: int) -> str:
        """Name of a pack's file."""
        found = (entry.name for entry in self._entries() if entry.number == pack)
        return next(found, f"pack {pack}, which the manifest does not name")


# ---------------------------------------------------------------------- reading for checks

_PIECE = 256 << 10  # bytes of one read
_SECTOR = 4096  # smallest part of a file that the system reads or fails to read


def read_quietly(file: DiskFile, offset: int, size: int) -> bytes:
    """Read a part, and leave in the page cache what was there before."""
    if not isinstance(file, RealFile) or sys.platform != "linux":
        return file.read_at(offset, size)
    data, there = bytearray(size), 0
    with contextlib.suppress(OSError):  # it is not there, or the file system cannot say so
        there = os.preadv(file.fileno(), [data], offset, os.RWF_NOWAIT)
    if there == size:
        return bytes(data)
    rest = file.read_at(offset + there, size - there)
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), offset + there, size - there, os.POSIX_FADV_DONTNEED)
    return bytes(data[:there]) + rest


def payload_at(file: DiskFile, entry: PackEntry, offset: int, length: int) -> bytes:
    """Return the payload of the extent whose frame is there, once its checksums were compared.

    Raises:
        ValueError: other bytes are there.
        OSError: the disk fails.
    """
    data = memoryview(read_quietly(file, offset, length))
    head = decode_head(_header(entry), data, 0)
    if head is None or len(data) != length or head.length != length - FRAME_SIZE:
        raise ValueError("another frame is there")
    if not payload_matches(head, [data[FRAME_SIZE:]]):
        raise ValueError("the checksum of its frame is wrong")
    return bytes(data[FRAME_SIZE:])


def scrub(file: DiskFile, entry: PackEntry, at: int, most: int) -> tuple[list[int], int]:
    """Compare frames of a sealed pack with their checksums, from one that begins at ``at`` on.

    Returns:
        The offsets of damaged frames, and the position after the last frame, once about ``most`` bytes were read.
    """
    end = (entry.bytes or 0) - FRAME_SIZE
    found, at, _ = _search(file, _header(entry), at, min(at + most, end), end)
    return found, at


def _search(file: DiskFile, header: FileHeader, at: int, stop: int, end: int) -> tuple[list[int], int, int]:
    """Look at frames from ``at`` to ``stop``, which end at ``end``.

    Returns:
        The offsets of damaged frames, the position after the last frame, and the offset of the last whole one.
    """
    found, whole = [], 0
    while at < stop:
        head = decode_head(header, _read_past(file, at, FRAME_SIZE), 0)
        if head is None or at + FRAME_SIZE + head.length > end:
            found.append(at)
            at = _next_frame(file, header, at + 1, end)
            continue
        if _is_whole(file, head, at + FRAME_SIZE):
            whole = at
        else:
            found.append(at)
        at += FRAME_SIZE + head.length
    return found, at, whole


def _is_whole(file: DiskFile, head: Head, begin: int) -> bool:
    """True if the payload that begins there can be read, and has the checksum of its head."""
    parts = range(begin, begin + head.length, _PIECE)  # an extent may be large
    pieces = (read_quietly(file, at, min(_PIECE, begin + head.length - at)) for at in parts)
    try:
        return payload_matches(head, pieces)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False


def _read_past(file: DiskFile, offset: int, size: int) -> bytes:
    """Read a part; zeros, in which no frame begins, stand for the sectors that the disk cannot read."""
    try:
        return read_quietly(file, offset, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    end = offset + size
    ends = [offset, *range(offset - offset % _SECTOR + _SECTOR, end, _SECTOR), end]
    if len(ends) == 2:
        return bytes(size)
    return b"".join(_read_past(file, at, to - at) for at, to in pairwise(ends))


def _next_frame(file: DiskFile, header: FileHeader, at: int, end: int) -> int:
    """Return the position of the next frame with a valid head; ``end`` without one."""
    while at < end:
        data = _read_past(file, at, min(_PIECE, end + FRAME_SIZE - at))
        if len(data) < FRAME_SIZE:  # the file became shorter
            return end
        place = data.find(header.mark)
        while place >= 0 and len(data) - place >= FRAME_SIZE:
            if decode_head(header, data, place) is not None:
                return min(at + place, end)
            place = data.find(header.mark, place + 1)
        at += len(data) - FRAME_SIZE + 1
    return end
