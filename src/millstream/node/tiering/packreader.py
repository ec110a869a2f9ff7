"""The readers of a node's packs: the native core's, and its double in Python for a node without that core.

Both read what the page cache of the system has, and raise :class:`~millstream.engine.cold.ColdMiss` for all else unless
they may wait. Bytes that a thread has fetched are *pinned* until their reader has run again. *Marked* bytes are missed
once more though they are there. So a sequential reader is noticed where the page cache has all that it reads.
"""

import contextlib
import errno
import os
from typing import Any, Protocol

from millstream import core
from millstream.engine.cold import ColdMiss, ColdSource, Range
from millstream.persistence.disk import DiskFile, RealFile, allow_files

# Errors by which a file system says that it cannot read without waiting
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class PackSource(ColdSource, Protocol):
    """A reader of packs that threads can serve."""

    nowait: int  # 1 if reads need not wait for the disk, 0 if the file system cannot do that, -1 if it is not known yet
    held: int  # Bytes of tables and nodes that are kept
    reads: int  # Number of reads
    read_bytes: int  # Bytes that were read
    blocking: int  # Reads that waited for the disk outside of the threads

    def fetch(self, pack: int, offset: int, length: int, /) -> bytes:
        """Return a part of a pack, in any thread; raise OSError if the disk fails."""
        ...

    def pin(self, pack: int, offset: int, length: int, what: bytes | int, /) -> None:
        """Keep the bytes of a part until :meth:`unpin`, so that a read finds them.

        With an ``errno`` reads fail that need the part and would wait for it. With 0 it is a mark: reads within the
        part that may not wait miss.
        """
        ...

    def unpin(self, pack: int, offset: int, length: int, is_mark: bool = False, /) -> None:
        """Undo one :meth:`pin`, if there is one: that of a mark, or another."""
        ...

    def advise(self, pack: int, offset: int, length: int, is_needed: bool, /) -> None:
        """Tell the system that a part will be needed, or will not be needed again."""
        ...

    def limit(self, cache: int, /) -> None:
        """Keep at most this many bytes of tables and nodes."""
        ...


