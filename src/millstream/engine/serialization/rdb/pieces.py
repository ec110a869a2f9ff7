"""Values made of many bytes: strings, ids, pending records; and bytes that arrive in pieces. PURE.

A size in the input is not trusted: its bytes are taken from those that have arrived. So reading never uses more memory
than there is input.
"""

from collections.abc import Iterable

from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.bulk import crc64, decompress, read_pending
from millstream.engine.serialization.rdb.sizes import Payload

# Number of pending entries' records that are read together; each has 25 to 33 bytes
_RECORDS = 4096
_RECORD_MOST = 33
# Largest string in bytes (Redis: proto-max-bulk-len)
_LARGEST = 512 * 1024 * 1024


def string(source: Payload) -> bytes:
    """Read a string: with its size before it, as a number of 8, 16 or 32 bits, or compressed."""
    size, is_special = source.size_or_special()
    if not is_special:
        return _take(source, size)
    if size <= 2:  # an integer of 1, 2 or 4 bytes, which Redis uses to save space
        return b"%d" % source.little(1 << size, signed=True)
    if size == 3:  # compressed with LZF
        packed, full = source.size(), source.size()
        return decompress(_take(source, packed), full)
    raise MalformedError("an unknown string")


def _take(source: Payload, size: int) -> bytes:
    if size > _LARGEST:
        raise MalformedError("larger than a string may be")
    return source.take(size)


def ids(source: Payload, count: int) -> bytes:
    """Read this many ids, 16 bytes each."""
    found = bytearray()
    while count:
        some = min(count, _RECORDS)
        found += source.take(16 * some)
        count -= some
    return bytes(found)


def pending(source: Payload, count: int) -> bytes:
    """Read this many records of pending entries, each of 32 bytes: see ``read_pending`` of ``bulk``."""
    found = []
    while count:
        some = min(count, _RECORDS)
        source.reach(some * _RECORD_MOST)
        records, source.at = read_pending(source.data, source.at, some)
        found.append(records)
        count -= some
    return b"".join(found)


class PiecedSource(Payload):
    """Bytes that arrive in pieces; bytes already read are dropped."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__(b"")
        self._pieces = iter(pieces)
        self._dropped = 0
        self._checksum = 0

    @property
    def offset(self) -> int:
        """Number of bytes before the next one."""
        return self._dropped + self.at

    def reach(self, size: int) -> None:
        """Make sure that this many bytes are in ``data`` from ``at`` on, or all that are left."""
        there = len(self.data) - self.at
        more = []
        while there < size and (piece := next(self._pieces, None)) is not None:
            more.append(piece)
            there += len(piece)
        if more:  # joined once, for any number of pieces
            self._drop()
            self.data = b"".join([self.data, *more])

    def checksum(self) -> int:
        """Checksum of all bytes before the next one."""
        self._drop()
        return self._checksum

    def _drop(self) -> None:
        """Drop the bytes that were read."""
        self._checksum = crc64(memoryview(self.data)[: self.at], self._checksum)
        self._dropped += self.at
        self.data, self.at = self.data[self.at :], 0

    def is_over(self) -> bool:
        """True if no more bytes follow."""
        self.reach(1)
        return self.at == len(self.data)
