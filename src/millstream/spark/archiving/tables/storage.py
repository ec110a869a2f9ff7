"""The place of an archive: the few operations that its manifest, lock, files and table logs need.

``Storage`` is what a place must have; a local directory is one here, an object store another (``objects``). An object
is whole and durable when the call that puts it returns, or it is not there at all. Paths are below the root, with
slashes.
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
"""What the archive holds: the one object that a place is asked for to see whether it can be used."""

CATALOG = "_catalog.db"
"""Iceberg's catalog, where the archive has its own."""


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
"""What a file system without hard links says: some that are mounted over a network."""


class ChangedMeanwhileError(StorageError):
    """Another program changed the object that the job was about to replace.

    What to do: run only one job for each archive, and run this one again.
    """


class NewObject(Protocol):
    """An object that is being written; it does not exist before it is kept."""

    file: BinaryIO

    def keep(self) -> int:
        """Give it its name, whole; its size in bytes."""

    def drop(self) -> None:
        """Discard bytes that are not kept."""


class Storage(Protocol):
    """A place for one archive."""

    local: Path | None  # The directory, where it is one of this machine; None elsewhere

    @property
    def location(self) -> str:
        """The place in the form for people and the libraries of table formats."""

    def iceberg_properties(self) -> Mapping[str, str]:
        """The properties with which ``pyiceberg`` opens files of this storage."""

    def read(self, path: str) -> bytes:
        """The object's content; raises FileNotFoundError if there is none."""

    def open(self, path: str) -> BinaryIO:
        """The object's content, to be read in any order; FileNotFoundError when nothing is."""

    def exists(self, path: str) -> bool:
        """True if something is there, by asking for it, not by a list."""

    def modified_ms(self, path: str) -> int:
        """Time of the object's put, in milliseconds since 1970."""

    def create(self, path: str) -> NewObject:
        """Something to write, which has its name when it is kept."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put bytes under an unused name; ChangedMeanwhileError if it is used."""

    def replace_if_unchanged(
        self, path: str, old: bytes | None, data: bytes, before: Callable[[], None] = lambda: None
    ) -> None:
        """Replace known bytes; raises ChangedMeanwhileError if another program changed them."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths below a folder; one that is missing here may be there all the same."""

    def top(self) -> set[str]:
        """The names directly below the root."""

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""

    def sync(self, *paths: str) -> None:
        """Make a library's files durable."""

    def sync_names(self, *paths: str) -> None:
        """Make sure that every process finds the kept files after a crash."""

    def locked(self, path: str) -> AbstractContextManager[str | None]:
        """Hold the lock of that name. Yields its owner if that is another job, and None if it is ours."""


class LocalStorage:
    """A directory of this machine, or one that is mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.local: Path | None = root

    @property
    def location(self) -> str:
        """The place in the form for the libraries of table formats."""
        return str(self.root.absolute())

    def iceberg_properties(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def exists(self, path: str) -> bool:
        """True if something is there."""
        return (self.root / path).exists()

    def modified_ms(self, path: str) -> int:
        """Time of the file's last write, in milliseconds since 1970."""
        return int(inside(self.root, path).stat().st_mtime * 1000)

    def top(self) -> set[str]:
        """The names directly in the directory; none without a directory."""
        return {entry.name for entry in self.root.iterdir()} if self.root.exists() else set()

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[str | None]:
        """Hold a file's lock; the directory is made if there is none, and goes again if nothing came into it."""
        new = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.root / path) as holder:
            try:
                yield None if holder is None else f"process {holder}"
            finally:
                if new and holder is None and self.top() == {path}:
                    with contextlib.suppress(OSError):  # another job has come into it meanwhile
                        (self.root / path).unlink()
                        self.root.rmdir()

    def read(self, path: str) -> bytes:
        """The file's content."""
        with self.open(path) as file:
            return file.read()

    def open(self, path: str) -> BinaryIO:
        """The file's content, to be read in any order."""
        return inside(self.root, path).open("rb")

    def create(self, path: str) -> "NewFile":
        """A file to write, which has its name when it is kept."""
        return NewFile(inside(self.root, path))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put bytes under an unused name."""
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
        """Put bytes in the place of others."""
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
        """The files below a folder, those too that are being written."""
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
        """Make the names of files durable, and those of the folders they are in."""
        folders = {folder for path in paths for folder in Path(path).parents}
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            sync_directory(inside(self.root, str(folder)))


class NewFile:
    """A file while it is written, hidden until it is whole."""

    def __init__(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.writing")
        self.file: BinaryIO = self._hidden.open("xb")

    def keep(self) -> int:
        """Give it its name, durable but for the name; its size in bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        self.file.close()
        try:
            os.link(self._hidden, self._target)  # unlike a rename it fails where the name is taken
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
    """A file or folder of the archive in ``root``."""
    found = root / path
    if not found.resolve().is_relative_to(root.resolve()):
        raise StorageError(
            f"{found} leads out of the archive {root}, to {found.resolve()}: a link was put there; remove it, or mount "
            "its target"
        )
    return found


def _own(path: str, flags: int) -> int:
    """Open a file of the archive itself, never the target of a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[str | None]:
    """Hold a file's lock. Yields its owner if that is another process, and None if it is ours."""
    with open(path, "a+", opener=_own) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read().strip() or "unknown"
            return
        if not os.fstat(file.fileno()).st_nlink:  # it was removed, with its directory, after it was opened here
            yield "that ends now"
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield None
