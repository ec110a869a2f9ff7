r"""The layout of a log file, a snapshot or a pack: the file header and the frames, with reasons.

All integers are little-endian and unsigned. Sizes and offsets are in bytes.

File header, ``HEADER_SIZE`` = 32 bytes, once at offset 0:

======  ====  ===========  =============================================================================================
offset  size  field        meaning
======  ====  ===========  =============================================================================================
0       8     magic        ``89 4D 53 4C 4F 47 0D 0A`` (``\x89MSLOG\r\n``): no text file starts so, and a copy that
                           strips the eighth bit or rewrites line ends destroys it. A snapshot (``snapshot.py``) has
                           ``89 4D 53 53 4E 50 0D 0A`` (``\x89MSSNP\r\n``) instead, a pack (``packs.py``)
                           ``89 4D 53 50 41 4B 0D 0A`` (``\x89MSPAK\r\n``)
8       2     version      format version, 1; a reader refuses other versions
10      2     header size  32, the offset of the first frame
12      4     mark         random, each byte nonzero; starts every frame of this file
16      4     seed         random; starts the CRC of every frame head of this file
20      8     first        position of the first record this file may hold; in a snapshot, of the first record that
                           is not in it; in a pack, its number
28      4     crc          CRC-32 of bytes 0 to 27
======  ====  ===========  =============================================================================================

Frame, ``FRAME_SIZE`` = 24 bytes of head, then the payload; frames follow each other without gap:

======  ====  ===========  =============================================================================================
offset  size  field        meaning
======  ====  ===========  =============================================================================================
0       4     mark         the file's mark
4       4     length       bytes of payload, at most ``MAX_PAYLOAD``
8       4     index        position of the record minus the header's ``first``: 0, 1, 2, ...
12      4     unsynced     number of records, with this one, not yet known durable when the frame was made; so
                           at least 1 for a record. 0 marks a seal: no payload, ``index`` is that of the
                           next record, and every record before it is durable
16      4     head crc     CRC-32 of bytes 4 to 15, started with the file's seed
20      4     payload crc  CRC-32 of the payload, started with the head crc, so it covers the head too
24      n     payload      one record, opaque; a record is one frame, so it is present whole or not at all
======  ====  ===========  =============================================================================================

Two CRCs: the length is verified before it is used, so a damaged length is never followed.

Random mark and seed: after damage the file is searched for later frames. A payload must not be able to contain
bytes that look like one (a client may store any bytes, even a copy of another log). The mark also makes that search one
``bytes.find``.

``unsynced``: a crash may lose the first page of an unfinished write and keep the second. So a valid frame after a bad
one does not prove corruption by itself. It does if it shows that the bad one had been durable.

CRC-32 (zlib's) finds every change of up to 32 neighbouring bits, and misses other damage once in 2**32.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from millstream import core
from millstream.errors import StorageError

MAGIC = b"\x89MSLOG\r\n"
SNAPSHOT_MAGIC = b"\x89MSSNP\r\n"
PACK_MAGIC = b"\x89MSPAK\r\n"
FORMAT_VERSION = 1
MAX_PAYLOAD = 2**31 - 1

NEWER = "nothing is damaged, but a newer Millstream wrote it; use that one here"
"""The remedy in a :class:`FormatError` with a version."""

_KINDS = {MAGIC: "log file", SNAPSHOT_MAGIC: "snapshot", PACK_MAGIC: "pack"}
_HEADER = struct.Struct("<8sHH4sIQ")
_HEAD = struct.Struct("<III")
_CRC = struct.Struct("<I")
_CRCS = struct.Struct("<II")
_FRAME = struct.Struct("<4sIIIII")

HEADER_SIZE = _HEADER.size + _CRC.size
FRAME_SIZE = _FRAME.size

Data = bytes | bytearray | memoryview
Entropy = Callable[[int], bytes]


class FormatError(StorageError):
    """The file is not a log file, or has a format that this version does not support.

    ``version`` is the number of the format, or 0 if the header cannot be read.

    What to do: name a directory of Millstream. If the format is newer, use the version that wrote it.
    """

    def __init__(self, message: str, *, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of one file."""

    mark: bytes  # Four bytes that start each frame
    seed: int  # Start value of each head CRC
    first: int  # Position of the first record; for a snapshot, the first one after it; for a pack, its number
    magic: bytes = MAGIC  # Kind of file

    @classmethod
    def new(cls, first: int, entropy: Entropy, magic: bytes = MAGIC) -> "FileHeader":
        """Return a header with fresh random mark and seed; ``entropy(n)`` returns n random bytes."""
        mark = bytes(byte or 0xA5 for byte in entropy(4))
        return cls(mark, int.from_bytes(entropy(4), "little"), first, magic)

    @classmethod
    def of(cls, identity: str, first: int, magic: bytes = MAGIC) -> "FileHeader":
        """Return the header of a file with these values in a manifest."""
        data = bytes.fromhex(identity)
        return cls(data[:4], int.from_bytes(data[4:], "little"), first, magic)

    @property
    def identity(self) -> str:
        """Mark and seed in hex, which distinguish this file from any other of the same name."""
        return self.mark.hex() + self.seed.to_bytes(4, "little").hex()

    def encode(self) -> bytes:
        """Return the header's 32 bytes."""
        body = _HEADER.pack(self.magic, FORMAT_VERSION, HEADER_SIZE, self.mark, self.seed, self.first)
        return body + _CRC.pack(crc32(body))

    @classmethod
    def decode(cls, data: bytes, kind: bytes = MAGIC) -> "FileHeader":
        """Parse a header; raise if it is damaged or of another kind or version."""
        if len(data) < HEADER_SIZE:
            raise FormatError(f"the file header is cut short: {len(data)} of {HEADER_SIZE} bytes")
        body, (crc,) = data[: _HEADER.size], _CRC.unpack_from(data, _HEADER.size)
        magic, version, _, mark, seed, first = _HEADER.unpack(body)
        if crc32(body) != crc or magic != kind:
            raise FormatError("the file header is damaged" if magic == kind else f"this is not a {_KINDS[kind]}")
        if version != FORMAT_VERSION:
            raise FormatError(
                f"format version {version}; this program reads version {FORMAT_VERSION}: {NEWER}", version=version
            )
        return cls(mark, seed, first, magic)


