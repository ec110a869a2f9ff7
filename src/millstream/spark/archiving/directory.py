"""An archive's directory: one manifest that is switched whole, a lock, names for files, removing what nobody names.

A file is durable before the manifest names it, and the manifest is durable before anything is done because of it. The
lock keeps two jobs apart on one machine; where a file system does not carry locks from machine to machine, the
manifest's generation does: a job that finds another's stops.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from millstream.errors import ConfigError, NotFoundError, StorageError
from millstream.failpoints import reach
from millstream.spark.archiving import manifest as manifests
from millstream.spark.archiving.manifest import ArchiveManifest

MANIFEST = "_manifest.json"
LOCK = "_lock"
SCRATCH = "_run"
"""Underscores in front: readers of Parquet directories pass over such names."""

_LONGEST = 180
_LAST_MS = 253_402_300_799_999


class ArchiveLockedError(StorageError):
    """Another job writes to this archive.

    What to do: wait until the other job has ended, or archive into another directory.
    """


class NoArchiveError(NotFoundError):
    """The directory that was named holds no archive.

    What to do: correct the path; every machine of Spark must see it.
    """


class Folder:
    """The directory of one archive.

    Args:
        root: where it is, or shall be.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs out while this runs; the directory is made if there is none.

        Raises:
            ArchiveLockedError: another job has it.
            ConfigError: the directory holds something else.
        """
        if self.root.exists() and not (self.root / MANIFEST).exists() and self._foreign():
            raise ConfigError(
                f"{self.root} is not empty and no archive (it has no {MANIFEST}): give a directory of its own"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / LOCK, "a+", opener=_own) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise ArchiveLockedError(
                    f"the archive {self.root} is being written by process {holder}: one job an archive; wait for it or "
                    "stop it"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def _foreign(self) -> list[str]:
        begun = (LOCK, SCRATCH, f"{MANIFEST}.new")  # by a job that was killed before its first manifest
        return [entry.name for entry in self.root.iterdir() if entry.name not in begun]

    def read(self) -> ArchiveManifest:
        """The manifest as it is now.

        Raises:
            NoArchiveError: there is none.
            ManifestError: it is damaged.
        """
        try:
            return manifests.load((self.root / MANIFEST).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise NoArchiveError(
                f"{self.root} is no archive (it has no {MANIFEST}): name what `millstream archive --to` wrote"
            ) from None

    def begin(self) -> ArchiveManifest:
        """The manifest, made if this is a new archive; only under the lock."""
        if not (self.root / MANIFEST).exists():
            self._replace(ArchiveManifest(1))
        return self.read()

    def switch(self, old: ArchiveManifest, new: ArchiveManifest) -> None:
        """Put a new manifest in the place of the old one: durable when this returns.

        Raises:
            StorageError: the manifest on disk is not the old one.
        """
        there = self.read().generation
        if there != old.generation:
            raise StorageError(
                f"the archive {self.root} was written by another job meanwhile (generation {there}, not "
                f"{old.generation}): this job stops; run one job an archive"
            )
        self._replace(new)

    def _replace(self, new: ArchiveManifest) -> None:
        fresh = self.root / f"{MANIFEST}.new"
        with open(fresh, "w", encoding="utf-8", opener=_own) as file:
            file.write(manifests.dump(new))
            file.flush()
            os.fsync(file.fileno())
        reach("switching")
        fresh.replace(self.root / MANIFEST)
        sync_folder(self.root)
        reach("switched")

    def sync_parents(self, paths: Iterable[str]) -> None:
        """Make the names of new files durable, and those of the folders they are in."""
        folders = {folder for path in paths for folder in Path(path).parents}
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            sync_folder(inside(self.root, str(folder)))

    def sweep(self, manifest: ArchiveManifest) -> ArchiveManifest:
        """Remove the data files that the manifest does not name; the manifest that is true then.

        Only under the lock: they are what a job that was killed had begun. Where locks do not reach they may be what
        another job is at, so the generation changes first: that job stops before it names files that are gone.
        """
        needed = {file.path for file in manifest.files}
        found = [path for path in self.root.glob("stream=*/**/*") if path.is_file()]
        gone = [path for path in found if path.relative_to(self.root).as_posix() not in needed]
        if not gone:
            return manifest
        fresh = replace(manifest, generation=manifest.generation + 1)
        self.switch(manifest, fresh)
        for path in gone:
            reach("sweeping")
            inside(self.root, path.relative_to(self.root).parent.as_posix())
            path.unlink(missing_ok=True)
        return fresh


def inside(root: Path, path: str) -> Path:
    """A file or folder of the archive in ``root``.

    Raises:
        StorageError: a link leads out of the archive: what is written or removed there would be somebody else's.
    """
    found = root / path
    if not found.resolve().is_relative_to(root.resolve()):
        raise StorageError(
            f"{found} leads out of the archive {root}, to {found.resolve()}: a link was put there; remove it, or mount "
            "what it leads to"
        )
    return found


def _own(path: str, flags: int) -> int:
    """Open a file of the archive itself, never what a link of its name leads to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hour_folder(stream: str, hour: int) -> str:
    """Where the files of a stream's hour are, in the words of Hive, which Spark and others understand.

    Args:
        stream: its key; characters that file names must not have are escaped as in a URL.
        hour: since 1970; ids past the year 9999 are put into its last hour.
    """
    name = quote(stream, safe="")
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}~{hashlib.sha256(stream.encode()).hexdigest()[:12]}"
    when = datetime.fromtimestamp(min(hour * 3600, _LAST_MS // 1000), UTC)
    return f"stream={name}/date={when.date().isoformat()}/hour={when.hour:02d}"
