"""The part of an archive job that needs no Spark: takes batches in, merges small files, trims, and tells how far it is.

One of these holds the archive's lock. The manifest it has in hand is the one on disk, or an older one for the moment of
a switch; whoever trims goes by that.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from millstream.errors import UsageError
from millstream.failpoints import reach
from millstream.spark.archiving.directory import Folder, inside
from millstream.spark.archiving.files import hour_of, merge
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile, mergeable
from millstream.spark.archiving.trim import Keep, Trimmed, Trimmer
from millstream.spark.model import offsets
from millstream.spark.model.offsets import ZERO, Position, StreamState

TARGET_BYTES = 128 << 20


@dataclass(frozen=True)
class ArchiveSettings:
    """What an archive job is to do.

    Attributes:
        url: of the server.
        streams: keys; empty with a pattern.
        to: the archive's directory.
        pattern: glob of keys instead.
        once: end when everything that was there at the start is archived.
        every: seconds between batches.
        per_batch: entries of a batch at most.
        trim: whether the streams are trimmed.
        keep: what stays in a stream though it could go.
        skip_lost: go on when entries were trimmed by others before they were archived.
        target_bytes: of a file, about.
    """

    url: str
    streams: tuple[str, ...]
    to: Path
    pattern: str | None = None
    once: bool = False
    every: float = 10.0
    per_batch: int = 200_000
    trim: bool = True
    keep: Keep = field(default_factory=Keep)
    skip_lost: bool = False
    target_bytes: int = TARGET_BYTES


@dataclass
class Progress:
    """What one stream came to.

    Attributes:
        stream: its key.
        archived: entries archived by this job.
        upto: archived up to this id.
        total: entries in the archive.
        trimmed: entries removed from the stream by this job.
        left: entries still in the stream after the last look.
        held_by: what keeps the next one there, in words.
    """

    stream: str
    archived: int = 0
    upto: str = "0-0"
    total: int = 0
    trimmed: int = 0
    left: int | None = None
    held_by: str = ""


class ArchiveStore:
    """The archive of a running job.

    Args:
        settings: of the job.
    """

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings
        self._trimmer = Trimmer(settings.url, settings.keep)
        self._progress: dict[str, Progress] = {}
        self.folder = Folder(settings.to)
        self.manifest = ArchiveManifest()
        self.busy = threading.Lock()
        """Held while a batch is taken: a job ends between batches, not in one."""
        self._closed = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Have the archive: locked, its manifest read, what a killed job left removed.

        Raises:
            ArchiveLockedError: another job has it.
            ConfigError: the directory holds something else.
            ManifestError: it is damaged.
        """
        with self.folder.locked():
            self.manifest = self.folder.sweep(self.folder.begin())
            for stream in self.manifest.places:
                self._progress_of(stream)
            try:
                yield
            finally:
                self._trimmer.close()

    # --- what is archived --------------------------------------------------------------------------------------------

    def check(self, states: Mapping[str, StreamState | None]) -> None:
        """See that the streams can be archived on from where the archive ends.

        Raises:
            UsageError: one of them went back, so its entries would be taken for archived or passed over.
        """
        for stream, state in states.items():
            at = self.manifest.places.get(stream)
            if at is None:
                continue
            reason = offsets.how_it_went_back(Position(ZERO, 0, at.id, at.n), state)
            if reason is not None:
                raise UsageError(
                    f"stream {stream!r} went back: it is archived up to {at.id} (entry {at.n}), but {reason}. It was "
                    "deleted and made anew, or restored from an older state; nothing was archived or trimmed. Archive "
                    "it into a new directory"
                )

    def take(
        self, label: str, ranges: Mapping[str, Position], write: Callable[[Path, str], Sequence[DataFile]]
    ) -> None:
        """Archive one batch: all of it, or nothing.

        Args:
            label: begins the names of its files.
            ranges: by stream what was read.
            write: writes the entries into files below a directory, and tells of them.
        """
        with self.busy:
            if self._closed:  # the query is about to be stopped; the next run archives this
                return
            reach("batch")
            files = write(self.folder.root, label)
            self.folder.sync_parents(file.path for file in files)
            reach("written")
            self._switch(self.manifest.with_batch(ranges, files))
            for file in files:
                self._progress_of(file.stream).archived += file.rows
            for stream in ranges:
                self._progress_of(stream)
            self._merge(label)

    def take_no_more(self) -> None:
        """Take no further batch; returns when the one under way is taken."""
        with self.busy:
            self._closed = True

    def _switch(self, new: ArchiveManifest) -> None:
        self.folder.switch(self.manifest, new)
        self.manifest = new

    def _progress_of(self, stream: str) -> Progress:
        found = self._progress.setdefault(stream, Progress(stream))
        found.upto = str(self.manifest.place(stream).id)
        found.total = sum(file.rows for file in self.manifest.files if file.stream == stream)
        return found

    def _merge(self, label: str) -> None:
        for run in list(self._mergeable()):
            new = merge(self.folder.root, run, f"{label}-merged")
            self.folder.sync_parents(file.path for file in new)
            reach("merged")
            self._switch(self.manifest.with_merged(run, new))
            for file in run:  # a reader that began before finds its rows in the new file
                reach("sweeping")
                inside(self.folder.root, file.path).unlink(missing_ok=True)

    def _mergeable(self) -> Iterator[list[DataFile]]:
        for (stream, hour), files in groupby(self.manifest.files, lambda file: (file.stream, hour_of(file))):
            closed = hour_of_place(self.manifest, stream) > hour
            yield from mergeable(list(files), closed=closed, target=self._settings.target_bytes)

    # --- what is trimmed ---------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Remove from the streams what is archived and needed by nobody.

        Raises:
            UsageError: a stream went back, or the server refused.
        """
        if not self._settings.trim:
            return
        manifest = self.manifest
        for stream in self._mine(manifest.places):
            found = self._trimmer.trim(stream, manifest.places[stream])
            progress = self._progress_of(stream)
            progress.trimmed += found.count
            progress.left, progress.held_by = found.left, found.held_by

    def look(self, stream: str, archived: ArchivePosition) -> Trimmed:
        """What of a stream could be removed if it were archived up to there."""
        return self._trimmer.look(stream, archived)

    def _mine(self, streams: Iterable[str]) -> list[str]:
        """Of the archive's streams those of this job: others may be gone for good reason."""
        named = self._settings.streams
        return [stream for stream in sorted(streams) if not named or stream in named]

    def report(self) -> list[Progress]:
        """What the job came to, stream by stream."""
        return [self._progress[stream] for stream in self._mine(self._progress)]


def hour_of_place(manifest: ArchiveManifest, stream: str) -> int:
    """The hour, since 1970, to which a stream is archived: none before it can grow any more."""
    return manifest.place(stream).id.ms // 3_600_000
