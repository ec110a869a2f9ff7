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
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from millstream.errors import DiskError
from millstream.persistence import lockfile
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, DiskFile, read_file

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


class FrozenFile:
    """A file cut off at its size at that moment, as a :class:`~millstream.persistence.disk.DiskFile`."""

    __slots__ = ("_file", "_size")

    def __init__(self, file: DiskFile | None, size: int) -> None:
        self._file = file
        self._size = size

    def read_at(self, offset: int, size: int) -> bytes:
        """See ``DiskFile``."""
        if self._file is None:
            raise PermissionError(errno.EACCES, "this file may not be read by this user")
        return self._file.read_at(offset, max(min(size, self._size - offset), 0))

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

    It holds one descriptor for each file until it is closed.
    """

    def __init__(self, disk: Disk, directory: Path, *, pause: float = PAUSE) -> None:
        self._disk = disk
        self._directory = directory
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

    def _manifest(self) -> bytes | None:
        return read_file(self._disk, self._directory / manifests.NAME, manifests.MAX_BYTES)

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
        return FrozenFile(file, file.size())

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
