"""The files of a primary's copy while it arrives: one without a name, and one for each pack of a copied log.

Packs are not kept twice, since they may be far larger than all else. So the bytes of each go to a file of its own in
the data directory, one after the other. A start removes such a file; once the copy is the log, the manifest names it.

Sizes come from the primary, which may be hostile: nothing is written beyond them, or beyond the disk's free space.
"""

import contextlib
import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path

from millstream.errors import DiskFullError, LogCorruptError, StorageError
from millstream.node.log import copied_log
from millstream.node.log.copied_log import PACKED
from millstream.persistence.disk import DiskFile, put
from millstream.persistence.log import Log
from millstream.server.following.files import unnamed_file

_LARGER = "the primary's copy is damaged: it has other bytes than its list of files says"


class ArrivingCopy:
    """Writes a copy to its files."""

    def __init__(self, directory: Path | None, own: Log | None, floor: Callable[[], int]) -> None:
        self._own, self._floor = own, floor
        self.file = unnamed_file(directory)  # File for all but packs
        self.token = secrets.token_hex(4)  # Part of the packs' names
        self.size: int | None = None  # Size of the copy in bytes, if the primary reported it
        self.written = 0  # Number of bytes in the files
        self._begin: bytearray | None = bytearray()  # bytes until the copy's form is known
        self._left: int | None = None  # bytes that the file without a name still gets; None for any number
        self._packs: deque[tuple[str, int]] = deque()  # name and size of each pack that is not here yet
        self._pack: DiskFile | None = None
        self._pack_left = 0
        self._names: list[str] = []  # packs in the directory

    def write(self, data: bytes) -> None:
        """Write the next bytes; raise OSError if the disk fails, or StorageError if the copy cannot be taken."""
        if self._begin is None:
            self._put(data)
            return
        self._begin += data
        begin = bytes(self._begin)
        if not begin.startswith(PACKED[: len(begin)]):
            self._begin = None
            self._put(begin)
        elif (size := copied_log.head_size(begin)) is not None and len(begin) >= size:
            self._begin = None
            self._expect(begin)
            self._put(begin)

    def end(self) -> None:
        """Write what is left; raise if a part of the copy is missing."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._put(bytes(begin))
        if self._left or self._packs or self._pack is not None:
            raise StorageError(_LARGER)

    def _expect(self, begin: bytes) -> None:
        """Prepare for a log with packs, if there is room for it."""
        if self._own is None:
            raise StorageError("the primary has sent packs to a server without a data directory")
        try:
            head = copied_log.read_head(lambda offset, size: begin[offset : offset + size])
        except LogCorruptError as error:
            raise StorageError(f"the log that the primary has sent is damaged: {error}") from None
        if self.size not in {None, head.end}:
            raise StorageError(_LARGER)
        free = self._own.free()
        needed = head.end + head.log_end + self._floor()  # a snapshot is made of the log's files
        if free < needed:
            raise DiskFullError(
                f"the primary's copy needs {needed} bytes, and {self._own.directory} has room for {free}. Free some "
                "space there."
            )
        self._left = head.log_end
        packs = [each.name for each in head.taken(self.token) if each.name]
        self._packs.extend(zip(packs, (size for _, size in head.packs), strict=True))

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        if self._left is None:
            self._put_plain(rest)
            return
        if self._left and rest:
            self._put_plain(rest[: self._left])
            taken = min(self._left, len(rest))
            self._left -= taken
            rest = rest[taken:]
        while rest:
            rest = rest[self._put_pack(rest) :]

    def _put_plain(self, data: memoryview) -> None:
        self.file.write(data)
        self.file.flush()
        self.written += len(data)

    def _put_pack(self, data: memoryview) -> int:
        """Write the next bytes of a pack; return their number."""
        assert self._own is not None
        if self._pack is None:
            if not self._packs:
                raise StorageError(_LARGER)
            name, self._pack_left = self._packs.popleft()
            self._names.append(name)
            self._pack = self._own.receive_pack(name)
        part = data[: self._pack_left]
        put(self._pack, part)
        self._pack_left -= len(part)
        self.written += len(part)
        if not self._pack_left:
            pack, self._pack = self._pack, None
            pack.close()
        return len(part)

    def close(self) -> None:
        """Close the files, and remove packs of a copy that was not taken over; takes long for large ones."""
        if self._pack is not None:
            self._pack.close()
            self._pack = None
        with contextlib.suppress(OSError):  # closing also writes the buffer, which fails if the disk is full
            self.file.close()
        names, self._names = self._names, []
        if names:
            assert self._own is not None
            self._own.discard_packs(names)
