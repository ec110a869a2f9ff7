"""The disk as a protocol, so that a test can put one underneath that tears, reorders, forgets and fails.

The log uses a disk only through :class:`Disk`, one call for one system call. Errors are plain ``OSError`` with their
``errno``. ``InterruptedError`` means that nothing was done. :func:`put` and :func:`datasync` then call again (Python
itself does so for the real disk, PEP 475); elsewhere it is an error like others.

The log assumes this of a disk: bytes that a successful ``datasync`` covered stay as they are until written again. A
later append next to them does not harm them (SQLite calls this powersafe overwrite). A crash may
leave any part of the bytes appended since.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from millstream.errors import DiskError, DiskFullError
from millstream.paths import sync_directory
from millstream.texts import plural

Data = bytes | bytearray | memoryview
T = TypeVar("T")


class ReadableFile(Protocol):
    """An open file, or an object that is read like one."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def size(self) -> int:
        """Length in bytes."""


class DiskFile(ReadableFile, Protocol):
    """An open file. Writes go to its end; reads name their place."""

    def append(self, data: Data) -> int:
        """Write at the end; returns how many bytes were taken, which may be fewer than given."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable after the next ``datasync``."""

    def datasync(self) -> None:
        """Return once content and length are on the medium.

        After an error the content of the medium is unknown, and a second call may lie: the system drops its note of the
        failure.
        """

    def drop_cache(self, start: int = 0) -> None:
        """Ask that the next reads come from the medium, not from memory. A system without such a request ignores it."""

    def displaced(self, size: int) -> str:
        """Why the file's name no longer leads to it and to this many bytes; empty if it does, or the system is silent.

        A file that lost its name takes writes all the same, but a start does not find them.
        """

    def close(self) -> None:
        """Let go of the file. Says nothing about durability."""


class DiskLock(Protocol):
    """A held lock; it ends with :meth:`release` or with the process, however that ends.

    While it is held, the disk it was taken on finds the files of its directory by the directory itself, not by its
    path. So files that are moved there or put in its place meanwhile are never touched.
    """

    @property
    def place(self) -> str:
        """The directory's identity on this machine, whatever its path."""

    def displaced(self) -> str:
        """Why the path of the lock no longer leads to it, as a clause; empty if it does, or the system does not say."""

    def write(self, data: bytes) -> None:
        """Replace the lock file's content, which others may read."""

    def release(self) -> None:
        """Give the lock up. The file stays, since removing it would let two processes lock two files of one name."""


