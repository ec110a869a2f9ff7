"""Consumer groups: who was given what, and how far the group has come.

PURE. Invariants, checked by the state-machine tests after every step: the group's records are exactly the consumers'
records and the released ones; the time order holds the same records; released ones come first.

A record is in up to three places (the group's ids, its consumer's ids, the time order), and every change of one goes
through a method here, which keeps the three together. Nothing else touches them.
"""

from millstream.engine.streams.pending import MAX_DELIVERIES, Consumer, IdIndex, Pending, TimeOrder

UNKNOWN = -1


class Group:
    """One consumer group.

    Attributes:
        last_id: id of the last entry delivered as new.
        entries_read: how many entries that position counts, ``UNKNOWN`` (-1) if nobody can say.
        consumers: by name.
        pending: all records by id.
        order: all records by time.
    """

    __slots__ = ("consumers", "entries_read", "last_id", "order", "pending")

    def __init__(self, last_id: int, entries_read: int) -> None:
        self.last_id = last_id
        self.entries_read = entries_read
        self.consumers: dict[bytes, Consumer] = {}
        self.pending = IdIndex()
        self.order = TimeOrder()

    def consumer(self, name: bytes, now: int) -> Consumer:
        """The consumer of this name, created if need be."""
        found = self.consumers.get(name)
        if found is None:
            found = self.consumers[name] = Consumer(name, now)
        return found

    def assign(self, entry_id: int, consumer: Consumer, time: int, count: int) -> None:
        """Make ``consumer`` the holder of an entry, whoever held it, if anybody, before.

        Args:
            entry_id: the entry; it may be gone from the stream.
            consumer: a consumer of this group.
            time: wall milliseconds of the delivery, which may lie in the past (XCLAIM with IDLE or TIME).
            count: deliveries, this one included.
        """
        record = self.pending.get(entry_id)
        if record is None:
            record = Pending(entry_id, consumer, time, count)
            self.pending.add(record)
            consumer.pending.add(record)
        else:
            self.order.remove(record)
            if record.consumer is not consumer:
                if record.consumer is not None:
                    record.consumer.pending.remove(entry_id)
                consumer.pending.add(record)
                record.consumer = consumer
            record.time = time
            record.count = count
        self.order.insert(record)

    def restore(self, entry_id: int, consumer: Consumer | None, time: int, count: int) -> None:
        """Add a record of a snapshot behind all others in time; :meth:`restored` must follow the last.

        Putting each into the order of ids at once would cost a search for each; sorted once at the end they cost next
        to none.

        Args:
            entry_id: the entry.
            consumer: its holder; None for a released one.
            time: wall milliseconds of the delivery.
            count: deliveries so far.
        """
        record = Pending(entry_id, consumer, time, count)
        self.pending.by_id[entry_id] = record
        if consumer is None:
            self.order.release(record)
        else:
            consumer.pending.by_id[entry_id] = record
            self.order.insert(record)

    def restored(self) -> None:
        """All records are there: bring them into the order of ids."""
        self.pending.sort()
        for consumer in self.consumers.values():
            consumer.pending.sort()

    def release(self, entry_id: int, count: int) -> None:
        """Take an entry from its holder and let anybody claim it; creates the record if there is none."""
        record = self.pending.get(entry_id)
        if record is None:
            record = Pending(entry_id, None, 0, count)
            self.pending.add(record)
        else:
            self.order.remove(record)
            if record.consumer is not None:
                record.consumer.pending.remove(entry_id)
                record.consumer = None
            record.time = 0
            record.count = count
        self.order.release(record)

    def forget(self, entry_id: int) -> bool:
        """Drop an entry's record (acknowledged, or gone); whether there was one."""
        record = self.pending.get(entry_id)
        if record is None:
            return False
        self.order.remove(record)
        self.pending.remove(entry_id)
        if record.consumer is not None:
            record.consumer.pending.remove(entry_id)
        return True

    def drop_consumer(self, name: bytes) -> int:
        """Delete a consumer and its records; how many there were. Its entries are not delivered to anybody again."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        ids = list(consumer.pending.by_id)
        for entry_id in ids:
            self.forget(entry_id)
        return len(ids)

    def copy(self) -> "Group":
        """An independent copy, the time order included."""
        twin = Group(self.last_id, self.entries_read)
        for name, consumer in self.consumers.items():
            other = twin.consumers[name] = Consumer(name, consumer.seen)
            other.active = consumer.active
        for record in self.order:
            if record.consumer is None:
                twin.release(record.id, record.count)
            else:
                twin.assign(record.id, twin.consumers[record.consumer.name], record.time, record.count)
        return twin


def next_count(count: int) -> int:
    """One delivery more, saturating as Redis 8.8 does."""
    return count + 1 if count < MAX_DELIVERIES else count
