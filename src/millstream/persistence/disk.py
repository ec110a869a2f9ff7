"""The disk as a protocol, so that a test can replace it by one that tears, reorders, loses and refuses writes.

The log uses a disk only through :class:`Disk`, with one system call for each method. Errors are plain ``OSError`` with
their ``errno``. ``InterruptedError`` means that the call did nothing. :func:`put` and :func:`datasync` then call again
(Python itself does so for the real disk, PEP 475); elsewhere it is an error like any other.

The log assumes this of a disk: bytes covered by a successful ``datasync`` stay as they are until they are written
again. A later append next to them does not harm them (SQLite calls this powersafe overwrite). A crash may leave any
part of the bytes appended since.
"""

import contextlib
import errno
import fcntl
import os
import resource
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
        """Return up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the length in bytes."""


class DiskFile(ReadableFile, Protocol):
    """An open file. Writes go to its end; reads give an offset."""

    def append(self, data: Data) -> int:
        """Write at the end; return the number of bytes written, which may be fewer than given."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable after the next ``datasync``."""

    def datasync(self) -> None:
        """Return after content and length are on the medium.

        After an error the content of the medium is unknown. A second call may report success wrongly, since the system
        drops its record of the failure.
        """

    def drop_cache(self, start: int = 0) -> None:
        """Request that the next reads come from the medium, not from memory; some systems ignore this."""

    def displaced(self, size: int) -> str:
        """Return the reason why the file's name no longer leads to it with this size; empty if it does or is unknown.

        A file without a name still accepts writes, but a start does not find them.
        """

    def close(self) -> None:
        """Close the file. This promises nothing about durability."""


class DiskLock(Protocol):
    """A held lock; it ends with :meth:`release` or when the process ends.

    While it is held, its disk finds the files of the directory by a descriptor, not by path. So files that are moved
    there or that replace it meanwhile are never touched.
    """

    @property
    def place(self) -> str:
        """The directory's identity on this machine, whatever its path."""

    def displaced(self) -> str:
        """Return a clause on why the lock's path no longer leads to it; empty if it does or is unknown."""

    def write(self, data: bytes) -> None:
        """Replace the lock file's content, which other programs may read."""

    def release(self) -> None:
        """Release the lock. The file stays, since removing it would let two processes lock two files of one name."""


class Disk(Protocol):
    """The file system operations that the log needs."""

    def create(self, path: Path) -> DiskFile:
        """Create a new file for appending; raise ``FileExistsError`` if it exists."""

    def open_append(self, path: Path) -> DiskFile:
        """Open an existing file for reading and appending."""

    def open_read(self, path: Path) -> DiskFile:
        """Open an existing file for reading."""

    def open_unreserved(self, path: Path) -> DiskFile:
        """Open an existing file for reading, without the descriptors that are reserved for the log itself."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing a file of the new name; durable after ``sync_directory``."""

    def remove(self, path: Path) -> None:
        """Remove a file's name."""

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def make_directory(self, directory: Path) -> None:
        """Create a directory for this user alone, and its parents, durably; an existing one stays as it is."""

    def sync_directory(self, directory: Path) -> None:
        """Return after all changes of names in this directory are on the medium."""

    def free(self, directory: Path) -> int:
        """Return the number of bytes that this user may still write there."""

    def total(self, directory: Path) -> int:
        """Return the total size of the file system in bytes."""

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive lock of a file, created if missing, and of its directory.

        Raise ``BlockingIOError`` if another process holds one of them.
        """


OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *OUT_OF_FILES})
"""Errors that some resource has run out: nothing was done, and a later attempt may succeed."""

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
    """Return the exception for an ``OSError``: ``DiskFullError`` if space, open files or memory ran out."""
    if error.errno in FULL:
        return DiskFullError(f"{doing}: {error.strerror or error}{_RAN_OUT.get(error.errno, _SPACE)}")
    advice = _ADVICE.get(error.errno or 0, "")
    return DiskError(f"{doing}: {error.strerror or error}{advice}")


def tried(work: Callable[[], T], doing: str) -> T:
    """Return the result of a call, with an ``OSError`` converted by :func:`disk_error`."""
    try:
        return work()
    except OSError as error:
        raise disk_error(doing, error) from error


def tried_each(work: Iterator[T], doing: str) -> Iterator[T]:
    """Yield the results of an iterator (never None), with its ``OSError`` converted, but not those of the consumer."""
    while (found := tried(lambda: next(work, None), doing)) is not None:
        yield found


def allow_files(more: int) -> None:
    """Let this process have more files open than before, as far as the system permits.

    Packs stay open, and there may be thousands of them: clients must not lack the descriptors that packs take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        soft = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
        with contextlib.suppress(OSError, ValueError):  # a lower limit of macOS; then fewer clients are accepted
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read_file(disk: Disk, path: Path, most: int) -> bytes | None:
    """Return the first bytes of a file; None if it does not exist."""
    try:
        with contextlib.closing(disk.open_read(path)) as file:
            return file.read_at(0, most)
    except FileNotFoundError:
        return None