class Head(NamedTuple):
    """A frame head with a correct CRC."""

    length: int  # Size of the payload in bytes
    number: int  # Value of ``index``: the position minus the file's first position
    unsynced: int  # Value of ``unsynced``, see the table above
    payload_crc: int  # Expected CRC of the payload
    head_crc: int  # Start value of the payload's CRC

    @property
    def proven(self) -> int:
        """Number of the file's first records that were durable before this frame was written, by its own field."""
        return self.number + 1 - self.unsynced if self.unsynced else self.number


def py_encode_records(header: FileHeader, payloads: Sequence[bytes], index: int, durable: int) -> list[bytes]:
    """Return frames for consecutive records, as pieces to join."""
    pieces: list[bytes] = []
    mark, seed = header.mark, header.seed
    for number, payload in enumerate(payloads, index):
        head = _HEAD.pack(len(payload), number, number + 1 - durable)
        head_crc = crc32(head, seed)
        pieces += (mark, head, _CRCS.pack(head_crc, crc32(payload, head_crc)), payload)
    return pieces


def encode_seal(header: FileHeader, index: int) -> bytes:
    """Return a seal, which marks the ``index`` records before it as durable."""
    head = _HEAD.pack(0, index, 0)
    head_crc = crc32(head, header.seed)
    return header.mark + head + _CRCS.pack(head_crc, crc32(b"", head_crc))


def decode_head(header: FileHeader, data: Data, at: int) -> Head | None:
    """Return the frame head at ``data[at:]``, or None if there is none or it is damaged."""
    if len(data) - at < FRAME_SIZE:
        return None
    mark, length, index, unsynced, head_crc, payload_crc = _FRAME.unpack_from(data, at)
    if mark != header.mark or crc32(memoryview(data)[at + 4 : at + 16], header.seed) != head_crc:
        return None
    if length > MAX_PAYLOAD or (unsynced == 0 and length) or unsynced > index + 1:
        return None
    return Head(length, index, unsynced, payload_crc, head_crc)


def py_decode_run(header: FileHeader, data: bytes, number: int) -> tuple[list[bytes], int, bool]:
    """Decode the whole frames at the start of ``data``, the fast way through intact ones.

    Returns:
        Their payloads, the offset of the first byte after them, and True if the last of them is a seal.
    """
    payloads: list[bytes] = []
    mark, seed, unpack, size = header.mark, header.seed, _FRAME.unpack_from, len(data)
    at, sealed = 0, False
    while at + FRAME_SIZE <= size:
        found, length, index, unsynced, head_crc, payload_crc = unpack(data, at)
        stop = at + FRAME_SIZE + length
        if found != mark or index != number or stop > size or crc32(data[at + 4 : at + 16], seed) != head_crc:
            break
        payload = data[at + FRAME_SIZE : stop]
        if crc32(payload, head_crc) != payload_crc:
            break
        if unsynced:
            payloads.append(payload)
            number += 1
        at, sealed = stop, not unsynced
    return payloads, at, sealed


def payload_matches(head: Head, parts: Iterable[Data]) -> bool:
    """Return True if the payload, given in parts, is the one for which the head was made."""
    crc = head.head_crc
    for part in parts:
        crc = crc32(part, crc)
    return crc == head.payload_crc


if TYPE_CHECKING:
    encode_records = py_encode_records
    decode_run = py_decode_run
else:
    encode_records = core.choose(py_encode_records)
    decode_run = core.choose(py_decode_run)
