"""Rewriting the log: one snapshot replaces the contents of its sealed files, while the log is still written to.

The steps, and the state after a crash between any two of them::

    Log.begin_rewrite()    a new log file is begun; earlier ones get no more      the log as it was, in one file more
    contents, make         another process writes the snapshot                    ... and a file that nothing names
    Log.commit_rewrite()   the manifest names the snapshot, not those files       the new log, and files of no use
    Log.remove_obsolete()  the files of no use are removed                        the new log

Writing the snapshot reads files that do not change and writes one that no other process has. So it needs no lock, and
may be abandoned at any moment. Every file is proved whole while it is read.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.persistence.disk import Disk
from millstream.persistence.inventory import Meter, Progress, segment_payloads, size_of
from millstream.persistence.manifest import Manifest, SegmentEntry, SnapshotEntry
from millstream.persistence.snapshot import snapshot_payloads, write_snapshot


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The sources and the result of one rewrite."""

    source: Manifest  # Sealed log files, and the snapshot before them if there is one
    target: SnapshotEntry  # Snapshot to make

    def encode(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"source": self.source.facts(), "target": asdict(self.target)})

    @classmethod
    def decode(cls, line: str) -> "Rewrite":
        """Return the rewrite of a line from :meth:`encode`."""
        facts = json.loads(line)
        return cls(Manifest.of(facts["source"]), SnapshotEntry(**facts["target"]))


def contents(disk: Disk, directory: Path, rewrite: Rewrite, on_progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the payloads of the source in order; it raises before the end if some are missing."""
    source = rewrite.source
    names = [] if source.snapshot is None else [source.snapshot.name]
    names += [entry.name for entry in source.segments]
    sizes = [size_of(disk, directory / name) for name in names]
    meter = Meter("rewrite", sum(sizes), on_progress)
    if source.snapshot is not None:
        yield from snapshot_payloads(disk, directory, source.snapshot, meter.at)
        meter.base += sizes.pop(0)
    end = SegmentEntry("", rewrite.target.last + 1, "")
    for entry, following, size in zip(source.segments, (*source.segments[1:], end), sizes, strict=True):
        yield from segment_payloads(disk, directory, entry, following, meter.at)
        meter.base += size
    meter.finish()


def _read_through(payloads: Iterator[bytes]) -> None:
    deque(payloads, maxlen=0)


def make(
    disk: Disk,
    directory: Path,
    rewrite: Rewrite,
    payloads: Iterable[bytes],
    read: Callable[[Iterator[bytes]], object] = _read_through,
) -> None:
    """Write the target snapshot, and read it back."""
    write_snapshot(disk, directory, rewrite.target, payloads)
    read(snapshot_payloads(disk, directory, rewrite.target))
