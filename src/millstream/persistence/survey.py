"""Looking over a data directory without changing it: what recovery acts on, and what a check reports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence import manifest as manifests
from millstream.persistence.disk import Disk, disk_error
from millstream.persistence.frame import HEADER_SIZE, FileHeader
from millstream.persistence.manifest import Manifest, SegmentEntry
from millstream.persistence.segment import Scan, State, Verdict, judge, read_header

Progress = Callable[[str, int, int], None]
"""Called with what is being done (``"check"`` or ``"load"``), bytes done and bytes in all; about once a megabyte."""

STEP = 1 << 20


class Meter:
    """Counts bytes and tells a :data:`Progress`, at most once a megabyte and at the end.

    Args:
        what: first argument of each call.
        total: bytes in all.
        tell: who is told, if anyone.

    Attributes:
        base: bytes of the files before the present one.
    """

    def __init__(self, what: str, total: int, tell: Progress | None) -> None:
        self._what = what
        self._total = total
        self._tell = tell
        self._told = 0
        self.base = 0

    def at(self, done: int) -> None:
        """So much of the present file is done."""
        done += self.base
        if self._tell is not None and done - self._told >= STEP:
            self._told = done
            self._tell(self._what, done, self._total)

    def finish(self) -> None:
        """All is done."""
        if self._tell is not None:
            self._tell(self._what, self._total, self._total)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One log file as found.

    Attributes:
        entry: what the manifest says of it.
        header: its header; None if the file is shorter than one.
        verdict: what it holds.
    """

    entry: SegmentEntry
    header: FileHeader | None
    verdict: Verdict


def examine(disk: Disk, directory: Path, entry: SegmentEntry, tick: Callable[[int], None] | None = None) -> Surveyed:
    """Read one log file to its end.

    Raises:
        LogCorruptError: the file is missing, or its header is damaged or another file's.
        FormatError: it is of a version this program does not read.
    """
    path = directory / entry.name
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        raise LogCorruptError(
            f"{path} is missing, which holds the records from {entry.first} on", path=str(path), offset=0
        ) from None
    try:
        size = file.size()
        if size < HEADER_SIZE:
            reason = f"the file header is cut short: {size} of {HEADER_SIZE} bytes"
            return Surveyed(entry, None, Verdict(State.TORN, entry.first, 0, 0, size, reason=reason))
        header = read_header(file, path)
        if header.identity != entry.identity or header.first != entry.first:
            raise LogCorruptError(f"{path} is not the file that the manifest names", path=str(path), offset=0)
        scan = Scan(file, header, size)
        for _ in scan.runs():
            if tick is not None:
                tick(scan.end)
        return Surveyed(entry, header, judge(scan))
    finally:
        file.close()


def gap(directory: Path, found: Surveyed, following: SegmentEntry | None) -> LogCorruptError | None:
    """Why the log cannot go on from this file to the next: the error to raise, or None.

    Args:
        directory: of the log.
        found: the file.
        following: the manifest's next file; None if this is the last, which alone may be torn.
    """
    verdict, path = found.verdict, directory / found.entry.name
    if verdict.state is State.WHOLE or (verdict.state is State.TORN and following is None):
        expected = verdict.first + verdict.records
        if following is None or following.first == expected:
            return None
        why, lost = f"records {expected} to {following.first - 1} are missing", "they"
    else:
        count = f"{verdict.whole_behind} whole record{'' if verdict.whole_behind == 1 else 's'}"
        why, lost = verdict.reason, f"{verdict.rest} bytes with {count}"
        if following is not None:
            lost += f", and every record from {following.first} on"
    return LogCorruptError(
        f"{path}: {why}; starting from here would lose what follows: {lost}. Nothing was changed",
        path=str(path),
        offset=verdict.end,
    )


def unnamed(disk: Disk, directory: Path, manifest: Manifest | None) -> list[tuple[str, int]]:
    """Log files that the manifest does not name, and a manifest that was not switched to; each with its size."""
    named = {entry.name for entry in manifest.segments} if manifest else set()
    return [
        (name, size_of(disk, directory / name))
        for name in disk.list(directory)
        if name == manifests.NEW_NAME or (manifests.is_segment_name(name) and name not in named)
    ]


def holds_records(name: str, size: int) -> bool:
    """Whether a file that no manifest names may hold records, so that it must not be passed over."""
    return manifests.is_segment_name(name) and size > HEADER_SIZE


def strays(disk: Disk, directory: Path, manifest: Manifest | None) -> list[str]:
    """The unnamed files, all safe to remove: a crash while a log file is being added leaves one without records.

    Raises:
        LogCorruptError: one holds records.
    """
    found = unnamed(disk, directory, manifest)
    for name, size in found:
        if holds_records(name, size):
            path = directory / name
            missing = "there is no manifest" if manifest is None else "the manifest does not name it"
            raise LogCorruptError(
                f"{path} holds {size - HEADER_SIZE} bytes of records, but {missing}; starting would leave them "
                "out. Nothing was changed",
                path=str(path),
                offset=HEADER_SIZE,
            )
    return [name for name, _ in found]


def size_of(disk: Disk, path: Path) -> int:
    """Bytes of a file; 0 if it is not there."""
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def survey(
    disk: Disk, directory: Path, manifest: Manifest, on_progress: Progress | None = None
) -> Iterator[tuple[Surveyed, SegmentEntry | None]]:
    """Examine each log file in order; yields it with the manifest's next."""
    sizes = [size_of(disk, directory / entry.name) for entry in manifest.segments]
    meter = Meter("check", sum(sizes), on_progress)
    for number, entry in enumerate(manifest.segments):
        following = manifest.segments[number + 1] if number + 1 < len(manifest.segments) else None
        yield examine(disk, directory, entry, meter.at), following
        meter.base += sizes[number]
    meter.finish()


def payloads_of(disk: Disk, directory: Path, found: Surveyed, tick: Callable[[int], None]) -> Iterator[bytes]:
    """Read again the records of a file that was examined.

    Raises:
        LogCorruptError: it no longer holds them.
        DiskError: the disk cannot be read.
    """
    header, verdict, path = found.header, found.verdict, directory / found.entry.name
    if header is None or not verdict.records:
        return
    doing = f"cannot read {path}"
    try:
        file = disk.open_read(path)
    except OSError as error:
        raise disk_error(doing, error) from error
    try:
        scan = Scan(file, header, verdict.end)
        runs = scan.runs()
        while (run := _next(runs, doing)) is not None:
            yield from run
            tick(scan.end)
        if scan.records != verdict.records:
            raise LogCorruptError(
                f"{path}: record {verdict.first + scan.records} at byte {scan.end} could be read a moment ago, "
                "but not now",
                path=str(path),
                offset=scan.end,
            )
    finally:
        file.close()


def _next(runs: Iterator[list[bytes]], doing: str) -> list[bytes] | None:
    """The next records; only the disk's errors become ours, not those of whoever takes the records."""
    try:
        return next(runs, None)
    except OSError as error:
        raise disk_error(doing, error) from error
