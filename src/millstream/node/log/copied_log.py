"""A log as one run of bytes, from which another server starts: this log's files as they are.

``MAGIC``, then two numbers of four bytes (little-endian), the length of a JSON text and its CRC-32; the text; then the
bytes of each file. The text lists the files: ``{"source": manifest, "sizes": [bytes of each], "last": position}``.
Records after ``last`` are skipped, since a file may still grow while it is copied.

If the log has packs, it begins with ``PACKED``, and the text has ``"packs": [[number, bytes], ...]`` too: those packs
of the manifest that follow the other files, in this order. The receiver has said that it has the rest.

The checksums in the files, their marks and the numbers of their records prove every byte.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from zlib import crc32

from millstream.errors import LogCorruptError
from millstream.persistence.frame import HEADER_SIZE, SNAPSHOT_MAGIC, FileHeader
from millstream.persistence.manifest import MISSHAPEN, Manifest, PackEntry, taken_name
from millstream.persistence.segment import LogFiles, Scan, read_header

MAGIC = b"MILLSTREAM LOG 1\n"
PACKED = b"MILLSTREAM LOG 2\n"
_NUMBERS = Struct("<II")
_BEGIN = len(MAGIC) + _NUMBERS.size
_TEXT_MAX = {MAGIC: 1 << 20, PACKED: 1 << 24}
# Numbers of packs and of the next one stay below it: an extent has 4 bytes for its pack
_NUMBER_MAX = 1 << 31

ReadAt = Callable[[int, int], bytes]
"""Waits for bytes at an offset, and returns as many as requested; fewer only at the end of the copy."""


def head(log: LogFiles) -> bytes:
    """Return the bytes that come before the files' bytes."""
    facts = {"source": log.manifest.facts(), "sizes": [size for _, size in log.files], "last": log.last}
    if log.packs is not None:
        facts["packs"] = [[entry.number, size] for entry, size in log.packs]
    text = json.dumps(facts).encode()
    return (MAGIC if log.packs is None else PACKED) + _NUMBERS.pack(len(text), crc32(text)) + text


@dataclass(frozen=True, slots=True)
class CopyHead:
    """The head of a copied log."""

    manifest: Manifest  # Manifest of the files
    sizes: list[int]  # Size of each file of the log in bytes
    last: int  # Last valid position
    begin: int  # Offset of the first file
    packs: list[tuple[PackEntry, int]]  # Packs that follow these files, each with its size in bytes

    @property
    def log_end(self) -> int:
        """Offset behind the log's files."""
        return self.begin + sum(self.sizes)

    @property
    def end(self) -> int:
        """Number of bytes of the whole copy."""
        return self.log_end + sum(size for _, size in self.packs)

    def taken(self, token: str) -> list[PackEntry]:
        """The packs for the receiver's manifest: with a new name if they come along, else without one."""
        come = {entry.number for entry, _ in self.packs}
        return [
            replace(each, name=taken_name(each.number, each.identity, token) if each.number in come else "")
            for each in self.manifest.packs
        ]


@dataclass(frozen=True, slots=True)
class _CopiedFile:
    """One file of a copied log."""

    source: ReadAt
    name: str
    begin: int
    length: int

    def read_at(self, offset: int, size: int) -> bytes:
        return self.source(self.begin + offset, min(size, self.length - offset))

    def size(self) -> int:
        return self.length

    def damaged(self, at: int) -> LogCorruptError:
        text = f"{self.name} is damaged or cut short at byte {at} of {self.length}"
        return LogCorruptError(text, path=self.name, offset=at)


