"""Pending entries, delivered and not yet acknowledged, by id and by time.

PURE. Three views of the same records: a group's by id, each consumer's by id, and the group's by time::

    [released entries, first released first][owned entries, oldest delivery first]
     `---------- the NACK zone ----------'

XREADGROUP CLAIM walks the time order from its head; XAUTOCLAIM and XPENDING walk the ids. A record's entry may be gone
from the stream.

A group may have millions of records, and consumers may acknowledge them in any order. So the cost of a change must not
grow with their number: :class:`~millstream.engine.streams.ordered.Ordered` finds and orders them. It could order the
times as well. But records of one millisecond must stay in order of arrival, and the zone's order does not depend on
times. Hence the linked list.

The native core has doubles of consumers and groups with all their contents (``_core/group.c``). Its records are not
Python objects: a caller gets a copy of a record.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from millstream import core
from millstream.engine import ids
from millstream.engine.streams.ordered import Ordered

# Redis 8.8 stops counting here
MAX_DELIVERIES = 2**63 - 1


class Pending:
    """One pending entry's record."""

    __slots__ = ("after", "before", "consumer", "count", "id", "time")

    def __init__(self, entry_id: int, consumer: "PyConsumer | None", time: int, count: int) -> None:
        self.id = entry_id  # Id of the entry
        self.consumer = consumer  # Consumer that holds it; None once XNACK has released it
        self.time = time  # Wall milliseconds of the last delivery; 0 once released
        self.count = count  # Number of deliveries
        self.before: Pending | None = None  # Previous record in time order
        self.after: Pending | None = None  # Next record in time order


class IdIndex:
    """Records by id, in id order."""

    __slots__ = ("_count", "_records")

    def __init__(self) -> None:
        self._records: Ordered[Pending] = Ordered()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry_id: int) -> bool:
        return self._records.get(entry_id) is not None

    def get(self, entry_id: int) -> Pending | None:
        """The record of this id."""
        return self._records.get(entry_id)

    def add(self, record: Pending) -> None:
        """Add a record with a new id."""
        self._records.put(record.id, record)
        self._count += 1

    def extend(self, ids: list[int], records: list[Pending]) -> None:
        """Add records that ascend, with ids above all others."""
        self._records.extend(ids, records)
        self._count += len(records)

    def begins_with(self, ids: list[int]) -> bool:
        """True if the given ids are the first ones, in this order; may be False for a great many ids."""
        return self._records.begins_with(ids)

    def pop_first(self, count: int) -> list[Pending]:
        """Remove this many records from the front, after :meth:`begins_with` confirmed them."""
        self._count -= count
        return self._records.pop_first(count)

    def fill(self, records: list[Pending]) -> None:
        """Replace the contents by these ascending records, as when a snapshot is read."""
        self._records.fill([record.id for record in records], records)
        self._count = len(records)

    def pop(self, entry_id: int) -> Pending | None:
        """Remove the record of this id; None if there is none."""
        # Counted here, because len() of the ordered numbers visits all their pieces
        record = self._records.pop(entry_id)
        self._count -= record is not None
        return record

    def walk(self, start: int = 0) -> Iterator[Pending]:
        """Records with ids from ``start`` on, ascending. The index must not change meanwhile."""
        return self._records.walk(start)

    def first(self) -> int:
        """The smallest id; there must be one."""
        return self._records.first()

    def last(self) -> int:
        """The largest id; there must be one."""
        return self._records.last()

    def idle_rows(self, start: int, end: int, count: int, min_idle: int, now: int) -> tuple[int, bytes]:
        """Rows of XPENDING, ``[id, consumer, idle time, deliveries]`` in wire form: their number and their bytes.

        A released record has an empty consumer name and an idle time of -1 ms, and passes any ``min_idle``.
        """
        rows: list[bytes] = []
        for record in self.walk(start):
            entry, consumer = record.id, record.consumer
            if entry > end or len(rows) >= count:
                break
            if consumer is None:
                # Redis shows -1 as the idle time of a released record; MIN-IDLE-TIME does not exclude it
                name, idle = b"", -1
            else:
                name, idle = consumer.name, max(now - record.time, 0)
                if idle < min_idle:
                    continue
            # _row, inlined: the call would take a quarter of the time
            text = b"%d-%d" % (entry >> 64, entry & ids.MAX64)
            rows.append(_ROW % (len(text), text, len(name), name, idle, record.count))
        return len(rows), b"".join(rows)

    def rows(self, count: int, *, own: bool) -> tuple[int, bytes]:
        """The first rows as XINFO STREAM FULL shows them, in wire form: their number and their bytes."""
        found = [
            _own_row(record) if own else _row(record, record.consumer.name if record.consumer else b"", record.time)
            for record in islice(self.walk(), None if count < 0 else count)
        ]
        return len(found), b"".join(found)


