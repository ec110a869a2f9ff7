"""Detection of records that a start or a rewrite of the log cannot use, although their checksums are right.

Each record is applied with the code of a start, and the result is written and read back as in a rewrite. So this takes
as much memory as a start, plus the largest value once more.
"""

from collections.abc import Iterator
from pathlib import Path

from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.snapshot import transitions
from millstream.errors import StorageError
from millstream.maintenance.log.records import NewerRecordError, expect_record
from millstream.maintenance.log.walk import log_files, records
from millstream.node.log import replay
from millstream.node.log.packs import lacking_packs, sizes_of
from millstream.persistence.check import CheckReport, Problem
from millstream.persistence.disk import Disk
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.inventory import Meter, Progress, size_of
from millstream.persistence.manifest import Manifest
from millstream.persistence.snapshot import snapshot_payloads

_Placed = tuple[Path, int, int | None, bytes]
"""A record's file, its first byte, its position (None in a snapshot) and its payload."""


def find_unreadable(disk: Disk, report: CheckReport, manifest: Manifest, tell: Progress | None) -> Keyspace | None:
    """Add the first record that a start cannot apply, if any, to the report of a log without other damage.

    Returns:
        The loaded data; None if a record cannot be applied.
    """
    home = report.directory
    sizes = {name: size_of(disk, home / name) for name in manifest.names}
    meter = Meter("read", sum(sizes.values()), tell)
    whole = 0
    space, path, offset = Keyspace(), home, 0
    for path, offset, position, payload in _placed(disk, home, manifest, meter):
        try:
            expect_record(position or 0, payload)
            replay.apply(space, payload)
        except MemoryError as error:
            raise StorageError(f"there is no memory to check {home}, which takes as much as a start") from error
        except Exception as error:  # noqa: BLE001 - any class, as at a start
            reason = str(error) if isinstance(error, StorageError) else f"{error!r:.200}"
            where = f"the record at byte {offset}" if position is None else f"record {position}"
            text = f"{path}: {where} is as it was written, but this program cannot apply it: {reason}"
            newer = isinstance(error, NewerRecordError)
            report.problems.append(Problem(str(path), offset, text, refuses=True, newer=newer))
            behind = [log.name for log in manifest.segments if position is None or log.name > path.name]
            report.lost_records, report.records = report.records - whole, whole
            report.lost_bytes = sizes[path.name] - offset + sum(sizes[name] for name in behind)
            return None
        whole += position is not None
    try:
        _expect_rewritable(space)
    except Exception as error:  # noqa: BLE001 - any class, as at a start
        text = f"{path}: the log is as it was written, but a snapshot of it could not be read back: {error!r:.200}"
        report.problems.append(Problem(str(path), offset, text, refuses=True))
    meter.finish()
    _find_lacking_packs(disk, report, manifest, space)
    return space


def _find_lacking_packs(disk: Disk, report: CheckReport, manifest: Manifest, space: Keyspace) -> None:
    """Add each pack that lacks extents of the records, which refuses a start, unless the report has it as refusing."""
    known = {problem.path for problem in report.problems if problem.refuses}
    sizes = sizes_of(disk, report.directory, manifest)
    for each in lacking_packs(space, report.directory, manifest.packs, sizes):
        path, size = str(report.directory / each.name), sizes.get(each.number, 0)
        if path not in known:
            report.problems.append(Problem(path, min(each.end, size), each.reason, refuses=True))


def _expect_rewritable(space: Keyspace) -> None:
    """Apply the transitions of a snapshot, one key at a time, each key to a new empty keyspace."""
    one, at = Keyspace(), None
    for step in transitions(space):
        if step[1:3] != at:
            one, at = Keyspace(), step[1:3]
        one.apply(step)


def _placed(disk: Disk, directory: Path, manifest: Manifest, meter: Meter) -> Iterator[_Placed]:
    """Yield every record of a whole log with its file and byte.

    The byte is computed from the payload sizes, since payloads come without it.
    """
    if manifest.snapshot is not None:
        path, offset = directory / manifest.snapshot.name, HEADER_SIZE
        for payload in snapshot_payloads(disk, directory, manifest.snapshot, meter.at):
            yield path, offset, None, payload
            offset += FRAME_SIZE + len(payload)
        meter.base += offset
    files = iter(log_files(disk, directory))
    path, offset, following = directory, 0, next(files, None)
    for position, payload in records(disk, directory):
        while following is not None and following.first <= position:
            meter.base += offset
            path, offset, following = directory / following.name, HEADER_SIZE, next(files, None)
        yield path, offset, position, payload
        offset += FRAME_SIZE + len(payload)
        meter.at(offset)
