"""Pending entries: what was delivered and not yet acknowledged, by id and by time.

PURE. Three views of the same records: a group's by id, each consumer's by id, and the group's by time::

    [released entries, first released first][owned entries, oldest delivery first]
     `---------- the NACK zone ----------'

XREADGROUP CLAIM walks the time order from its head; XAUTOCLAIM and XPENDING walk the ids. A record's entry may be gone
from the stream.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.engine.group import Consumer

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
    """Records by id, in id order.

    Ids mostly arrive ascending and leave from the front, so the order is a list in which ids that left stay behind as
    stale until they are half of it: adding and removing cost a dictionary operation, and walking skips the stale.
    """

    __slots__ = ("_head", "_order", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[int, Pending] = {}
        self._order: list[int] = []
        self._head = 0  # everything before this position is stale

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self.by_id

    def get(self, entry_id: int) -> Pending | None:
        """The record of this id."""
        return self.by_id.get(entry_id)

    def add(self, record: Pending) -> None:
        """Add a record whose id is not there."""
        entry_id = record.id
        order = self._order
        if not order or entry_id > order[-1]:
            order.append(entry_id)
        else:
            at = bisect_left(order, entry_id)
            if at == len(order) or order[at] != entry_id:
                order.insert(at, entry_id)
            self._head = min(self._head, at)
        self.by_id[entry_id] = record

    def sort(self) -> None:
        """Make the order anew, after records were put into ``by_id`` in any other."""
        self._order = sorted(self.by_id)
        self._head = 0

    def remove(self, entry_id: int) -> None:
        """Remove the record of this id, which must be there."""
        del self.by_id[entry_id]
        order, head = self._order, self._head
        if order[head] == entry_id:
            while head < len(order) and order[head] not in self.by_id:
                head += 1
            self._head = head
        if len(order) > 64 and len(order) > 2 * len(self.by_id):
            self._order = [entry_id for entry_id in order if entry_id in self.by_id]
            self._head = 0

    def walk(self, start: int = 0) -> Iterator[Pending]:
        """Records with ids from ``start`` on, ascending. The index must not change meanwhile."""
        by_id, order = self.by_id, self._order
        for at in range(bisect_left(order, start, self._head), len(order)):
            record = by_id.get(order[at])
            if record is not None:
                yield record

    def first(self) -> int:
        """The smallest id; there must be one."""
        return next(self.walk()).id

    def last(self) -> int:
        """The largest id; there must be one."""
        order = self._order
        at = len(order) - 1
        while order[at] not in self.by_id:
            at -= 1
        return order[at]

    def after(self, entry_id: int) -> int | None:
        """The next id above this one, or None."""
        order = self._order
        for at in range(bisect_right(order, entry_id, self._head), len(order)):
            if order[at] in self.by_id:
                return order[at]
        return None


class TimeOrder:
    """A group's records by time, with the NACK zone at the head.

    Attributes:
        head: the record claimed first.
        released: length of the NACK zone.
    """

    __slots__ = ("_tail", "_zone_end", "head", "released")

    def __init__(self) -> None:
        self.head: Pending | None = None
        self._tail: Pending | None = None
        self._zone_end: Pending | None = None
        self.released = 0

    def __iter__(self) -> Iterator[Pending]:
        at = self.head
        while at is not None:
            yield at
            at = at.after

    def insert(self, record: Pending) -> None:
        """Put an owned record behind all that were delivered no later; never inside the zone."""
        at = self._tail
        time = record.time
        while at is not None and at is not self._zone_end and at.time > time:
            at = at.before
        self._link(record, at)

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
        if after is None:
            self._tail = record
        else:
            after.before = record

    def remove(self, record: Pending) -> None:
        """Take a record out; ``record.consumer`` must still tell whether it was released."""
        if record.consumer is None:
            self.released -= 1
            if self._zone_end is record:
                self._zone_end = record.before
        before, after = record.before, record.after
        if before is None:
            self.head = after
        else:
            before.after = after
        if after is None:
            self._tail = before
        else:
            after.before = before
        record.before = record.after = None