_ROW = b"*4\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n"


def _row(record: Pending, consumer: bytes, time: int) -> bytes:
    name = ids.text(record.id)
    return _ROW % (len(name), name, len(consumer), consumer, time, record.count)


def _own_row(record: Pending) -> bytes:
    name = ids.text(record.id)
    return b"*3\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n" % (len(name), name, record.time, record.count)


class PyConsumer:
    """One consumer of a group."""

    __slots__ = ("active", "name", "pending", "seen")

    def __init__(self, name: bytes, seen: int) -> None:
        self.name = name  # Any bytes, even an empty string
        self.seen = seen  # Wall milliseconds of its last attempt to read or claim
        self.active = -1  # Wall milliseconds of its last delivery or claim, -1 for none
        self.pending = IdIndex()  # Records of this consumer


class TimeOrder:
    """A group's records by time, with the NACK zone at the head.

    A linked list, and an ordered index from each time to its last owned record. So a record of any time is placed
    quickly. A delivery time may be in the past (XCLAIM with IDLE or TIME, a clock that was set back).
    """

    __slots__ = ("_ends", "_zone_end", "head", "released")

    def __init__(self) -> None:
        self.head: Pending | None = None  # First record in time order
        self._ends: Ordered[Pending] = Ordered()
        self._zone_end: Pending | None = None
        self.released = 0  # Length of the NACK zone, the released records at the front

    def __iter__(self) -> Iterator[Pending]:
        at = self.head
        while at is not None:
            yield at
            at = at.after

    @property
    def moments(self) -> int:
        """Number of distinct times of owned records."""
        return len(self._ends)

    def known(self, time: int) -> int:
        """Return the last record's time object if it is equal, to save the 32 bytes of another int."""
        # In a snapshot, equal times are adjacent, so checking the newest time is enough
        return self._ends.last() if self._ends and self._ends.last() == time else time

    def insert(self, record: Pending) -> None:
        """Put an owned record after all records delivered no later; never inside the zone."""
        # put() returns the last record of the same time or else of the nearest earlier time, and the new record follows
        # that. If there is none, it follows the zone; without a zone it is the head.
        before = self._ends.put(record.time, record)
        self._link(record, self._zone_end if before is None else before)

    def insert_all(self, records: list[Pending]) -> None:
        """Put owned records of one time, at least one, in this order after all records delivered no later."""
        last = records[-1]
        found = self._ends.put(last.time, last)
        before = self._zone_end if found is None else found
        after = self.head if before is None else before.after
        # The loop links the records as a separate chain; only its ends are linked to the existing list
        for record in records:
            record.before = before
            if before is None:
                self.head = record
            else:
                before.after = record
            before = record
        last.after = after
        if after is not None:
            after.before = last

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
        """Take a record out; its ``consumer`` and ``time`` must not have changed since it was put in."""
        before, after = record.before, record.after
        if record.consumer is None:
            self.released -= 1
            if self._zone_end is record:
                self._zone_end = before
        # It was the last of its time, so the record before it replaces it, or the time is removed. The record before it
        # must be owned: released records have time 0, which an owned one may also have.
        elif after is None or after.time != record.time:
            if before is not None and before.time == record.time and before.consumer is not None:
                self._ends.put(record.time, before)
            else:
                self._ends.pop(record.time)
        if before is None:
            self.head = after
        else:
            before.after = after
        if after is not None:
            after.before = before
        record.before = record.after = None

    def remove_all(self, records: list[Pending]) -> None:
        """Take several records out, in list order where possible, see :meth:`remove`.

        Records that were delivered together and are acknowledged together are one run of the list. Only the ends of a
        run are linked again.
        """
        first = records[0]
        after: Pending | None = first
        for record in records:
            if record is not after or record.time != first.time or record.consumer is None:
                # Nothing has changed up to here, so the slow way starts with an intact list
                for each in records:
                    self.remove(each)
                return
            after = record.after
        for record in records[1:]:
            record.before = record.after = None
        # remove() determines the last record of a time from its neighbours. So shrink the stretch to its first record
        # before removing that, and remove() then sees the record that really follows.
        first.after = after
        if after is not None:
            after.before = first
        self.remove(first)


if TYPE_CHECKING:
    Consumer = PyConsumer
else:
    Consumer = core.choose(PyConsumer)
