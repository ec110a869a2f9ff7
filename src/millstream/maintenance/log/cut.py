"""Cutting of a damaged log on purpose: the data after a given byte leaves the log and is kept in files next to it.

No step loses data silently: until the last step the server refuses to start, and the same cut can be repeated.
"""

import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.errors import LogCorruptError, StorageError, UsageError
from millstream.maintenance.log.next_steps import dump_step, safety_steps
from millstream.maintenance.log.walk import scanned
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, RealDisk, datasync, put, tried
from millstream.persistence.frame import HEADER_SIZE, FileHeader
from millstream.persistence.inventory import size_of
from millstream.persistence.lockfile import take_lock
from millstream.persistence.manifest import Manifest, SegmentEntry, is_segment_name, read_manifest
from millstream.persistence.recovery import begin_segment, copy_from, free_name, switch_manifest
from millstream.persistence.segment import read_header

PREFIX = "cut-"


@dataclass(frozen=True, slots=True)
class CutReport:
    """The result of a cut."""

    kept: tuple[Path, ...]  # Files with the records that were cut; ``millstream log dump`` reads them
    bytes: int  # Number of bytes cut in total


def cut(directory: Path, name: str, offset: int, disk: Disk | None = None) -> CutReport:
    """End the log at a byte of a file."""
    return tried(lambda: _cut(directory, name, offset, disk or RealDisk()), f"cannot cut the log in {directory}")


def _cut(directory: Path, name: str, offset: int, disk: Disk) -> CutReport:
    lock = take_lock(disk, directory)
    try:
        return _Truncation(disk, directory, name, offset).make()
    finally:
        lock.release()


def _manifest_of(disk: Disk, directory: Path) -> Manifest:
    """Return the manifest, or raise an error with advice. Without a manifest, the result of a cut is unknown."""
    steps = " ".join((*safety_steps(directory), dump_step(directory)))
    try:
        manifest = read_manifest(disk, directory)
    except LogCorruptError as error:
        raise LogCorruptError(f"{error}, and nothing can be cut. {steps}", path=error.path, offset=0) from None
    if manifest is None:
        raise StorageError(
            f"{directory} has no manifest, which lists the files of its log, so it cannot be cut. {steps}"
        )
    return manifest


class _Truncation:
    """One cut, from the checks before any change to the last rename."""

    def __init__(self, disk: Disk, directory: Path, name: str, offset: int) -> None:
        manifest = _manifest_of(disk, directory)
        names = [entry.name for entry in manifest.segments]
        self.disk, self.directory, self.offset = disk, directory, offset
        self.manifest = manifest
        self.there = disk.list(directory)
        if name in names:
            at = names.index(name)
            self.entry: SegmentEntry = manifest.segments[at]
            self.kept = manifest.segments[: at + (offset > 0)]
        elif not offset and is_segment_name(name) and len(name) == len(names[-1]) and name > names[-1]:
            # An earlier cut was interrupted here
            self.entry, self.kept = manifest.segments[-1], manifest.segments
        else:
            raise UsageError(f"{name!r} is not a file of the log in {directory}; these are: {', '.join(names)}")
        self.size = size_of(disk, directory / name)
        self._check_versions()
        self._check_place()

    def _check_versions(self) -> None:
        """Refuse a log that a newer version wrote: this version must not cut it."""
        for name in filter(is_segment_name, self.there):
            # The log is corrupt, so ignore errors of this check
            with closing(self.disk.open_read(self.directory / name)) as file, suppress(LogCorruptError):
                read_header(file, self.directory / name)

    def _check_place(self) -> None:
        """Raise an error unless a record ends at the given byte."""
        if not self.offset:
            return
        end = 0
        if self.size >= HEADER_SIZE:
            with closing(self.disk.open_read(self.directory / self.entry.name)) as file:
                end = scanned(file, FileHeader.of(self.entry.identity, self.entry.first), self.offset).end
        if end != self.offset:
            raise UsageError(
                f"no record ends at byte {self.offset} of {self.entry.name}; the last one before it ends at {end}: cut "
                f"at {self.entry.name}:{end}"
            )

    def make(self) -> CutReport:
        """Carry out the cut; see :func:`cut`."""
        gone = self._leaving()
        rest = self.size - self.offset if self.offset else 0
        if not gone and not rest and self.entry.name in self.there:
            raise UsageError(f"nothing follows byte {self.offset} of {self.entry.name}, so there is nothing to cut")
        total = rest + sum(size_of(self.disk, self.directory / name) for name in gone)
        self._clear_up()
        kept = [self._copy_from(self.entry, self.offset, f"{self.entry.name}-{self.offset}")] if rest else []
        kept += self._copy_headless(gone)
        if self.kept:
            switch_manifest(self.disk, self.directory, replace(self.manifest, segments=self.kept))
            if rest:
                self._truncate()
            kept += self._set_aside(gone)
        else:
            kept += self._set_aside(gone)
            begin_segment(self.disk, self.directory, self.entry.first, os.urandom, self.manifest)
        return CutReport(tuple(kept), total)

    def _leaving(self) -> list[str]:
        """Return the log files that the cut removes from the log, and those that were not part of it before."""
        stay = {entry.name for entry in (*self.kept, *self.manifest.obsolete)}
        return [name for name in self.there if is_segment_name(name) and name not in stay]

    def _clear_up(self) -> None:
        """Remove the unused new manifest that an interrupted cut left."""
        if manifests.NEW_NAME in self.there:
            self.disk.remove(self.directory / manifests.NEW_NAME)

    def _copy_from(self, entry: SegmentEntry, offset: int, stem: str) -> Path:
        """Copy a log file from a byte on, after a whole header, without which it would be unreadable."""
        path = free_name(self.disk, self.directory, PREFIX + stem)
        with closing(self.disk.open_read(self.directory / entry.name)) as old, closing(self.disk.create(path)) as new:
            put(new, FileHeader.of(entry.identity, entry.first).encode())
            copy_from(old, new, offset, old.size())
            datasync(new)
        self.disk.sync_directory(self.directory)
        return path

    def _truncate(self) -> None:
        with closing(self.disk.open_append(self.directory / self.entry.name)) as file:
            file.truncate(self.offset)
            datasync(file)

    def _set_aside(self, names: list[str]) -> list[Path]:
        paths = []
        for name in names:
            path = free_name(self.disk, self.directory, f"{PREFIX}{name}")
            self.disk.rename(self.directory / name, path)
            paths.append(path)
        self.disk.sync_directory(self.directory)
        return paths

    def _copy_headless(self, names: list[str]) -> list[Path]:
        """Copy the files with a damaged header, with the right header from the current manifest."""
        entries = [entry for entry in self.manifest.segments if entry.name in names and not self._has_header(entry)]
        return [self._copy_from(entry, HEADER_SIZE, f"{entry.name}-mended") for entry in entries]

    def _has_header(self, entry: SegmentEntry) -> bool:
        with closing(self.disk.open_read(self.directory / entry.name)) as file:
            return file.read_at(0, HEADER_SIZE) == FileHeader.of(entry.identity, entry.first).encode()
