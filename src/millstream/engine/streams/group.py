"""Consumer groups: their deliveries and their positions in the stream.

PURE. The state-machine tests check the invariants after every step. The group's records are exactly the consumers'
records and the released ones. The time order holds the same records, released ones first.

A record is in up to three places: the group's ids, its consumer's ids, the time order. Every change of one goes through
a method here, which keeps the three together. Other code does not touch them.
"""

from collections.abc import Iterable
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, NamedTuple

from millstream import core
from millstream.engine.cold import ColdDamage, Lost
from millstream.engine.ids import pack_all, unpack_all
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.memory import Total
from millstream.engine.streams.pending import MAX_DELIVERIES, IdIndex, Pending, PyConsumer, TimeOrder

UNKNOWN = -1
ATTEMPTS = 10  # XAUTOCLAIM examines this many records for each one that it may claim, as in Redis


# Bytes of a group, a consumer, a record and a distinct delivery time, measured on CPython 3.11
_SELF, _CONSUMER, _RECORD, _MOMENT = 700, 420, 153, 52


class Claimable(NamedTuple):
    """The result of a walk over a group's records for a claim."""

    cursor: int  # Id of the record where the next walk continues; 0 at the end
    ids: bytes  # Ids of the records to claim, packed as in a transition
    counts: list[int]  # Delivery count of each
    gone: bytes  # Ids of records whose entries are deleted, packed as in a transition


