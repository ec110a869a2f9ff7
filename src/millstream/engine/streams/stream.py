"""The stream: entries, counters, groups, and the arithmetic of lag.

PURE. Counters, with Redis's names: ``last_id`` is the id generated last, and goes back only by XSETID. ``max_deleted``
is the largest id removed by XDEL, XDELEX or XACKDEL, *not* by trimming. ``entries_added`` counts every addition ever
made. A stream with no entries stays.

**Lag** is a difference of two counts: all additions, less those up to the group's position. The first is exact. The
second is counted while the group reads in order. A move of the group, or a deletion ahead of it, loses the count: a
stream records only the largest deleted id.

Then the stream can compute the count only if the position is at one of its ends. Otherwise the lag is None, and never a
guess. Trimming does not harm this: it removes entries only from the front, so the remaining ones can be counted.
"""

from typing import ClassVar

from millstream.engine.ids import MAX_ID, pack_all
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.idempotence import Idempotence
from millstream.engine.streams.pending import Consumer

LLONG_MAX = 2**63 - 1
# Bytes of a stream without entries, and of a group apart from its name, measured on CPython 3.11
_SELF, _NAME = 700, 100


class Stream:
    """One stream."""

    kind: ClassVar[bytes] = b"stream"
    __slots__ = ("__weakref__", "_names", "entries", "entries_added", "groups", "idempotence", "last_id", "max_deleted")

    def __init__(self, idmp_duration: int, idmp_maxsize: int) -> None:
        self.entries = EntryStore()  # Entries of the stream
        self.last_id = 0  # Id of the last added entry
        self.max_deleted = 0  # Largest deleted id, 0 if there is none
        self.entries_added = 0  # Number of entries ever added
        self.groups: dict[bytes, Group] = {}  # Groups by name; change it only through the methods
        self._names = 0  # Bytes of the groups' names
        self.idempotence = Idempotence(idmp_duration, idmp_maxsize)  # Producers and their message ids

    @property
    def footprint(self) -> int:
        """Memory in bytes, except entries, groups and records (:mod:`millstream.engine.streams.memory`)."""
        return _SELF + self._names + self.idempotence.footprint

    # ------------------------------------------------------------------ changes

    def add_group(self, name: bytes, group: Group) -> None:
        """Add a group under a new name."""
        self.groups[name] = group
        self._names += _NAME + len(name)

    def drop_group(self, name: bytes) -> None:
        """Delete an existing group with its consumers and records."""
        del self.groups[name]
        self._names -= _NAME + len(name)

    def add(self, entry_id: int, fields: list[bytes], *, fresh: bool) -> None:
        """Append an entry with an id above ``last_id``."""
        self.entries.append(entry_id, fields, fresh=fresh)
        self.last_id = entry_id
        if self.entries_added < LLONG_MAX:
            self.entries_added += 1

    def delete(self, entry_id: int) -> bool:
        """Remove an entry as XDEL does; report whether it existed."""
        if not self.entries.remove(entry_id):
            return False
        self.max_deleted = max(self.max_deleted, entry_id)
        return True

    def forget_everywhere(self, entry_id: int) -> bool:
        """Drop the entry's record from every group; report whether any group had one."""
        found = False
        for group in self.groups.values():
            found |= group.forget(entry_id)
        return found

    def deliver(
        self, group: Group, consumer: Consumer, upto: int, now: int, *, noack: bool, ids: list[int] | None = None
    ) -> None:
        """Deliver every live entry above the group's position, up to an id, to the consumer; ``ids`` are these entries.

        An entry that was pending already (the position was set back) moves to this consumer and its count starts over.
        """
        # Tombstones are not included, so the position passes them without a delivery
        if ids is None:
            ids = self.entries.ids(group.last_id + 1, upto)
        if not noack:
            group.assign_all(pack_all(ids), consumer, now, [1] * len(ids))
        if ids:  # after the records: if memory runs out in between, the same entries are delivered again
            self._advance(group, ids)
        consumer.seen = now
        if not noack:
            consumer.active = now

    def _advance(self, group: Group, ids: list[int]) -> None:
        """Move the group's position over delivered ids, and count them if possible."""
        for at, entry_id in enumerate(ids):
            if self.counts_on(group):
                # This applies to all remaining ids: they ascend, and no deletion lies ahead
                group.entries_read = min(group.entries_read + len(ids) - at, LLONG_MAX)
                break
            # Entry by entry, as Redis counts: the position may pass a place from which counting becomes possible again.
            # With entries_added 0 (set by XSETID), Redis leaves the count unchanged.
            if self.entries_added:
                distance = self.distance(entry_id)
                group.entries_read = UNKNOWN if distance is None else distance
            group.last_id = entry_id
        group.last_id = ids[-1]

    def counts_on(self, group: Group) -> bool:
        """True if the group's count goes up by one with each further entry."""
        return (
            group.entries_read != UNKNOWN and group.last_id >= self.first_id and not self.has_gap_after(group.last_id)
        )

    # ------------------------------------------------------------------ queries

    def count_with(self, group: Group, entry_id: int) -> int:
        """Number of entries that a group has read after one more delivery, as :meth:`deliver` counts."""
        if self.counts_on(group):
            return min(group.entries_read + 1, LLONG_MAX)
        distance = self.distance(entry_id) if self.entries_added else group.entries_read
        return UNKNOWN if distance is None else distance

    @property
    def length(self) -> int:
        """Number of live entries."""
        return self.entries.length

    @property
    def first_id(self) -> int:
        """Id of the oldest live entry, 0 if there is none."""
        return self.entries.first_id

    def has_gap_after(self, position: int) -> bool:
        """True if a deletion at or after this position makes counting from it impossible."""
        # The position itself counts too: Redis compares with <=, though that entry was read
        return self.length > 0 and self.max_deleted != 0 and position <= self.max_deleted

    def distance(self, entry_id: int) -> int | None:
        """Return the number of additions up to and including this id; None if it is unknown.

        It is known in these cases:

        * nothing was ever added;
        * the stream is empty and the id is not beyond its last;
        * the id is the last one;
        * the live range is free of deletions and the id is at or before its first entry.
        """
        if self.entries_added == 0:
            return 0
        if self.length == 0 and entry_id <= self.last_id:
            return self.entries_added
        # Redis's order of tests matters: 0 is a group's position before all entries, never an entry. An id below a
        # deletion is unknown, even if it is at or before the first entry.
        if entry_id != 0 and entry_id < self.max_deleted:
            return None
        if entry_id == self.last_id:
            return self.entries_added
        if entry_id > self.last_id:
            return None
        first = self.first_id
        if self.max_deleted == 0 or self.max_deleted < first:
            if entry_id < first:
                return self.entries_added - self.length
            if entry_id == first:
                return self.entries_added - self.length + 1
        return None

    def lag(self, group: Group) -> int | None:
        """Return the number of entries not yet delivered to the group; None if it is unknown.

        In this order:

        1. Nothing was ever added, or no entry is left: 0.
        2. The group is before the first entry, and nothing was deleted after that: the number of live entries.
        3. The count is known, and no deletion is ahead of the group: additions less the count.
        4. The position's count follows from the stream's ends: additions less that count.
        5. Otherwise unknown.
        """
        if self.entries_added == 0 or self.length == 0:
            return 0
        first = self.first_id
        # Not only for a known count: a group created at 0 gets its lag here before it reads anything
        if group.last_id < first and self.max_deleted < first:
            return self.length
        if group.entries_read != UNKNOWN and not self.has_gap_after(group.last_id):
            return self.entries_added - group.entries_read
        distance = self.distance(group.last_id)
        return None if distance is None else self.entries_added - distance

    def is_referenced(self, entry_id: int) -> bool:
        """True if a group still needs the entry: the group has not received it, or it is pending there.

        This goes by position alone: an id beyond a group's position is needed, even without an entry. Without groups,
        no id is needed.
        """
        return any(group.last_id < entry_id or entry_id in group.pending for group in self.groups.values())

    def needed_from(self) -> int:
        """Return an id below which no group needs an entry; above all ids if none needs any. Nothing is read."""
        found: int = MAX_ID + 1
        for group in self.groups.values():
            if group.last_id < self.entries.last_live_id:
                found = min(found, group.last_id + 1)
            if len(group.pending):
                found = min(found, group.pending.first())
        return found

    def copy(self) -> "Stream":
        """Return an independent copy with groups, pending entries and producers."""
        twin = Stream(self.idempotence.duration, self.idempotence.maxsize)
        twin.entries = self.entries.copy()
        twin.last_id, twin.max_deleted, twin.entries_added = self.last_id, self.max_deleted, self.entries_added
        twin.groups, twin._names = {name: group.copy() for name, group in self.groups.items()}, self._names
        twin.idempotence = self.idempotence.copy()
        if twin.entries.extent_count and twin.entries.reads is not None:
            twin.entries.reads.streams.add(twin)
        return twin
