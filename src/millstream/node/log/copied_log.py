"""A log as one run of bytes, from which another server starts: this log's files as they are.

``MAGIC``, then two numbers of four bytes (little-endian), the length of a JSON text and its CRC-32; the text; then the
bytes of each file. The text lists the files: ``{"source": manifest, "sizes": [bytes of each], "last": position}``.
Records after ``last`` are skipped, since a file may still grow while it is copied.

The checksums in the files, their marks and the numbers of their records prove every byte.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from zlib import crc32

from millstream.errors import LogCorruptError
from millstream.persistence.frame import SNAPSHOT_MAGIC, FileHeader
from millstream.persistence.log import LogFiles
from millstream.persistence.manifest import MISSHAPEN, Manifest
from millstream.persistence.segment import Scan, read_header

MAGIC = b"MILLSTREAM LOG 1\n"
_NUMBERS = Struct("<II")
_TEXT_MAX = 1 << 20

ReadAt = Callable[[int, int], bytes]
"""Waits for bytes at an offset, and returns as many as requested; fewer only at the end of the copy."""


def head(log: LogFiles) -> bytes:
    """Return the bytes that come before the files' bytes."""
    sizes = [size for _, size in log.files]
    text = json.dumps({"source": log.manifest.facts(), "sizes": sizes, "last": log.last}).encode()
    return MAGIC + _NUMBERS.pack(len(text), crc32(text)) + text


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
    manifest, sizes, last, begin = _read_head(source)
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


def _read_head(source: ReadAt) -> tuple[Manifest, list[int], int, int]:
    """Return the manifest, the size of each file, the last valid position, and the offset of the first file."""
    begin = len(MAGIC) + _NUMBERS.size
    data = source(0, begin)
    if len(data) < begin or not data.startswith(MAGIC):
        raise _damaged("it does not begin as one")
    length, crc = _NUMBERS.unpack_from(data, len(MAGIC))
    text = source(begin, length) if length <= _TEXT_MAX else b""
    if len(text) != length or crc32(text) != crc:
        raise _damaged("its list of files is cut short")
    try:
        facts = json.loads(text)
        manifest, sizes, last = Manifest.of(facts["source"]), facts["sizes"], facts["last"]
        count = len(manifest.segments) + (manifest.snapshot is not None)
        if len(sizes) != count or not all(type(each) is int and 0 <= each < 2**63 for each in (last, *sizes)):
            raise ValueError(f"{count} files of {sizes!r:.200} bytes up to record {last!r:.20}")
        begins = [*(each.first for each in manifest.segments), last + 1]
        if begins != sorted(begins):
            raise ValueError(f"they do not follow each other up to record {last}")
    except MISSHAPEN as reason:  # its checksum is right, so the sender itself is at fault
        raise _damaged(f"its list of files is invalid ({type(reason).__name__}: {reason})") from None
    return manifest, sizes, last, begin + length


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
