"""A point in the log by position or by time, for point-in-time recovery.

Each record has the wall time at which its command ran. A moment covers all records before the first one with a later
time. If the clock was set back in between, all records after that one are left out, even those with an earlier time.
"""

from dataclasses import dataclass
from pathlib import Path

from millstream import times
from millstream.errors import UsageError
from millstream.maintenance.log.records import wall_of
from millstream.maintenance.log.walk import records
from millstream.persistence.disk import Disk
from millstream.persistence.manifest import Manifest

_EPOCH_FROM = 10_000_000_000  # a plain number from here on is milliseconds since 1970 (from April 1970), not a position


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in the log. One of the two fields is given, or neither for :data:`ANY`."""

    position: int | None = None  # Position of a record
    ms: int | None = None  # Wall milliseconds


ANY = Moment()
"""No limit: the whole log."""


def parse_moment(word: str, now_ms: int) -> Moment:
    """Return the moment for a position (``4711``) or a time as :func:`millstream.times.instant` reads it."""
    if word.isdecimal():
        number = int(word)
        return Moment(ms=number) if number >= _EPOCH_FROM else Moment(position=number)
    try:
        return Moment(ms=times.instant(word, now_ms))
    except ValueError as reason:
        raise UsageError(f"{word!r} is not a position in a log, such as 4711, nor a time: {reason}") from None


def last_before(disk: Disk, directory: Path, manifest: Manifest, until: Moment) -> int:
    """Return the position of the last record that belongs to a moment."""
    base = last = manifest.begin - 1
    if until.position is not None and until.position < base:
        raise UsageError(
            f"the snapshot in {directory} holds everything up to record {base} as one state, and position "
            f"{until.position} is before it: take an older backup"
        )
    for position, payload in records(disk, directory):
        if until.position is not None and position > until.position:
            break
        if until.ms is not None and wall_of(position, payload) > until.ms:
            break
        last = position
        if position == until.position:  # damage after it does not matter here
            break
    if until.position is not None and until.position != last:
        raise UsageError(f"the log in {directory} ends with record {last}, before position {until.position}")
    if until.ms is not None and last == base and manifest.snapshot is not None:
        raise UsageError(
            f"the snapshot in {directory} holds everything up to record {base} as one state, and that record may be "
            "later than the moment asked for: take an older backup, or leave the moment out"
        )
    return last