def payloads(source: ReadAt, on_compact: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Yield the records of a copied log, up to the last valid one; raise if a file is damaged or incomplete."""
    head = read_head(source)
    manifest, sizes, begin, last = head.manifest, head.sizes, head.begin, head.last
    made, parts = manifest.snapshot, []
    on_compact(sizes[0] if made else 0)
    for name, size in zip((*([made.name] if made else []), *(e.name for e in manifest.segments)), sizes, strict=True):
        parts.append(_CopiedFile(source, name, begin, size))
        begin += size
    if made is not None:
        yield from _snapshot(parts.pop(0), FileHeader.of(made.identity, made.last + 1, SNAPSHOT_MAGIC))
    ends = [each.first for each in manifest.segments[1:]]
    for part, entry, end in zip(parts, manifest.segments, (*ends, last + 1), strict=True):
        yield from _segment(part, FileHeader.of(entry.identity, entry.first), end - entry.first)


def head_size(data: bytes) -> int | None:
    """Return the size of a head by its first bytes; None if they are too few."""
    if len(data) < _BEGIN:
        return None
    length, _ = _NUMBERS.unpack_from(data, len(MAGIC))
    return _BEGIN + min(int(length), _TEXT_MAX[PACKED])


def read_head(source: ReadAt) -> CopyHead:
    """Read the head of a copied log; raise if it is damaged or invalid."""
    data = source(0, _BEGIN)
    most = _TEXT_MAX.get(data[: len(MAGIC)])
    if len(data) < _BEGIN or most is None:
        raise _damaged("it does not begin as one")
    length, crc = _NUMBERS.unpack_from(data, len(MAGIC))
    text = source(_BEGIN, length) if length <= most else b""
    if len(text) != length or crc32(text) != crc:
        raise _damaged("its list of files is cut short")
    try:
        facts = json.loads(text)
        manifest, sizes, last = Manifest.of(facts["source"]), facts["sizes"], facts["last"]
        packs = _packs(manifest, facts["packs"]) if data.startswith(PACKED) else []
        count = len(manifest.segments) + (manifest.snapshot is not None)
        if len(sizes) != count or not all(type(each) is int and 0 <= each < 2**63 for each in (last, *sizes)):
            raise ValueError(f"{count} files of {sizes!r:.200} bytes up to record {last!r:.20}")
        begins = [*(each.first for each in manifest.segments), last + 1]
        if begins != sorted(begins):
            raise ValueError(f"they do not follow each other up to record {last}")
    except MISSHAPEN as reason:  # its checksum is right, so the sender itself is at fault
        raise _damaged(f"its list of files is invalid ({type(reason).__name__}: {reason})") from None
    return CopyHead(manifest, sizes, last, _BEGIN + length, packs)


def _packs(manifest: Manifest, sizes: list[list[int]]) -> list[tuple[PackEntry, int]]:
    """Return the packs that come along; raise if they are not those of the manifest, or of other sizes."""
    come: dict[int, int] = {}
    for number, size in sizes:
        if type(number) is not int or type(size) is not int or not HEADER_SIZE <= size < 2**48:
            raise ValueError(f"a pack of {size!r:.40} bytes")
        come[number] = size
    found = [(each, come[each.number]) for each in manifest.packs if each.number in come]
    if [[each.number, size] for each, size in found] != sizes:
        raise ValueError("other packs than those of its manifest")
    if manifest.next_pack > _NUMBER_MAX:
        raise ValueError(f"{manifest.next_pack} is not the number of the next pack")
    for each in manifest.packs:
        wanted = come.get(each.number)
        if (wanted is None and not each.sealed) or (wanted is not None and each.bytes not in {None, wanted}):
            raise ValueError(f"pack {each.number} of {wanted} bytes")
    return found


def _damaged(why: str) -> LogCorruptError:
    return LogCorruptError(f"this is not a log: {why}", path="", offset=0)


def _snapshot(part: _CopiedFile, header: FileHeader) -> Iterator[bytes]:
    scan = Scan(part, read_header(part, Path(part.name), header), part.length)
    for run in scan.runs():
        yield from run
    if scan.end != part.length or not scan.sealed:
        raise part.damaged(scan.end)


def _segment(part: _CopiedFile, header: FileHeader, count: int) -> Iterator[bytes]:
    """Yield this many records of a log file; only the last file may have more."""
    scan = Scan(part, read_header(part, Path(part.name), header), part.length)
    left = count
    for run in scan.runs():
        yield from run[:left]
        left -= len(run)
        if left <= 0:
            return
    if left:
        raise part.damaged(scan.end)
