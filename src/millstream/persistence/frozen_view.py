"""A read-only view of a data directory as it was at one moment, while its owner continues to write.

Log files are only appended to, and a rename replaces the manifest as a whole. So the view takes a manifest, its files
and their sizes, all found between two readings of the same manifest. They are one state of the log. It has every record
from before the view began, and perhaps the first part of a later write. The files stay readable even if the owner
removes them meanwhile, since they are open. The view does not take a lock or write anything.
"""

import contextlib
import errno
import resource
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from millstream.errors import DiskError
from millstream.persistence import lockfile
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, DiskFile, read_file

SECTOR = 4096  # smallest part of a file that the system reads or fails to read
_UNREAD = b"\xa5"  # stands for each byte that cannot be read; no frame is valid with it
TRIES = 200
PAUSE = 0.01  # seconds between attempts; replacing a manifest takes less time and is rare

# Errors when opening a socket, since a server may have one in its data directory
_NO_FILE = frozenset({errno.ENXIO, errno.EOPNOTSUPP, errno.EINVAL, errno.EISDIR, errno.ELOOP})


def _is_of_log(name: str) -> bool:
    kinds = (manifests.is_segment_name, manifests.is_snapshot_name, manifests.is_pack_name)
    return name == manifests.NAME or any(is_one(name) for is_one in kinds)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, "a frozen view of a data directory is only read")


def _allow_descriptors() -> None:
    """Raise the system's limit of open files as far as it may be, since a directory may have thousands of packs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_sector(file: DiskFile, begin: int, end: int, bad: set[int]) -> bytes:
    """Read a part of a sector, but not of one that the disk failed to read, since each failure takes it seconds."""
    sector = begin - begin % SECTOR
    if sector not in bad:
        try:
            return file.read_at(begin, end - begin)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            bad.add(sector)
    return _UNREAD * (end - begin)


class FrozenFile:
    """A file cut off at its size at that moment, as a :class:`~millstream.persistence.disk.DiskFile`."""

    __slots__ = ("_file", "_size", "bad_sectors")

    def __init__(self, file: DiskFile | None, size: int, bad_sectors: set[int] | None = None) -> None:
        self._file = file
        self._size = size
        self.bad_sectors = bad_sectors  # Offsets of the sectors that could not be read; None if these are errors

    def read_at(self, offset: int, size: int) -> bytes:
        """See ``DiskFile``."""
        if self._file is None:
            raise PermissionError(errno.EACCES, "this file may not be read by this user")
        size = max(min(size, self._size - offset), 0)
        sectors = range(offset - offset % SECTOR, offset + size, SECTOR)
        if self.bad_sectors is None or self.bad_sectors.isdisjoint(sectors):
            try:
                return self._file.read_at(offset, size)
            except OSError as error:
                if self.bad_sectors is None or error.errno != errno.EIO:
                    raise
        ends = [*(max(at, offset) for at in sectors), offset + size]
        return b"".join(_read_sector(self._file, begin, end, self.bad_sectors) for begin, end in pairwise(ends))

    def size(self) -> int:
        """See ``DiskFile``."""
        return self._size

    def close(self) -> None:
        """Do nothing: the file stays open as long as the view."""

    def release(self) -> None:
        """Close the file itself."""
        if self._file is not None:
            self._file.close()

    def drop_cache(self, start: int = 0) -> None:
        """See ``DiskFile``."""
        if self._file is not None:
            self._file.drop_cache(start)

    def displaced(self, size: int) -> str:  # noqa: ARG002 - no name is looked up again
        """Return an empty text: the file stays readable, even without its name."""
        return ""

    append = truncate = datasync = _refuse


class FrozenView(contextlib.AbstractContextManager["FrozenView"]):
    """The directory at one moment, as a :class:`~millstream.persistence.disk.Disk` that refuses every change.

    It holds one descriptor for each file until it is closed. With ``past_bad_sectors``, other bytes take the place of
    those that the disk cannot read.
    """

    def __init__(self, disk: Disk, directory: Path, *, pause: float = PAUSE, past_bad_sectors: bool = False) -> None:
        self._disk = disk
        self._directory = directory
        self._goes_past = past_bad_sectors
        self._files: dict[str, FrozenFile] = {}
        _allow_descriptors()
        for _ in range(TRIES):
            before = self._manifest()
            self._hold()
            if before == self._manifest():
                return
            self.close()
            time.sleep(pause)  # the owner is adding or removing log files
        raise DiskError(f"the log files of {directory} change too fast to be looked at: try again")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, {}
        for file in files.values():
            file.release()

    def bad_sectors(self) -> dict[str, set[int]]:
        """Offsets of the sectors that could not be read so far, by the name of the file."""
        return {name: file.bad_sectors for name, file in self._files.items() if file.bad_sectors}

    def _manifest(self) -> bytes | None:
        try:
            return read_file(self._disk, self._directory / manifests.NAME, manifests.MAX_BYTES)
        except OSError as error:
            if error.errno != errno.EIO or not self._goes_past:
                raise
            return None

    def _hold(self) -> None:
        try:
            for name in self._disk.list(self._directory):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile; missing if the manifest contains it
                    self._files[name] = self._open(name)
        except BaseException:
            self.close()
            raise

    def _open(self, name: str) -> FrozenFile:
        try:
            file = self._disk.open_read(self._directory / name)
        except PermissionError as error:
            if _is_of_log(name):  # if it were treated as empty, the loss would go unnoticed
                raise DiskError(
                    f"{self._directory / name} may not be read by this user: run this as the user who runs the server"
                ) from error
            return FrozenFile(None, 0)  # such as lost+found, if the directory is a mount point
        except OSError as error:
            if _is_of_log(name) or name == lockfile.NAME or error.errno not in _NO_FILE:
                raise
            return FrozenFile(None, 0)
        return FrozenFile(file, file.size(), set() if self._goes_past else None)

    def open_read(self, path: Path) -> FrozenFile:
        """See ``Disk``."""
        if path.parent != self._directory or path.name not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file in the view", str(path))
        return self._files[path.name]

    def open_unreserved(self, path: Path) -> FrozenFile:
        """See ``Disk``."""
        return self.open_read(path)

    def list(self, directory: Path) -> list[str]:  # noqa: ARG002 - there is only one directory
        """See ``Disk``."""
        return sorted(self._files)

    def free(self, directory: Path) -> int:
        """See ``Disk``."""
        return self._disk.free(directory)

    def total(self, directory: Path) -> int:
        """See ``Disk``."""
        return self._disk.total(directory)

    create = open_append = rename = remove = make_directory = sync_directory = lock = _refuse
