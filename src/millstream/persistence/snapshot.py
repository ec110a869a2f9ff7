"""A snapshot: one file that replaces every record of the log up to a position. It is written once, then only read.

The file is a header and frames as in a log file (see ``frame``), with a magic of its own. Each frame holds one opaque
payload, numbered 0, 1, 2, ..., and a seal ends it. Its name has the position and its identity.

Nothing names the file while it is being written. It becomes part of the log when the manifest names it, and only after
it was synced and read back. Its writer, or another process in parallel, reads it back piece by piece.

Damage is never cut away, since no other file has the contents: a start is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, islice
from pathlib import Path

from millstream.errors import LogCorruptError
from millstream.persistence.disk import Disk, DiskFile, datasync, put, tried, tried_each
from millstream.persistence.frame import (
    FRAME_SIZE,
    SNAPSHOT_MAGIC,
    Entropy,
    FileHeader,
    decode_head,
    encode_records,
    encode_seal,
)
from millstream.persistence.manifest import SnapshotEntry, snapshot_name
from millstream.persistence.segment import Scan, ScanResult, TailState, assess, open_file, read_header
from millstream.texts import plural

# Bytes between syncs of a snapshot: one sync of a large file would delay the log's own syncs
SYNC_BYTES = 8 << 20
# Smallest number of bytes in one write, except for the last; one payload is never divided
WRITE_BYTES = 1 << 18


def new_entry(last: int, entropy: Entropy) -> SnapshotEntry:
    """Return the manifest entry of a new snapshot of all records up to a position."""
    identity = FileHeader.new(last + 1, entropy, SNAPSHOT_MAGIC).identity
    return SnapshotEntry(snapshot_name(last, identity), last, identity)


def write_snapshot(
    disk: Disk,
    directory: Path,
    entry: SnapshotEntry,
    payloads: Iterable[bytes],
    on_synced: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the file, sealed and on the medium; its name is durable after ``sync_directory``."""
    header = FileHeader.of(entry.identity, entry.last + 1, SNAPSHOT_MAGIC)
    with closing(disk.create(directory / entry.name)) as file:
        put(file, header.encode())
        number = unsynced = synced = 0
        for run in _runs(payloads):
            put(file, b"".join(encode_records(header, run, number, 0)))
            number += len(run)
            unsynced += sum(map(len, run))
            if unsynced >= SYNC_BYTES:
                synced, unsynced = _sync(file, synced, on_synced), 0
        put(file, encode_seal(header, number))
        _sync(file, synced, on_synced)


def _runs(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Join small payloads to runs, since each run is one write."""
    run: list[bytes] = []
    size = 0
    for payload in payloads:
        run.append(payload)
        size += len(payload)
        if size >= WRITE_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _sync(file: DiskFile, before: int, on_synced: Callable[[int], None]) -> int:
    """Make written bytes durable, given the number that already are; return the new number.

    Bytes that another process has read back meanwhile may stay in memory, for the next start.
    """
    datasync(file)
    file.drop_cache(before)
    on_synced(size := file.size())
    return size


@contextmanager
def _opened(disk: Disk, directory: Path, entry: SnapshotEntry) -> Iterator[tuple[DiskFile, FileHeader]]:
    path = directory / entry.name
    with closing(open_file(disk, path, f"all records up to {entry.last}")) as file:
        yield file, read_header(file, path, FileHeader.of(entry.identity, entry.last + 1, SNAPSHOT_MAGIC))


def examine_snapshot(
    disk: Disk, directory: Path, entry: SnapshotEntry, tick: Callable[[int], None] | None = None
) -> ScanResult:
    """Read a snapshot to its end; the result's ``records`` are its payloads."""
    with _opened(disk, directory, entry) as (file, header):
        scan = Scan(file, header, file.size())
        for _ in scan.runs():
            if tick is not None:
                tick(scan.end)
        return assess(scan)


def sealed_size(disk: Disk, directory: Path, entry: SnapshotEntry) -> int:
    """Return the size in bytes of a snapshot that was just written; only its seal is checked."""
    with _opened(disk, directory, entry) as (file, header):
        size = file.size()
        head = decode_head(header, file.read_at(size - FRAME_SIZE, FRAME_SIZE), 0)
    if head is None or head.unsynced:
        path = directory / entry.name
        raise LogCorruptError(f"{path} has no seal at its end", path=str(path), offset=size)
    return size


def damage(directory: Path, entry: SnapshotEntry, result: ScanResult) -> LogCorruptError | None:
    """Return an error if a snapshot cannot be used; otherwise None."""
    if result.state is TailState.WHOLE and result.sealed:
        return None
    path = directory / entry.name
    behind = plural(result.whole_behind, "whole payload")
    lost = f"{plural(result.rest, 'byte')} with {behind} behind it" if result.rest else "its end"
    return LogCorruptError(
        f"{path}: the snapshot is damaged or cut short at byte {result.end}, after {result.records} whole payloads; "
        f"starting without the rest would lose {lost}. It alone holds the records up to {entry.last}. "
        "Nothing was changed",
        path=str(path),
        offset=result.end,
    )


def snapshot_payloads(
    disk: Disk,
    directory: Path,
    entry: SnapshotEntry,
    tick: Callable[[int], None] | None = None,
    synced: Iterable[int] = (),
) -> Iterator[bytes]:
    """Yield the payloads in order; raise at the end if the snapshot is not whole. Memory is bounded by the largest."""
    doing = f"cannot read {directory / entry.name}"
    sizes = iter(synced)
    first = list(islice(sizes, 1))  # the file may not exist before the first item
    with ExitStack() as stack:
        file, header = tried(lambda: stack.enter_context(_opened(disk, directory, entry)), doing)
        scan = Scan(file, header, 0)
        for scan.size in chain(first, sizes, _size(file, doing)):
            for run in tried_each(scan.runs(), doing):
                yield from run
                if tick is not None:
                    tick(scan.end)
        if broken := damage(directory, entry, tried(lambda: assess(scan), doing)):
            raise broken


def _size(file: DiskFile, doing: str) -> Iterator[int]:
    """Yield the size of a file, read only when the iterator runs."""
    yield tried(file.size, doing)