class PyGroup:
    """One consumer group."""

    __slots__ = ("_counted", "_names", "consumers", "entries_read", "last_id", "order", "pending")

    def __init__(self, last_id: int, entries_read: int) -> None:
        self.last_id = last_id  # Id of the last entry delivered as new
        self.entries_read = entries_read  # Number of entries up to that position; ``UNKNOWN`` (-1) if not determinable
        self.consumers: dict[bytes, PyConsumer] = {}  # Consumers by name
        self.pending = IdIndex()  # All records by id
        self.order = TimeOrder()  # All records by time
        self._names = 0  # Bytes of consumer names
        self._counted = 0  # Bytes of this group that are included in Total
        self._count()

    def __del__(self) -> None:
        Total.bytes -= self._counted

    def _count(self) -> None:
        before, self._counted = self._counted, self._size(self._names)
        Total.bytes += self._counted - before

    def _size(self, names: int) -> int:
        size = _SELF + names + _CONSUMER * len(self.consumers)
        return size + _RECORD * len(self.pending) + _MOMENT * self.order.moments

    @property
    def footprint(self) -> int:
        """Memory of the group with its consumers and records in bytes, computed from scratch."""
        return self._size(sum(map(len, self.consumers)))

    def consumer(self, name: bytes, now: int) -> PyConsumer:
        """Return the consumer of this name; create it if it does not exist."""
        found = self.consumers.get(name)
        if found is None:
            found = self.consumers[name] = PyConsumer(name, now)
            self._names += len(name)
            self._count()
        return found

    def assign(self, entry_id: int, consumer: PyConsumer, time: int, count: int) -> None:
        """Make ``consumer`` the owner of an entry, in place of an earlier one."""
        record = self.pending.get(entry_id)
        if record is None:
            record = Pending(entry_id, consumer, time, count)
            self.pending.add(record)
            consumer.pending.add(record)
        else:
            # Removed from the time order first: remove() finds the record by its old time and holder
            self.order.remove(record)
            if record.consumer is not consumer:
                if record.consumer is not None:
                    record.consumer.pending.pop(entry_id)
                consumer.pending.add(record)
                record.consumer = consumer
            record.time = time
            record.count = count
        self.order.insert(record)
        self._count()

    def restore(self, entry_id: int, consumer: PyConsumer | None, time: int, count: int) -> None:
        """Add a record of a snapshot after all others in time; :meth:`restored` must follow the last.

        Sorting the records by id once at the end is far cheaper than a search for each.
        """
        if consumer is None:
            self.order.release(Pending(entry_id, None, time, count))
        else:
            self.order.insert(Pending(entry_id, consumer, self.order.known(time), count))

    def restored(self) -> None:
        """Sort the records by id, after the last :meth:`restore`."""
        # A snapshot may be damaged: XACK could not reach one of two records with the same id
        records = sorted(self.order, key=lambda record: record.id)
        if any(one.id == other.id for one, other in pairwise(records)):
            raise ValueError("one entry pending twice")
        self.pending.fill(records)
        held: dict[PyConsumer | None, list[Pending]] = {}
        for record in records:
            held.setdefault(record.consumer, []).append(record)
        for consumer, own in held.items():
            if consumer is not None:
                consumer.pending.fill(own)
        self._count()

    def release(self, entry_id: int, count: int) -> None:
        """Take an entry from its consumer so that any consumer may claim it; create the record if there is none."""
        record = self.pending.get(entry_id)
        if record is None:
            record = Pending(entry_id, None, 0, count)
            self.pending.add(record)
        else:
            # In this order too: without its holder, the record would be searched in the zone
            self.order.remove(record)
            if record.consumer is not None:
                record.consumer.pending.pop(entry_id)
                record.consumer = None
            record.time = 0
            record.count = count
        self.order.release(record)
        self._count()

    def forget(self, entry_id: int) -> bool:
        """Drop the record of an entry that was acknowledged or is gone; report whether there was one."""
        record = self.pending.pop(entry_id)
        if record is None:
            return False
        # The record keeps its holder and time, since remove() needs both
        self.order.remove(record)
        if record.consumer is not None:
            record.consumer.pending.pop(entry_id)
        self._count()
        return True

    def assign_all(self, packed: bytes, consumer: PyConsumer, time: int, counts: list[int]) -> None:
        """Make ``consumer`` the owner of several entries, see :meth:`assign`."""
        ids, pending = unpack_all(packed), self.pending
        # Ids may repeat or descend: XCLAIM passes them in the client's order
        if not ids or (len(pending) and pending.last() >= ids[0]) or not all(map(lt, ids, ids[1:])):
            for entry_id, count in zip(ids, counts, strict=True):
                self.assign(entry_id, consumer, time, count)
            return
        # None of the ids is pending, nor any higher id, as with most new deliveries: append all records to each order
        records = [Pending(entry_id, consumer, time, count) for entry_id, count in zip(ids, counts, strict=True)]
        pending.extend(ids, records)
        consumer.pending.extend(ids, records)
        self.order.insert_all(records)
        self._count()

    def forget_all(self, packed: bytes) -> int:
        """Drop the records of several entries; return how many there were."""
        ids = unpack_all(packed)
        if not ids or not self.pending.begins_with(ids):
            return sum(map(self.forget, ids))
        # Most groups acknowledge in order; this removes the first records of all orders at once
        records = self.pending.pop_first(len(ids))
        self.order.remove_all(records)
        self._count()
        # Usually one consumer holds them all, as its first records, so its index removes them in one step too. Only the
        # holder's index contains an id, so begins_with() also proves that this consumer holds them all.
        holder = records[0].consumer
        if holder is not None and holder.pending.begins_with(ids):
            holder.pending.pop_first(len(ids))
            return len(ids)
        for record in records:
            if record.consumer is not None:
                record.consumer.pending.pop(record.id)
        return len(ids)

    def claimable(
        self, entries: EntryStore, start: int, min_idle: int, now: int, *, most: int, looks: int
    ) -> Claimable:
        """Find records to claim from an id on; with ``min_idle`` 0 also those with a time ahead of the clock.

        A released record may always be claimed. A record of a deleted entry is found at any idle time.
        """
        return find_claimable(self.pending.walk(start), entries, min_idle, now, most=most, looks=looks)

    def drop_consumer(self, name: bytes) -> int:
        """Delete a consumer and its records; return the number of records. Its entries are not delivered again."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        # A list, since forget() changes the index during the walk
        ids = [record.id for record in consumer.pending.walk()]
        for entry_id in ids:
            self.forget(entry_id)
        self._names -= len(name)
        self._count()
        return len(ids)

    def copy(self) -> "PyGroup":
        """An independent copy, the time order included."""
        twin = PyGroup(self.last_id, self.entries_read)
        for name, consumer in self.consumers.items():
            twin.consumer(name, consumer.seen).active = consumer.active
        # In time order: release() and assign() append to their parts, so equal times stay in order
        for record in self.order:
            if record.consumer is None:
                twin.release(record.id, record.count)
            else:
                twin.assign(record.id, twin.consumers[record.consumer.name], record.time, record.count)
        return twin


def find_claimable(
    records: Iterable[Pending],
    entries: EntryStore,
    min_idle: int,
    now: int,
    *,
    most: int,
    looks: int,
    lost: Lost | None = None,
) -> Claimable:
    """Find records to claim, see :meth:`PyGroup.claimable`.

    With ``lost``, damaged entries are passed over: they may have been deleted or not. It then has the damage if one of
    them would be claimed.
    """
    found: list[Pending] = []
    gone: list[int] = []
    cursor, is_due_lost = 0, False
    for record in records:
        # The limits are checked first, so the cursor is the first record that was not examined
        if not most or not looks:
            cursor = record.id
            break
        looks -= 1
        is_due = record.consumer is None or not min_idle or now - record.time >= min_idle
        try:
            is_there = (lost is None or record.id not in lost) and record.id in entries
        except ColdDamage as damage:
            if lost is None:
                raise
            lost.add(damage)
        if lost is not None and record.id in lost:
            is_due_lost |= is_due
            continue
        # As in Redis, a deleted entry is reported whatever its idle time, and counts towards COUNT
        if not is_there:
            gone.append(record.id)
            most -= 1
        elif is_due:
            found.append(record)
            most -= 1
    if lost is not None and not is_due_lost:
        lost.damage = None
    taken = pack_all([record.id for record in found])
    return Claimable(cursor, taken, [record.count for record in found], pack_all(gone))


def next_count(count: int) -> int:
    """Add one to a delivery count, saturating as Redis 8.8 does."""
    return count + 1 if count < MAX_DELIVERIES else count


if TYPE_CHECKING:
    Group = PyGroup
else:
    Group = core.choose(PyGroup)