def put(file: DiskFile, data: Data) -> None:
    """Append all of ``data`` in as many calls as necessary; an ``OSError`` may leave a part of it in the file."""
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
    """Call ``file.datasync()``, again only if a signal kept it from starting."""
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
        """Return the descriptor, as Python's own files do; -1 after closing."""
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
            page = start - start % _PAGE  # a partially included page stays
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

    def detach(self) -> int:
        """Return the descriptor, which the caller closes; this file cannot be used any more."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """See :class:`DiskFile`. The number may now belong to another file, so it is cleared."""
        fd = self.detach()
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
    """A directory held by its descriptor, with some descriptors in reserve.

    The reserve is used if a file must be opened when the process has no descriptors left. Connections may take all of
    them, and the log must still open its next file.
    """

    __slots__ = ("_listing", "_reserve", "_spare", "fd", "identity", "path")

    def __init__(self, directory: Path, reserve: int = 0) -> None:
        self.path = str(directory.absolute())  # absolute, since the process may change its working directory
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
        """Make a call that needs a descriptor; use one in reserve if there is no other."""
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
        """Open a file of the directory without the reserve, since it may stay open for long."""
        return RealFile(_opened(name, flags, self.fd), name, self)

    def names(self) -> list[str]:
        """Return the names in the directory."""
        with self._listing:  # listing moves the offset of the shared descriptor
            return self._with_spare(lambda: os.listdir(self.fd))  # noqa: PTH208 - which does not use a descriptor

    def close(self, fd: int) -> None:
        """Close a file, or refill the reserve with its descriptor before other code gets the number."""
        if self.fd >= 0 and len(self._spare) < self._reserve:
            self._spare.append(os.dup2(self.fd, fd, inheritable=False))
        else:
            os.close(fd)

    def displaced(self) -> str:
        """Return the reason why its path no longer leads to it; empty if it does."""
        try:
            there = os.stat(self.path)  # noqa: PTH116 - no use of a path here
        except OSError as error:
            return f"{self.path} was removed or moved away" if error.errno in _LEADS_NOWHERE else ""
        return "" if _identity(there) == self.identity else f"{self.path} is another directory now"

    def release(self) -> None:
        """Close it. The number may now belong to another file, so it is cleared."""
        while self._spare:
            os.close(self._spare.pop())
        fd, self.fd = self.fd, -1
        os.close(fd)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _take(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RealLock:
    """An flock(2) of the lock file and of its directory, which the kernel releases when its process ends.

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
            pass  # this file system does not support locks on directories
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

        Checking the lock file by its whole path covers the directory too: another directory has another lock file.
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
        """See :class:`DiskLock`. The number may now belong to another file, so it is cleared."""
        fd, self._fd = self._fd, -1
        os.close(fd)
        self._release()


_TO_READ = os.O_RDONLY | os.O_NONBLOCK
_RESERVE = 3  # descriptors for a log file, a manifest, and a listing of the directory


class RealDisk:
    """The operating system's file system."""

    _held: Mapping[Path, _HeldDirectory] = MappingProxyType({})  # directories that are held by descriptor

    def hold(self, directory: Path, reserve: int = 0) -> str:
        """Find the files of a directory by its descriptor from now on; return :attr:`DiskLock.place`."""
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
        """Return a path as arguments of a system call: itself, or a name and its directory's descriptor."""
        home = self._held.get(path.parent)
        return (path, None) if home is None else (path.name, home.fd)

    def create(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return self._open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)

    def open_append(self, path: Path) -> RealFile:
        """See :class:`Disk`."""
        return self._open(path, os.O_RDWR | os.O_APPEND)

    def open_read(self, path: Path) -> RealFile:
        """See :class:`Disk`. It never blocks, even for a pipe without a process at its other end."""
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
        self._make_directory(directory.parent, 0o777)  # the parents are created with the user's umask
        try:
            directory.mkdir(mode, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
        self.sync_directory(directory.parent)

    def sync_directory(self, directory: Path) -> None:
        """See :class:`Disk`."""
        if home := self._held.get(directory):
            os.fsync(home.fd)  # needs no new descriptor, which could fail here
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