class PyPackReader:
    """The double of the native core's reader; it keeps no tables and nodes."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[DiskFile, str]] = {}
        self._pins: list[tuple[Range, bytes | int]] = []  # with the bytes, the errno of what cannot be read, or 0
        self._marks = 0  # Number of these marks
        self.nowait = -1
        self.held = self.reads = self.read_bytes = self.blocking = 0

    def add(self, number: int, file: DiskFile, name: str) -> None:
        """Read a pack by its file, which the reader closes."""
        self._files[number] = file, name

    def drop(self, number: int) -> None:
        """Close a pack and forget what was kept of it."""
        self._pins = [each for each in self._pins if each[0][0] != number]
        self._marks = sum(what == 0 for _, what in self._pins)
        self._files.pop(number)[0].close()

    def name(self, pack: int) -> str:
        """Name of a pack's file."""
        return self._files[pack][1] if pack in self._files else f"pack {pack}"

    def _file(self, pack: int) -> DiskFile:
        if pack not in self._files:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._files[pack][0]

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack; raise a miss if that would wait."""
        file, wanted = self._file(pack), (pack, offset, length)
        if self._marks and not may_wait and any(what == 0 and _contains(pin, wanted) for pin, what in self._pins):
            raise ColdMiss([wanted])
        self.reads += 1
        data = self._cached(file, offset, length)
        if data is None:
            data = self._pinned(wanted)
        if data is None:
            if not may_wait:
                raise ColdMiss([wanted])
            self.blocking += 1
            data = file.read_at(offset, length)
        self.read_bytes += len(data)
        return data

    def _cached(self, file: DiskFile, offset: int, length: int) -> bytes | None:
        """Return the bytes if they can be read without waiting, short ones at the end of the file."""
        if not isinstance(file, RealFile):
            return file.read_at(offset, length)  # of a simulated disk
        data = bytearray(length)
        done = 0
        while done < length:
            try:
                some = os.preadv(file.fileno(), [memoryview(data)[done:]], offset + done, os.RWF_NOWAIT)
            except BlockingIOError:
                self.nowait = 1
                return None
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                self.nowait = 0
                return None
            if not some:
                break
            self.nowait = 1
            done += some
        return bytes(data[:done])

    def _pinned(self, wanted: Range) -> bytes | None:
        failed = 0
        for pin, data in self._pins:
            if isinstance(data, bytes):
                if _contains(pin, wanted):
                    at = wanted[1] - pin[1]
                    return data[at : at + wanted[2]]
            elif data and pin[0] == wanted[0] and pin[1] < wanted[1] + wanted[2] and wanted[1] < pin[1] + pin[2]:
                failed = data
        if failed:
            raise OSError(failed, os.strerror(failed))
        return None

    def fetch(self, pack: int, offset: int, length: int) -> bytes:
        """Return a part of a pack, in any thread."""
        file = self._file(pack)
        if not isinstance(file, RealFile):
            return file.read_at(offset, length)
        twin = RealFile(os.dup(file.fileno()), self.name(pack))  # the pack may be dropped meanwhile
        try:
            data = twin.read_at(offset, length)
        finally:
            twin.close()
        self.reads += 1
        self.read_bytes += len(data)
        return data

    def pin(self, pack: int, offset: int, length: int, what: bytes | int) -> None:
        """Keep the bytes of a part, an error of it, or a mark."""
        if isinstance(what, bytes) and len(what) != length:
            raise ValueError("a part of another size")
        self._pins.append(((pack, offset, length), what))
        self._marks += what == 0

    def unpin(self, pack: int, offset: int, length: int, is_mark: bool = False) -> None:
        """Undo one :meth:`pin`."""
        for at in range(len(self._pins) - 1, -1, -1):
            pin, what = self._pins[at]
            if pin == (pack, offset, length) and (what == 0) == is_mark:
                del self._pins[at]
                self._marks -= is_mark
                return

    def advise(self, pack: int, offset: int, length: int, is_needed: bool) -> None:
        """Tell the system that a part will be needed, or will not be needed again."""
        file = self._files.get(pack, (None, ""))[0]
        if isinstance(file, RealFile) and hasattr(os, "posix_fadvise"):
            advice = os.POSIX_FADV_WILLNEED if is_needed else os.POSIX_FADV_DONTNEED
            with contextlib.suppress(OSError):  # without a descriptor it is only slower
                twin = os.dup(file.fileno())  # as in fetch()
                try:
                    os.posix_fadvise(twin, offset, length, advice)
                finally:
                    os.close(twin)

    def limit(self, cache: int) -> None:
        """Keep at most this many bytes of tables and nodes: here none are."""


def _contains(outer: Range, inner: Range) -> bool:
    return outer[0] == inner[0] and outer[1] <= inner[1] and inner[1] + inner[2] <= outer[1] + outer[2]


class Packs:
    """The open packs of a node."""

    def __init__(self, cache: int) -> None:
        self._cache = cache
        self.reader: Any = None  # Reader for ``keyspace.reads``; None before the first pack
        self.names: dict[int, str] = {}  # Names of the open packs by number

    def add(self, number: int, name: str, file: DiskFile) -> None:
        """Read a pack; its file is taken over, and closed after an error."""
        try:
            if self.reader is None:
                self.reader = PyPackReader()
                if core.native is not None and isinstance(file, RealFile):
                    self.reader = core.native.PackReader(self._cache)
            allow_files(1)
            if isinstance(self.reader, PyPackReader):
                self.reader.add(number, file, name)
            else:
                assert isinstance(file, RealFile), "all packs are on one disk"
                self.reader.add(number, file.fileno(), name)
                file.detach()
        except BaseException:
            file.close()
            raise
        self.names[number] = name

    def drop(self, number: int) -> None:
        """Close a pack; one that got no entry was never opened."""
        if number in self.names:
            self.reader.drop(number)
            del self.names[number]

    def limit(self, cache: int) -> None:
        """Keep at most this many bytes of tables and nodes."""
        self._cache = cache
        if self.reader is not None:
            self.reader.limit(cache)

    @property
    def newest(self) -> int:
        """Number of the newest pack, which may still be filled; 0 without one."""
        return max(self.names, default=0)

    def close(self) -> None:
        """Close all packs."""
        for number in list(self.names):
            self.drop(number)
        self.reader = None
