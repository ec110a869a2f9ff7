"""Files on their way to an object store, and objects opened for reading."""

import io
import tempfile
from collections.abc import Callable
from typing import BinaryIO

import obstore
from obstore.store import ObjectStore

from millstream.spark.archiving.objects.refusals import explained

WHOLE = 8 << 20
"""Most bytes of an object that is fetched by one request; of larger objects only the ranges that are read."""

_BUFFER = 256 << 10


class Upload:
    """A file that is written on this machine's own disk, and put as one object when it is kept.

    The file has no name, so nothing is left of it when the process is killed.
    """

    def __init__(self, put: Callable[[BinaryIO, int], None]) -> None:
        self._put = put
        self.file: BinaryIO = tempfile.TemporaryFile(prefix="millstream-")  # noqa: SIM115 - drop closes it

    def keep(self) -> int:
        """Put the file; return its size in bytes."""
        self.file.flush()
        size = self.file.tell()
        self.file.seek(0)
        self._put(self.file, size)
        self.file.close()
        return size

    def drop(self) -> None:
        """Discard bytes that are not kept."""
        self.file.close()


def opened(store: ObjectStore, place: str, path: str) -> BinaryIO:
    """Open an object for reading in any order."""
    with explained(place, f"get {path}"):
        found = obstore.get(store, path)
        size = found.meta["size"]
        if size <= WHOLE:
            return io.BytesIO(bytes(found.bytes()))
    return io.BufferedReader(_Ranges(store, place, path, size), _BUFFER)


class _Ranges(io.RawIOBase):
    """A large object: each read is one request for a range."""

    def __init__(self, store: ObjectStore, place: str, path: str, size: int) -> None:
        self._store, self._place, self._path, self._size = store, place, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # what a BufferedReader hands in
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._size)

    def _next(self, most: int) -> bytes:
        end = min(self._at + most, self._size)
        if end <= self._at:
            return b""
        with explained(self._place, f"get {self._path}"):
            data = bytes(obstore.get_range(self._store, self._path, start=self._at, end=end))
        self._at += len(data)
        return data