class Disk(Protocol):
    """The file system operations that the log needs."""

    def create(self, path: Path) -> DiskFile:
        """Make a new file for appending; ``FileExistsError`` if there is one."""

    def open_append(self, path: Path) -> DiskFile:
        """Open an existing file for reading and appending."""

    def open_read(self, path: Path) -> DiskFile:
        """Open an existing file for reading."""

    def open_unreserved(self, path: Path) -> DiskFile:
        """The same, open for as long as others like: without the descriptors that are kept for the log itself."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, replacing a file of that name; durable after ``sync_directory``."""

    def remove(self, path: Path) -> None:
        """Remove a file's name."""

    def list(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""

    def make_directory(self, directory: Path) -> None:
        """Make a directory, for this user alone, and those above it, durably; one that is there is left as it is."""

    def sync_directory(self, directory: Path) -> None:
        """Return once the names made, changed and removed in this directory are on the medium."""

    def free(self, directory: Path) -> int:
        """Bytes that this user may still write there."""

    def total(self, directory: Path) -> int:
        """Bytes the file system has in all."""

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive lock of a file, made if it is not there, and of the directory that it is in.

        ``BlockingIOError`` if another has one of them.
        """


OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *OUT_OF_FILES})
"""Something has run out that there may be more of later: nothing was done, and it may be tried again."""

_SPACE = "; free some space there"
_RAN_OUT = {
    errno.EMFILE: "; close some connections, or allow this process more open files (ulimit -n)",
    errno.ENFILE: "; close some programs, or allow this system more open files (sysctl fs.file-max)",
    errno.ENOMEM: "; free some memory",
}
_WHOSE = "; do it as the user whose directory that is, or change its rights"
_WHERE = "; check that it is the right directory"
_ADVICE = {
    errno.EACCES: _WHOSE,
    errno.EPERM: _WHOSE,
    errno.EROFS: "; mount it so that it can be written",
    errno.ENOENT: _WHERE,
    errno.ENOTDIR: _WHERE,
}


def disk_error(doing: str, error: OSError) -> DiskError:
    """The error to raise for one of the system's: ``DiskFullError`` if space, open files or memory ran out."""
    if error.errno in FULL:
        return DiskFullError(f"{doing}: {error.strerror or error}{_RAN_OUT.get(error.errno, _SPACE)}")
    advice = _ADVICE.get(error.errno or 0, "")
    return DiskError(f"{doing}: {error.strerror or error}{advice}")


def tried(work: Callable[[], T], doing: str) -> T:
    """The result of a piece of work. Only the disk's errors become ours, not those of a generator's consumer."""
    try:
        return work()
    except OSError as error:
        raise disk_error(doing, error) from error


def tried_each(work: Iterator[T], doing: str) -> Iterator[T]:
    """The same for each result of an iterator, none of which is None."""
    while (found := tried(lambda: next(work, None), doing)) is not None:
        yield found


def read_file(disk: Disk, path: Path, most: int) -> bytes | None:
    """The first bytes of a file; None if there is no such file."""
    try:
        with contextlib.closing(disk.open_read(path)) as file:
            return file.read_at(0, most)
    except FileNotFoundError:
        return None


def put(file: DiskFile, data: Data) -> None:
    """Append all of ``data``, however many calls it takes; an ``OSError`` may leave a part of it in the file."""
    rest = memoryview(data)
    while rest:
        try:
            taken = file.append(rest)
        except InterruptedError:
            continue
        if not taken:
            raise OSError(errno.EIO, "the disk wrote no bytes and gave no reason")
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

    __slots__ = ("_fd", "_home", "_path")

    def __init__(self, fd: int, path: Path | str, home: "_HeldDirectory | None" = None) -> None:
        self._fd = fd
        self._path = path
        self._home = home

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

    def fileno(self) -> int:
        """The descriptor, as Python's own files have it; -1 once closed."""
        return self._fd

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

    def drop_cache(self, start: int = 0) -> None:
        """See :class:`DiskFile`."""
        if sys.platform != "darwin":
            page = start - start % _PAGE  # a page that is meant only in part stays
            os.posix_fadvise(self._fd, page, 0, os.POSIX_FADV_DONTNEED)

    def displaced(self, size: int) -> str:
        """See :class:`DiskFile`."""
        try:
            there = os.stat(self._path, dir_fd=None if self._home is None else self._home.fd)
            here = os.fstat(self._fd)
        except FileNotFoundError:
            return "was removed or moved away"
        except OSError:
            return ""
        if _identity(there) != _identity(here):
            return "is another file now"
        return "" if here.st_size == size else f"has {plural(here.st_size, 'byte')} instead of {size}"

    def close(self) -> None:
        """See :class:`DiskFile`. The number may be another file's from here on, so it is forgotten."""
        fd, self._fd = self._fd, -1
        if self._home is None:
            os.close(fd)
        else:
            self._home.close(fd)


_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def _opened(name: Path | str, flags: int, home: int | None = None) -> int:
    """Open a regular file; a device does not end, and a pipe cannot be read twice."""
    try:
        fd = os.open(name, flags, 0o600, dir_fd=home)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise OSError(error.errno, f"{name} is not a regular file ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{name} is not a regular file")
    return fd


class _HeldDirectory:
    """A directory held by its descriptor, with some more descriptors in reserve.

    They are given up for a file that must be opened when the process may have no more. Connections may take all there
    are, and the log must go on to its next file.
    """

    __slots__ = ("_listing", "_reserve", "_spare", "fd", "identity", "path")

    def __init__(self, directory: Path, reserve: int = 0) -> None:
        self.path = str(directory.absolute())  # the process may go to another directory
        self.fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.identity = _identity(os.fstat(self.fd))
        self._reserve = reserve
        self._spare: list[int] = []
        self._listing = threading.Lock()
        self._refill()

    def _refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare) < self._reserve:
                self._spare.append(os.dup(self.fd))

    def _with_spare(self, call: Callable[[], T]) -> T:
        """Make a call that needs a descriptor, with a spare one if there is no other."""
        try:
            return call()
        except OSError as error:
            if error.errno not in OUT_OF_FILES or not self._spare:
                raise
        os.close(self._spare.pop())
        try:
            return call()
        finally:
            self._refill()

    def open(self, name: str, flags: int) -> RealFile:
        """Open a file of the directory."""
        return RealFile(self._with_spare(lambda: _opened(name, flags, self.fd)), name, self)

    def open_unreserved(self, name: str, flags: int) -> RealFile:
        """The same with no spare descriptor, which it might keep for long."""
        return RealFile(_opened(name, flags, self.fd), name, self)

    def names(self) -> list[str]:
        """The names in the directory."""
        with self._listing:  # listing moves along the one descriptor
            return self._with_spare(lambda: os.listdir(self.fd))  # noqa: PTH208 - which does not use a descriptor

    def close(self, fd: int) -> None:
        """Close a file, or let its descriptor take the place of a spare one before other code gets the number."""
        if self.fd >= 0 and len(self._spare) < self._reserve:
            self._spare.append(os.dup2(self.fd, fd, inheritable=False))
        else:
            os.close(fd)

    def displaced(self) -> str:
        """Why its path no longer leads to it."""
        try:
            there = os.stat(self.path)  # noqa: PTH116 - no use of a path here
        except OSError as error:
            return f"{self.path} was removed or moved away" if error.errno in _LEADS_NOWHERE else ""
        return "" if _identity(there) == self.identity else f"{self.path} is another directory now"

    def release(self) -> None:
        """Let it go. The number may be another file's from here on, so it is forgotten."""
        while self._spare:
            os.close(self._spare.pop())
        fd, self.fd = self.fd, -1
        os.close(fd)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _take(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RealLock:
    """An flock(2), which the kernel releases when its process ends: of the lock file, and of its directory.

    The directory's lock keeps a second process out even if the lock file was removed. The file's lock works on systems
    that cannot lock directories (NFS), and keeps out versions that lock nothing else.
    """

    __slots__ = ("_fd", "_home", "_identity", "_name", "_path", "_release")

    def __init__(self, home: _HeldDirectory, name: str, release: Callable[[], None]) -> None:
        try:
            _take(home.fd)
        except BlockingIOError:
            raise
        except OSError:
            pass  # this file system locks no directories
        fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=home.fd)
        try:
            _take(fd)
            self._identity = _identity(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._home, self._name, self._release = fd, home, name, release
        self._path = f"{home.path}/{name}"

    @property
    def place(self) -> str:
        """See :class:`DiskLock`."""
        return "{}:{}".format(*self._home.identity)

    def displaced(self) -> str:
        """See :class:`DiskLock`.

        One look at the lock file by its whole path tells of the directory too: another one has another lock file.
        """
        with contextlib.suppress(OSError):
            if _identity(os.stat(self._path)) == self._identity:  # noqa: PTH116 - asked with every group of writes
                return ""
        if reason := self._home.displaced():
            return reason
        try:
            there = os.stat(self._name, dir_fd=self._home.fd)
        except FileNotFoundError:
            return f"{self._home.path}/{self._name}, which keeps other processes out, was removed"
        except OSError:
            return ""
        if _identity(there) == self._identity:
            return ""
        return f"{self._home.path}/{self._name} was replaced, so other processes may write here"

    def write(self, data: bytes) -> None:
        """See :class:`DiskLock`."""
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def release(self) -> None:
        """See :class:`DiskLock`. The number may be another file's from here on, so it is forgotten."""
        fd, self._fd = self._fd, -1
        os.close(fd)
        self._release()


_TO_READ = os.O_RDONLY | os.O_NONBLOCK
_RESERVE = 3  # a log file, a manifest, and a look at the directory


class RealDisk:
    """The operating system's file system."""

    _held: Mapping[Path, _HeldDirectory] = MappingProxyType({})  # directories with files that are found by descriptor

    def hold(self, directory: Path, reserve: int = 0) -> str:
        """From now on find the files of a directory by the directory itself; returns :attr:`DiskLock.place`."""
        home = _HeldDirectory(directory, reserve)
        self._held = MappingProxyType({**self._held, directory: home})
        return "{}:{}".format(*home.identity)

    def _let_go(self, directory: Path) -> None:
        home = self._held[directory]
        self._held = MappingProxyType({path: each for path, each in self._held.items() if path != directory})
        home.release()

    def _open(self, path: Path, flags: int) -> RealFile:
        home = self._held.get(path.parent)
        return RealFile(_opened(path, flags), path) if home is None else home.open(path.name, flags)

    def _place(self, path: Path) -> tuple[str | Path, int | None]:
        """A path as the system's calls take it: itself, or a name and the descriptor of its directory."""
        home = self._held.get(path.parent)
        return (path, None) if home is None else (path.name, home.fd)

    def create(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return self._open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)

    def open_append(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return self._open(path, os.O_RDWR | os.O_APPEND)

    def open_read(self, path: Path) -> RealFile:
        """See :class:`Disk`. Without waiting: the name may be a pipe's, without a process at its other end."""
        return self._open(path, _TO_READ)

    def open_unreserved(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        home = self._held.get(path.parent)
        return self.open_read(path) if home is None else home.open_unreserved(path.name, _TO_READ)

    def rename(self, old: Path, new: Path) -> None:
        """See :class:`Disk`."""
        (before, source), (after, target) = self._place(old), self._place(new)
        os.replace(before, after, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, path: Path) -> None:
        """See :class:`Disk`."""
        name, home = self._place(path)
        os.unlink(name, dir_fd=home)

    def list(self, directory: Path) -> list[str]:
        """See :class:`Disk`."""
        home = self._held.get(directory)
        return sorted(os.listdir(directory) if home is None else home.names())  # noqa: PTH208 - names are wanted

    def make_directory(self, directory: Path) -> None:
        """See :class:`Disk`."""
        self._make_directory(directory, 0o700)

    def _make_directory(self, directory: Path, mode: int) -> None:
        if directory.is_dir():
            return
        self._make_directory(directory.parent, 0o777)  # those above it are as the user's umask has them
        try:
            directory.mkdir(mode, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
        self.sync_directory(directory.parent)

    def sync_directory(self, directory: Path) -> None:
        """See :class:`Disk`."""
        if home := self._held.get(directory):
            os.fsync(home.fd)  # no descriptor is needed at a moment at which nothing may fail
        else:
            sync_directory(directory)

    def free(self, directory: Path) -> int:
        """See :class:`Disk`."""
        facts = self._file_system(directory)
        return facts.f_bavail * facts.f_frsize

    def total(self, directory: Path) -> int:
        """See :class:`Disk`."""
        facts = self._file_system(directory)
        return facts.f_blocks * facts.f_frsize

    def _file_system(self, directory: Path) -> os.statvfs_result:
        home = self._held.get(directory)
        return os.statvfs(directory) if home is None else os.fstatvfs(home.fd)

    def lock(self, path: Path) -> RealLock:
        """See :class:`Disk`."""
        directory = path.parent
        if directory in self._held:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        self.hold(directory, _RESERVE)
        try:
            return RealLock(self._held[directory], path.name, lambda: self._let_go(directory))
        except BaseException:
            self._let_go(directory)
            raise
