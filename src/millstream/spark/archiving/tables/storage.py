"""The place of an archive: the few operations that its manifest, lock, files and table logs need.

``Storage`` is the interface; a local directory implements it here, an object store in ``objects``. When a put returns,
its object is complete and durable; before that it does not exist at all. Paths are below the root, with slashes.
"""

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from millstream.errors import StorageError
from millstream.paths import sync_directory

MANIFEST_NAME = "_manifest.json"
"""Name of the manifest: the one object that is requested to check that a place can be used."""

CATALOG = "_catalog.db"
"""Name of Iceberg's catalog if the archive has its own."""


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
"""Errors of file systems without hard links, such as some network mounts."""


class ChangedMeanwhileError(StorageError):
    """Another program changed the object that the job was about to replace.

    What to do: run only one job for each archive, and run this one again.
    """


class NewObject(Protocol):
    """An object that is being written; it exists only after :meth:`keep`."""

    file: BinaryIO

    def keep(self) -> int:
        """Complete the object and give it its name; return its size in bytes."""

    def drop(self) -> None:
        """Discard bytes that are not kept."""


class Storage(Protocol):
    """A place for one archive."""

    local: Path | None  # Directory if it is on this machine; None for an object store

    @property
    def location(self) -> str:
        """The place as a path or URL, for people and the libraries of table formats."""

    def iceberg_properties(self) -> Mapping[str, str]:
        """Return the properties with which ``pyiceberg`` opens files of this storage."""

    def read(self, path: str) -> bytes:
        """Return the object's content; raise FileNotFoundError without one."""

    def open(self, path: str) -> BinaryIO:
        """Open the object for reading in any order; raise FileNotFoundError without one."""

    def exists(self, path: str) -> bool:
        """Return True if the object exists, by a request for it, not by a list."""

    def modified_ms(self, path: str) -> int:
        """Return the time of the object's put, in milliseconds since 1970."""

    def create(self, path: str) -> NewObject:
        """Return an object to write, which gets its name when it is kept."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put bytes under an unused name; raise ChangedMeanwhileError if it is used."""

    def replace_if_unchanged(
        self, path: str, old: bytes | None, data: bytes, before: Callable[[], None] = lambda: None
    ) -> None:
        """Replace known bytes; raise ChangedMeanwhileError if another program changed them."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths below a folder; an object that the list lacks may exist all the same."""

    def top(self) -> set[str]:
        """Return the names directly below the root."""

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""

    def sync(self, *paths: str) -> None:
        """Make files that a library wrote durable."""

    def sync_names(self, *paths: str) -> None:
        """Make sure that every process finds the kept files after a crash."""

    def locked(self, path: str) -> AbstractContextManager[str | None]:
        """Hold the lock of that name in the block; yield the owner if it is another job, else None."""


class LocalStorage:
    """A directory of this machine, or a mounted one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.local: Path | None = root

    @property
    def location(self) -> str:
        """The path, for the libraries of table formats."""
        return str(self.root.absolute())

    def iceberg_properties(self) -> Mapping[str, str]:
        """Return no properties: local files need none."""
        return {}

    def exists(self, path: str) -> bool:
        """Return True if the file exists."""
        return (self.root / path).exists()

    def modified_ms(self, path: str) -> int:
        """Return the time of the file's last write, in milliseconds since 1970."""
        return int(inside(self.root, path).stat().st_mtime * 1000)

    def top(self) -> set[str]:
        """Return the names directly in the directory; empty if it does not exist."""
        return {entry.name for entry in self.root.iterdir()} if self.root.exists() else set()

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[str | None]:
        """Hold a file's lock in the block; create the directory if needed, and remove it if it stays empty."""
        new = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root / path) as holder:
            try:
                yield None if holder is None else f"process {holder}"
            finally:
                if new and holder is None and self.top() == {path}:
                    with contextlib.suppress(OSError):  # another job is using the directory
                        (self.root / path).unlink()
                        self.root.rmdir()

    def read(self, path: str) -> bytes:
        """Return the file's content."""
        with self.open(path) as file:
            return file.read()

    def open(self, path: str) -> BinaryIO:
        """Open the file for reading in any order."""
        return inside(self.root, path).open("rb")

    def create(self, path: str) -> "NewFile":
        """Return a file to write, which gets its name when it is kept."""
        return NewFile(inside(self.root, path))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put bytes under an unused name; raise ChangedMeanwhileError if it is used."""
        new = self.create(path)
        try:
            new.file.write(data)
            new.keep()
        except FileExistsError:
            raise ChangedMeanwhileError(f"{self.root / path} was written by another program meanwhile") from None
        finally:
            new.drop()
        self.sync_names(path)

    def replace_if_unchanged(
        self, path: str, old: bytes | None, data: bytes, before: Callable[[], None] = lambda: None
    ) -> None:
        """Replace the bytes ``old``; raise ChangedMeanwhileError if the file has others."""
        target = inside(self.root, path)
        there = self.read(path) if target.exists() else None
        if there != old:
            raise ChangedMeanwhileError(f"{target} was written by another program meanwhile")
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.new")
        with open(fresh, "wb", opener=_own) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        before()
        fresh.replace(target)
        sync_directory(target.parent)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the files below a folder, unfinished ones included."""
        base = self.root / prefix
        for path in sorted(base.rglob("*")):
            if path.is_file():
                yield path.relative_to(self.root).as_posix()

    def delete(self, path: str) -> None:
        """Remove a file; a missing one is not an error."""
        place = inside(self.root, str(Path(path).parent))
        (place / Path(path).name).unlink(missing_ok=True)

    def sync(self, *paths: str) -> None:
        """Make files that a library wrote durable, with their names."""
        for path in paths:
            with self.open(path) as file:
                os.fsync(file.fileno())
        self.sync_names(*paths)

    def sync_names(self, *paths: str) -> None:
        """Make the names of files and of their folders durable."""
        folders = {folder for path in paths for folder in Path(path).parents}
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            sync_directory(inside(self.root, str(folder)))


class NewFile:
    """A file that is being written, hidden until it is complete."""

    def __init__(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.writing")
        self.file: BinaryIO = self._hidden.open("xb")

    def keep(self) -> int:
        """Make the content durable and give the file its name; return its size in bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        self.file.close()
        try:
            os.link(self._hidden, self._target)  # unlike a rename, it fails if the name is taken
        except OSError as reason:
            if reason.errno not in _NO_LINKS:
                raise
            if self._target.exists():
                raise FileExistsError(str(self._target)) from None
            self._hidden.rename(self._target)
        self._hidden.unlink(missing_ok=True)
        return size

    def drop(self) -> None:
        """Discard bytes that are not kept."""
        self.file.close()
        self._hidden.unlink(missing_ok=True)


def inside(root: Path, path: str) -> Path:
    """Return the path of a file or folder in ``root``; raise StorageError if a link leads out of it."""
    found = root / path
    if not found.resolve().is_relative_to(root.resolve()):
        raise StorageError(
            f"{found} leads out of the archive {root}, to {found.resolve()}: a link was put there; remove it, or mount "
            "its target"
        )
    return found


def _own(path: str, flags: int) -> int:
    """Open a file of the archive itself, without following a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[str | None]:
    """Hold a file's lock in the block; yield the owner if it is another process, else None."""
    with open(path, "a+", opener=_own) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read().strip() or "unknown"
            return
        if not os.fstat(file.fileno()).st_nlink:  # the file and its directory were removed after it was opened
            yield "that ends now"
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield None
