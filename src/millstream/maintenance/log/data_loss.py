"""The losses of a cut: records, times, keys and ids. Only readable records are counted in detail."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from millstream.errors import StorageError
from millstream.maintenance.log.records import Change, added_ids, read_record
from millstream.maintenance.log.walk import RawRecord

MAX_KEYS = 10_000  # number of keys that are listed; further ones are counted, since a log may exceed memory


@dataclass(slots=True)
class KeyLoss:
    """The losses of one key."""

    db: int  # Number of the database
    key: bytes  # Name of the key
    changes: int = 0  # Number of transitions that change it
    entries: int = 0  # Number of stream entries that they add
    first_id: str | None = None  # Id of the first of these entries
    last_id: str | None = None  # Id of the last of these entries
    ops: dict[str, int] = field(default_factory=dict)  # Number of transitions of each op

    def add(self, change: Change) -> None:
        """Count one more change."""
        self.changes += 1
        self.ops[change.op] = self.ops.get(change.op, 0) + 1
        for entry_id in added_ids(change):
            self.entries += 1
            self.first_id = self.first_id or entry_id
            self.last_id = entry_id


@dataclass(slots=True)
class DataLoss:
    """The whole records after a point in the log."""

    records: int = 0  # Number of records
    unreadable: int = 0  # Number of records with a correct checksum that this version cannot read
    first: int | None = None  # Position of the first record
    last: int | None = None  # Position of the last record
    first_ms: int | None = None  # Wall milliseconds of the first record
    last_ms: int | None = None  # Wall milliseconds of the last record
    # Losses by database and key, at most :data:`MAX_KEYS`
    keys: dict[tuple[int, bytes], KeyLoss] = field(default_factory=dict)
    other: int = 0  # Number of transitions of whole databases, and of keys beyond that limit

    def by_weight(self) -> list[KeyLoss]:
        """Return the losses by key, those with the most changes first."""
        weighed = [(-loss.changes, loss.db, loss.key, loss) for loss in self.keys.values()]
        return [loss for *_, loss in sorted(weighed, key=itemgetter(0, 1, 2))]

    def _add(self, position: int, payload: bytes) -> None:
        self.records += 1
        self.first = position if self.first is None else self.first
        self.last = position
        try:
            record = read_record(position, payload)
        except StorageError:
            self.unreadable += 1
            return
        self.first_ms = record.wall if self.first_ms is None else self.first_ms
        self.last_ms = record.wall
        for change in record.changes:
            self._count(change)

    def _count(self, change: Change) -> None:
        if change.key is None or change.db is None:
            self.other += 1
            return
        place = change.db, change.key
        if place not in self.keys:
            if len(self.keys) >= MAX_KEYS:
                self.other += 1
                return
            self.keys[place] = KeyLoss(change.db, change.key)
        self.keys[place].add(change)


def data_loss_in(raw: Iterable[RawRecord]) -> DataLoss:
    """Return the total losses of records such as :func:`~millstream.maintenance.log.walk.records_behind` yields."""
    found = DataLoss()
    for position, payload in raw:
        found._add(position, payload)  # noqa: SLF001 - a class of this module
    return found
