"""The disk as a protocol, so that a test can put one underneath that tears, reorders, forgets and fails.

Everything the log does to a disk goes through :class:`Disk`, one call for one system call. Errors are plain ``OSError``
with their ``errno``. ``InterruptedError`` means that nothing was done; :func:`put` and :func:`datasync` then call again
(Python itself does so for the real disk, PEP 475), elsewhere it is an error like others.

What is assumed of a disk: bytes that a successful ``datasync`` covered stay as they are until written again, and a
later append next to them does not harm them (what SQLite calls powersafe overwrite). Of bytes appended since, a crash
may leave any part.
"""

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from millstream.errors import DiskError, DiskFullError

Data = bytes | bytearray | memoryview
T = TypeVar("T")


class DiskFile(Protocol):
    """An open file. Writes go to its end; reads name their place."""

    def append(self, data: Data) -> int:
        """Write at the end; returns how many bytes were taken, which may be fewer than given."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable after the next ``datasync``."""
        ...

    def datasync(self) -> None:
        """Return once content and length are on the medium.

        After an error nobody knows what is there, and a second call may lie: the system drops its note of the failure.
        """
        ...

    def drop_cache(self) -> None:
        """Ask that the next reads come from the medium, not from memory. Where it cannot be asked, nothing happens."""
        ...

    def close(self) -> None:
        """Let go of the file. Says nothing about durability."""
        ...


class DiskLock(Protocol):
    """A held lock; it ends with :meth:`release` or with the process, however that ends."""

    def write(self, data: bytes) -> None:
        """Replace the lock file's content, which others may read."""
        ...

    def release(self) -> None:
        """Give the lock up. The file stays, since removing it would let two processes lock two files of one name."""
        ...


class Disk(Protocol):
    """What the log needs of a file system."""

    def create(self, path: Path) -> DiskFile:
        """Make a new file for appending; ``FileExistsError`` if there is one."""
        ...

    def open_append(self, path: Path) -> DiskFile:
        """Open an existing file for reading and appending."""
        ...

    def open_read(self, path: Path) -> DiskFile:
        """Open an existing file for reading."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, replacing what had it; durable after ``sync_directory``."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        ...

    def list(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Make a directory and those above it, durably; one that is there already is left alone."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Return once the names made, changed and removed in this directory are on the medium."""
        ...

    def free(self, directory: Path) -> int:
        """Bytes that this user may still write there."""
        ...

    def total(self, directory: Path) -> int:
        """Bytes the file system has in all."""
        ...

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive lock of a file, made if it is not there; ``BlockingIOError`` if another has it."""
        ...


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_WHOSE = "; do it as the user whose directory that is, or change its rights"
_WHERE = "; is it the right directory?"
_ADVICE = {
    errno.EACCES: _WHOSE,
    errno.EPERM: _WHOSE,
    errno.EROFS: "; mount it so that it can be written",
    errno.ENOENT: _WHERE,
    errno.ENOTDIR: _WHERE,
}


def disk_error(doing: str, error: OSError) -> DiskError:
    """The error to raise for one of the system's: ``DiskFullError`` if space or quota ran out."""
    if error.errno in FULL:
        return DiskFullError(f"{doing}: {error.strerror or error}; free some space there")
    advice = _ADVICE.get(error.errno or 0, "")
    return DiskError(f"{doing}: {error.strerror or error}{advice}")


def tried(read: Callable[[], T], doing: str) -> T:
    """What reading gives. Only the disk's errors become ours, not those of whoever takes what a generator reads."""
    try:
        return read()
    except OSError as error:
        raise disk_error(doing, error) from error


def put(file: DiskFile, data: Data) -> None:
    """Append all of ``data``, however many calls it takes; an ``OSError`` may leave a part of it in the file."""
    rest = memoryview(data)
    while rest:
        try:
            taken = file.append(rest)
        except InterruptedError:
            continue
        if not taken:
            raise OSError(errno.EIO, "the disk took no bytes and named no reason")
        rest = rest[taken:]


def datasync(file: DiskFile) -> None:
    """``file.datasync()``, called again only if a signal kept it from starting."""
    while True:
        try:
            file.datasync()
        except InterruptedError:
            continue
        return


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, data: Data) -> int:
        """See :class:`DiskFile`."""
        return os.write(self._fd, data)

    def read_at(self, offset: int, size: int) -> bytes:
        """See :class:`DiskFile`."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self) -> int:
        """See :class:`DiskFile`."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """See :class:`DiskFile`."""
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        """See :class:`DiskFile`. On macOS only F_FULLFSYNC reaches the medium."""
        if sys.platform == "darwin":
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._fd)

    def drop_cache(self) -> None:
        """See :class:`DiskFile`."""
        if sys.platform != "darwin":
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """See :class:`DiskFile`. The number may be another file's from here on, so it is forgotten."""
        fd, self._fd = self._fd, -1
        os.close(fd)


class RealLock:
    """An flock(2), which the kernel releases when its process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> None:
        """See :class:`DiskLock`."""
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def release(self) -> None:
        """See :class:`DiskLock`. The number may be another file's from here on, so it is forgotten."""
        fd, self._fd = self._fd, -1
        os.close(fd)


class RealDisk:
    """The operating system's file system."""

    __slots__ = ()

    def create(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return RealFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600))

    def open_append(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return RealFile(os.open(path, os.O_RDWR | os.O_APPEND))

    def open_read(self, path: Path) -> RealFile:
        """See :class:`Disk`. Without waiting: what has the name may be a pipe, at whose other end is nobody."""
        return RealFile(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    def rename(self, old: Path, new: Path) -> None:
        """See :class:`Disk`."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """See :class:`Disk`."""
        path.unlink()

    def list(self, directory: Path) -> list[str]:
        """See :class:`Disk`."""
        return sorted(entry.name for entry in directory.iterdir())

    def make_directory(self, directory: Path) -> None:
        """See :class:`Disk`."""
        if directory.is_dir():
            return
        self.make_directory(directory.parent)
        try:
            directory.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
        self.sync_directory(directory.parent)

    def sync_directory(self, directory: Path) -> None:
        """See :class:`Disk`."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free(self, directory: Path) -> int:
        """See :class:`Disk`."""
        facts = os.statvfs(directory)
        return facts.f_bavail * facts.f_frsize

    def total(self, directory: Path) -> int:
        """See :class:`Disk`."""
        facts = os.statvfs(directory)
        return facts.f_blocks * facts.f_frsize

    def lock(self, path: Path) -> RealLock:
        """See :class:`Disk`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return RealLock(fd)
