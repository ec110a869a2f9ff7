"""An archive's folder: its manifest, which is replaced as a whole, its lock, and the names and removal of its files.

A file is durable before the manifest names it, and the manifest is durable before the job acts on it. The lock excludes
a second job. Some file systems do not share locks between machines, and a lock can be lost. Then the manifest's
generation excludes it: a job that finds another job's generation stops.
"""

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from millstream.errors import ConfigError, NotFoundError, StorageError
from millstream.failpoints import reach
from millstream.spark.archiving import manifest as manifests
from millstream.spark.archiving.manifest import ArchiveManifest
from millstream.spark.archiving.places import open_storage
from millstream.spark.archiving.tables.folders import stream_folder
from millstream.spark.archiving.tables.shape import Shape, partition_values
from millstream.spark.archiving.tables.storage import CATALOG, MANIFEST_NAME, ChangedMeanwhileError

MANIFEST = MANIFEST_NAME
LOCK = "_lock"
SCRATCH = "_run"
ASIDE = "_unnamed"
"""The names begin with an underscore, so that readers of Parquet directories skip them."""

_NAME = r"(?:\.[^/]+\.writing|[^/]+-[0-9a-f]{16}\.parquet)"
_OURS = re.compile(rf"(?:.*/)?{_NAME}")
_DATA = re.compile(r"(?:.*/)?[^/._][^/]*\.parquet")
"""Names of the files of jobs, finished or not (``_NAME``, ``_OURS``), and names that readers take for data."""


class ArchiveLockedError(StorageError):
    """Another job writes to this archive.

    What to do: wait until the other job has ended, or archive into another directory.
    """


class FilesChangedError(StorageError):
    """Another program removed files of an archive, or added files to it.

    What to do: restore missing files from a backup, and move foreign files out of the archive's directory.
    """


class NoArchiveError(NotFoundError):
    """The named directory has no archive.

    What to do: correct the path. Every machine of Spark must see it.
    """


