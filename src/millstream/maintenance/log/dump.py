"""The records of a log, chosen by position, time, key and kind."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from millstream import glob
from millstream.errors import StorageError
from millstream.maintenance.log.moment import ANY, Moment
from millstream.maintenance.log.records import Change, LogRecord, read_record
from millstream.maintenance.log.walk import RawRecord, expect_log, records
from millstream.persistence.disk import Disk, RealDisk, disk_error
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.segment import read_header, salvage

_Fits: TypeAlias = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """Filter for records and their changes."""

    start: Moment = ANY  # First record, by position or time
    end: Moment = ANY  # Last record, by position or time
    key: str | None = None  # Pattern of the changed key, as for KEYS and SCAN
    streams: bool = False  # Show only changes of streams, their groups and consumers
    past_damage: bool = False  # Continue after damage with the intact records there


def dump(path: Path, choice: Choice, disk: Disk | None = None) -> Iterator[LogRecord]:
    """Yield the chosen records in order, as of the moment of the call. This works next to a running server too."""
    disk, path = disk or RealDisk(), path.absolute()
    pattern = glob.rule(choice.key.encode(errors="surrogateescape")) if choice.key is not None else None
    try:
        if path.is_file():
            yield from _chosen(_of_kept(disk, path), choice, pattern)
            return
        with FrozenView(disk, path) as view:
            expect_log(view, path)
            raw = records(view, path, start=choice.start.position or 1, past_damage=choice.past_damage)
            yield from _chosen(raw, choice, pattern)
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error


def _of_kept(disk: Disk, path: Path) -> Iterator[RawRecord]:
    """Yield the records of a file that a cut kept. It was damaged, so the whole file is searched for whole records."""
    with closing(disk.open_read(path)) as file:
        header = read_header(file, path)
        for _, position, payload in salvage(file, header, HEADER_SIZE, 0):
            yield position, payload


def _chosen(raw: Iterator[RawRecord], choice: Choice, pattern: _Fits | None) -> Iterator[LogRecord]:
    for position, payload in raw:
        if choice.end.position is not None and position > choice.end.position:
            return
        if choice.start.position is not None and position < choice.start.position:
            continue
        try:
            record = read_record(position, payload)
        except StorageError:
            if choice.past_damage:
                continue
            raise
        if not _in_time(record, choice):
            continue
        changes = tuple(change for change in record.changes if _wanted(change, choice, pattern))
        if changes:
            yield record if len(changes) == len(record.changes) else replace(record, changes=changes)


def _in_time(record: LogRecord, choice: Choice) -> bool:
    # Each record is tested, since the clock may have been set back: a record outside of the range ends nothing
    if choice.start.ms is not None and record.wall < choice.start.ms:
        return False
    return choice.end.ms is None or record.wall <= choice.end.ms


def _wanted(change: Change, choice: Choice, pattern: _Fits | None) -> bool:
    if choice.streams and not change.of_stream:
        return False
    if pattern is None:
        return True
    return change.key is not None and pattern(change.key)
