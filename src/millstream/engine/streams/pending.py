"""Pending entries: what was delivered and not yet acknowledged, by id and by time.

PURE. Three views of the same records: a group's by id, each consumer's by id, and the group's by time::

    [released entries, first released first][owned entries, oldest delivery first]
     `---------- the NACK zone ----------'

XREADGROUP CLAIM walks the time order from its head; XAUTOCLAIM and XPENDING walk the ids. A record's entry may be gone
from the stream.

Groups may have millions of records, and work through them in any order, so no view may cost their number: finding is a
dictionary, order is :class:`~millstream.engine.streams.ordered.Ordered`. Time could be ordered by the same, yet records
of one millisecond must stay in the order in which they came, and the zone has an order without times; hence the linked
list.
"""

from collections.abc import Iterator

from millstream.engine.streams.ordered import Ordered

# Redis 8.8 never counts past this
MAX_DELIVERIES = 2**63 - 1


class Pending:
    """One record.

    Attributes:
        id: the entry's id.
        consumer: who holds it; None once released by XNACK.
        time: wall milliseconds of the last delivery; 0 once released.
        count: deliveries so far.
        before: the record before this one in time order.
        after: the record after it.
    """

    __slots__ = ("after", "before", "consumer", "count", "id", "time")

    def __init__(self, entry_id: int, consumer: "Consumer | None", time: int, count: int) -> None:
        self.id = entry_id
        self.consumer = consumer
        self.time = time
        self.count = count
        self.before: Pending | None = None
        self.after: Pending | None = None


class IdIndex:
    """Records by id, in id order: a dictionary to find one, beside it the ids in order to walk them."""

    __slots__ = ("_order", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[int, Pending] = {}
        self._order = Ordered()

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self.by_id

    def get(self, entry_id: int) -> Pending | None:
        """The record of this id."""
        return self.by_id.get(entry_id)

    def add(self, record: Pending) -> None:
        """Add a record whose id is not there."""
        self._order.add(record.id)
        self.by_id[record.id] = record

    def sort(self) -> None:
        """Make the order anew, after records were put into ``by_id`` in any other, as when a snapshot is read."""
        self._order = Ordered(sorted(self.by_id))

    def remove(self, entry_id: int) -> None:
        """Remove the record of this id, which must be there."""
        del self.by_id[entry_id]
        self._order.remove(entry_id)

    def walk(self, start: int = 0) -> Iterator[Pending]:
        """Records with ids from ``start`` on, ascending. The index must not change meanwhile."""
        return map(self.by_id.__getitem__, self._order.walk(start))

    def first(self) -> int:
        """The smallest id; there must be one."""
        return self._order.first()

    def last(self) -> int:
        """The largest id; there must be one."""
        return self._order.last()

    def after(self, entry_id: int) -> int | None:
        """The next id above this one, or None."""
        return next(self._order.walk(entry_id + 1), None)


class Consumer:
    """One consumer of a group.

    Attributes:
        name: any bytes, the empty string included.
        seen: wall milliseconds of its last attempt to read or claim.
        active: wall milliseconds of its last delivery or claim, -1 if there was none.
        pending: its records.
    """

    __slots__ = ("active", "name", "pending", "seen")

    def __init__(self, name: bytes, seen: int) -> None:
        self.name = name
        self.seen = seen
        self.active = -1
        self.pending = IdIndex()


class TimeOrder:
    """A group's records by time, with the NACK zone at the head.

    A linked list, with the last owned record of each time by that time, so that a record finds its place at once
    wherever it belongs: a delivery time may lie in the past (XCLAIM with IDLE or TIME, a clock that was set back).

    Attributes:
        head: the record claimed first.
        released: length of the NACK zone.
    """

    __slots__ = ("_ends", "_times", "_zone_end", "head", "released")

    def __init__(self) -> None:
        self.head: Pending | None = None
        self._ends: dict[int, Pending] = {}
        self._times = Ordered()
        self._zone_end: Pending | None = None
        self.released = 0

    def __iter__(self) -> Iterator[Pending]:
        at = self.head
        while at is not None:
            yield at
            at = at.after

    def insert(self, record: Pending) -> None:
        """Put an owned record behind all that were delivered no later; never inside the zone."""
        time = record.time
        before = self._ends.get(time)
        if before is None:
            earlier = self._times.add(time)
            before = self._zone_end if earlier is None else self._ends[earlier]
        self._ends[time] = record
        self._link(record, before)

    def release(self, record: Pending) -> None:
        """Put a released record at the end of the zone."""
        self._link(record, self._zone_end)
        self._zone_end = record
        self.released += 1

    def _link(self, record: Pending, before: Pending | None) -> None:
        after = self.head if before is None else before.after
        record.before, record.after = before, after
        if before is None:
            self.head = record
        else:
            before.after = record
        if after is not None:
            after.before = record

    def remove(self, record: Pending) -> None:
        """Take a record out; ``record.consumer`` and ``record.time`` must still be what they were in the order."""
        before, after = record.before, record.after
        if record.consumer is None:
            self.released -= 1
            if self._zone_end is record:
                self._zone_end = before
        elif self._ends[record.time] is record:
            if before is not None and before.time == record.time and before.consumer is not None:
                self._ends[record.time] = before
            else:
                del self._ends[record.time]
                self._times.remove(record.time)
        if before is None:
            self.head = after
        else:
            before.after = after
        if after is not None:
            after.before = before
        record.before = record.after = None