class Folder:
    """The directory or object-store prefix of one archive."""

    def __init__(self, root: Path | str) -> None:
        self.root = root
        self.storage = open_storage(root)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive's lock in the block; the directory is created if it is missing."""
        if not self.storage.exists(MANIFEST):
            self._check_free()
        with self.storage.locked(LOCK) as holder:
            if holder is not None:
                raise ArchiveLockedError(
                    f"the archive {self.root} is in use by {holder}. Wait for that job, or stop it."
                )
            yield

    def _check_free(self) -> None:
        if self._foreign():
            raise ConfigError(
                f"{self.root} is not empty and is not an archive (it has no {MANIFEST}). Give a new directory."
            )
        around = [] if self.storage.local is None else self.storage.local.resolve().parents
        outer = next((folder for folder in around if (folder / MANIFEST).exists()), None)
        if outer is not None:
            raise ConfigError(
                f"{self.root} is within the archive {outer}, whose readers would mix the two up. Give a "
                "directory outside of it."
            )

    def _foreign(self) -> list[str]:
        begun = (LOCK, SCRATCH, f"{MANIFEST}.new")  # left by a job that was killed before its first manifest
        return [name for name in self.storage.top() if name not in begun and not name.startswith(CATALOG)]

    def read(self) -> ArchiveManifest:
        """Return the present manifest."""
        try:
            return self._loaded(self.storage.read(MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            raise NoArchiveError(
                f"{self.root} is not an archive (it has no {MANIFEST}): give the directory of `millstream archive --to`"
            ) from None

    def _loaded(self, data: bytes) -> ArchiveManifest:
        return manifests.load(data, f"{self.root}/{MANIFEST}")

    def see(self) -> None:
        """Raise if the archive is gone: it may have been removed, or its disk may be unmounted."""
        if not self.storage.exists(MANIFEST):
            raise self._gone()

    def _gone(self) -> FilesChangedError:
        return FilesChangedError(
            f"the archive {self.root} has no {MANIFEST} any more: it was removed, or its disk is away. Nothing more is "
            "trimmed; restore it and run this again, or archive into a new directory"
        )

    def begin(self, shape: Shape) -> ArchiveManifest:
        """Return the manifest, created for a new archive; only under the lock.

        The previous owner of a lock that can be lost may only be asleep. So the manifest is written again under the
        lock. A job that wakes up finds a manifest that it did not write, and stops.
        """
        if not self.storage.exists(MANIFEST):
            self._replace(None, ArchiveManifest(1, shape=shape))
        else:
            there = self.read()
            if self.storage.local is None or there.shape != shape:
                self.switch(there, replace(there, generation=there.generation + 1, shape=shape))
        return self.read()

    def forget(self) -> None:
        """Remove the manifest of a new local archive that is still empty; only under the lock.

        In an object store it stays: a delete cannot be conditional, and another job may have written it meanwhile.
        """
        if self.storage.local is not None and self.storage.top() <= {LOCK, MANIFEST}:
            self.storage.delete(MANIFEST)

    def switch(self, old: ArchiveManifest, new: ArchiveManifest) -> None:
        """Replace the old manifest by a new one, which is durable when this returns."""
        try:
            data = self.storage.read(MANIFEST)
        except FileNotFoundError:
            raise self._gone() from None
        there = self._loaded(data).generation
        if there != old.generation:
            raise StorageError(
                f"the archive {self.root} was written by another job meanwhile (generation {there}, not "
                f"{old.generation}): this job stops; run one job an archive"
            )
        self._replace(data, new)

    def _replace(self, old: bytes | None, new: ArchiveManifest) -> None:
        try:
            self.storage.replace_if_unchanged(
                MANIFEST, old, manifests.dump(new).encode("utf-8"), lambda: reach("switching")
            )
        except ChangedMeanwhileError:
            raise StorageError(
                f"the archive {self.root} was written by another job meanwhile: this job stops; run one job an archive"
            ) from None
        reach("switched")

    def unnamed(self, manifest: ArchiveManifest, streams: Iterable[str]) -> dict[str, list[str]]:
        """Return the data files in each stream's folder that the manifest does not name, by stream.

        Files elsewhere, such as those of another archive below this one, are ignored.
        """
        named = {file.path for file in manifest.files}
        needed = named | {path for path, _ in manifest.retired}
        there = set(self.storage.list())
        lost = [path for path in sorted(named - there) if not self._is_there(path)]
        self._same(lost, sorted(path for path in there - needed if _is_foreign(path)))
        parts = "".join(f"/{name}=[^/]+" for name in partition_values(manifest.shape, 0))
        folders = {stream_folder(manifest.shape, stream): stream for stream in streams}
        depth = 1 if manifest.shape.table is None else 2
        found: dict[str, list[str]] = {}
        for path in sorted(there - needed):
            names = path.split("/")
            folder, below = "/".join(names[:depth]), "/".join(names[depth:])
            if folder in folders and re.fullmatch(f"{parts}/{_NAME}", f"/{below}"):
                found.setdefault(folders[folder], []).append(path)
        return found

    def _is_there(self, path: str) -> bool:
        """Return True if a file that was not listed can be opened: lists of an object store may lag.

        In a directory the file may be behind a link, which may not lead out of the archive.
        """
        try:
            self.storage.open(path).close()
        except FileNotFoundError:
            return False
        return True

    def _same(self, lost: list[str], foreign: list[str]) -> None:
        if lost:
            raise FilesChangedError(
                f"the archive {self.root} has no file {lost[0]!r}, which its manifest names ({len(lost)} such). "
                "Another program removed it. Nothing was archived or trimmed; restore it from a backup, or archive "
                "into a new directory"
            )
        if foreign:
            raise FilesChangedError(
                f"the archive {self.root} has {foreign[0]!r}, which is not one of its files ({len(foreign)} such): "
                "programs that read the folder read it too. Nothing was archived or trimmed; move it elsewhere"
            )

    def set_aside(self, path: str) -> None:
        """Hide a data file from readers by moving it below :data:`ASIDE`; a file already there is the same one."""
        with self.storage.open(path) as old:
            new = self.storage.create(f"{ASIDE}/{path}")
            try:
                shutil.copyfileobj(old, new.file)
                new.keep()
            except FileExistsError:
                pass
            finally:
                new.drop()
        self.storage.sync_names(f"{ASIDE}/{path}")
        self.storage.delete(path)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove data files that no manifest names any more."""
        for path in paths:
            reach("sweeping")
            self.storage.delete(path)


def is_ours(path: str) -> bool:
    """Return True if a data file's name has the form that a job uses."""
    return _OURS.fullmatch(path) is not None


def _is_foreign(path: str) -> bool:
    """Return True if readers of plain files would read a file as the archive's although no job wrote it.

    Readers of Delta and Iceberg tables go by the table's log instead.
    """
    plain = path.startswith("stream=") and _DATA.fullmatch(path) is not None
    return plain and _OURS.fullmatch(path) is None
