"""Groups as facts and figures: rates, readers, marks, and all streams together. PURE.

Facts have names that never change: those of ``-o json`` and of the JSON of pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.ops.pending.status import PendingEntry
from millstream.ops.plan import counted
from millstream.ops.streams.status import ConsumerStatus, GroupSeen, GroupStatus, StreamsSeen, StreamStatus
from millstream.ops.words import Facts, rounded
from millstream.ops.workers.status import WorkersSeen, WorkerStatus


@dataclass(frozen=True, slots=True)
class GroupRate:
    """The rates of a group between two readings."""

    added: float | None  # Entries a second that came to the stream; None when the server does not count them
    # Entries a second that the group was delivered; None as above, and where its position was set back
    delivered: float | None
    # Entries by which the lag grew, less than 0 where it shrank; None where one of both is not known
    lag_change: int | None
    # Until nothing is left at this rate; 0 when nothing is, None when it does not shrink or is not known
    drain_ms: int | None


def group_facts(group: GroupStatus, now_ms: int, rate: GroupRate | None) -> Facts:
    """A group."""
    return {
        "stream": group.stream,
        "group": group.name,
        "lag": group.lag.entries,
        "lag_at_least": group.lag.at_least,
        "lag_at_most": group.lag.at_most,
        "lag_unknown": group.lag.reason,
        "lag_change": None if rate is None else rate.lag_change,
        "undelivered_age_ms": group.oldest_undelivered.age(now_ms),
        "drain_ms": None if rate is None else rate.drain_ms,
        "pending": group.pending,
        "pending_age_ms": group.oldest_pending.age(now_ms) if group.pending else None,
        "delayed": group.delayed,
        "unowned": group.unowned,
        "consumers": group.consumers,
        "last_delivered_id": group.last_delivered_id,
        "entries_read": group.entries_read,
        "added_per_second": rounded(None if rate is None else rate.added),
        "delivered_per_second": rounded(None if rate is None else rate.delivered),
    }


def consumer_facts(consumer: ConsumerStatus) -> Facts:
    """A consumer."""
    return {
        "consumer": consumer.name,
        "pending": consumer.pending,
        "idle_ms": consumer.idle_ms,
        "inactive_ms": consumer.inactive_ms,
    }


def lag_facts(group: GroupStatus) -> Facts:
    """The reason why a lag is not known, and the remedy; all null where it is."""
    lag = group.lag
    return {
        "why": lag.why or None,
        "repair": None if lag.repair is None else list(lag.repair),
        "repair_note": lag.repair_note or None,
    }


def added_rate(before: StreamStatus, now: StreamStatus, ms: int) -> float | None:
    """Entries a second that came to a stream; None where that is not known."""
    if before.entries_added is None or now.entries_added is None or ms <= 0:
        return None
    return None if now.entries_added < before.entries_added else (now.entries_added - before.entries_added) * 1000 / ms


def rates(before: StreamsSeen, now: StreamsSeen) -> tuple[dict[str, float], dict[tuple[str, str], GroupRate]]:
    """Entries a second that came to each stream, by key; and the rates of each group, by stream and name.

    Streams and groups that are not in both readings, or have no rate, are left out.
    """
    ms = now.at_ms - before.at_ms
    earlier = {stream.key: stream for stream in before.streams}
    streams: dict[str, float] = {}
    groups: dict[tuple[str, str], GroupRate] = {}
    for stream in now.streams:
        then = earlier.get(stream.key)
        if then is None:
            continue
        added = added_rate(then, stream, ms)
        if added is not None:
            streams[stream.key] = added
        known = {group.name: group for group in then.groups}
        for group in stream.groups:
            if group.name in known:
                groups[stream.key, group.name] = _group_rate(known[group.name], group, added, ms)
    return streams, groups


def _group_rate(before: GroupStatus, now: GroupStatus, added: float | None, ms: int) -> GroupRate:
    """The rates of a group."""
    read, since = now.entries_read, before.entries_read
    delivered = None if read is None or since is None or read < since or ms <= 0 else (read - since) * 1000 / ms
    return GroupRate(added, delivered, *_drain(before, now, ms))


def _drain(before: GroupStatus, now: GroupStatus, ms: int) -> tuple[int | None, int | None]:
    """The change of a lag, and the milliseconds until nothing is left."""
    if now.lag.entries is None or before.lag.entries is None:
        return None, None
    change = now.lag.entries - before.lag.entries
    if now.lag.entries == 0:
        return change, 0
    return change, round(now.lag.entries * ms / -change) if change < 0 and ms > 0 else None


BEHIND = 60_000
"""Milliseconds from which on what a group has not read yet is marked."""

STUCK = 300_000
"""Milliseconds from which on an entry that is pending is marked."""

LONG_JOB = 300_000
"""Milliseconds from which on what a worker has in hand is marked."""


def is_late(group: GroupStatus, now_ms: int) -> bool:
    """True if what a group has not read yet is old."""
    return (group.oldest_undelivered.age(now_ms) or 0) >= BEHIND


def is_stuck(group: GroupStatus, now_ms: int) -> bool:
    """True if an entry of a group is pending for long, or has no holder."""
    return group.pending > 0 and ((group.oldest_pending.age(now_ms) or 0) >= STUCK or bool(group.unowned))


def is_left(entry: PendingEntry) -> bool:
    """True if a pending entry is held for long, or has no holder; not one that waits for its time."""
    return entry.due_in_ms is None and (entry.unowned or (entry.idle_ms or 0) >= STUCK)


def is_idle(consumer: ConsumerStatus, worker: WorkerStatus | None) -> bool:
    """True if a consumer holds entries and has asked for nothing for long, or its worker is blocked."""
    stuck = consumer.pending > 0 and consumer.idle_ms >= STUCK and not consumer.waits
    return stuck or (worker is not None and worker.blocked_at is not None)


SORTS = ("worst", "name", "length", "pending")
"""The orders of streams."""


def sorted_streams(seen: StreamsSeen, sort: str) -> list[StreamStatus]:
    """The streams in their order; the worst are those with the oldest unfinished entry."""

    def rank(stream: StreamStatus) -> tuple[float, float, str]:
        if sort == "name":
            return 0, 0, stream.key
        if sort == "length":
            return -stream.length, 0, stream.key
        if sort == "pending":
            return -stream.pending, 0, stream.key
        age = max(stream.oldest_pending.age(seen.at_ms) or 0, stream.oldest_undelivered.age(seen.at_ms) or 0)
        return -age, -stream.pending, stream.key

    return sorted(seen.streams, key=rank)


def totals(seen: StreamsSeen, added: Mapping[str, float]) -> Facts:
    """The figures over all streams."""
    groups = [group for stream in seen.streams for group in stream.groups]
    waits = [age for group in groups if (age := group.oldest_undelivered.age(seen.at_ms)) is not None]
    holds = [age for group in groups if (age := group.oldest_pending.age(seen.at_ms)) is not None]
    return {
        "streams": len(seen.streams),
        "groups": len(groups),
        "entries": sum(stream.length for stream in seen.streams),
        "added_per_second": round(sum(added.values()), 1) if added else None,
        "pending": sum(group.pending for group in groups),
        "unowned": sum(group.unowned or 0 for group in groups),
        "undelivered_age_ms": max(waits, default=0),
        "pending_age_ms": max(holds, default=0),
        "waiting": sum(is_late(group, seen.at_ms) or is_stuck(group, seen.at_ms) for group in groups),
        "lag_unknown": sum(not group.lag.known for group in groups),
    }


@dataclass(frozen=True, slots=True)
class Ahead:
    """A place in a stream that was looked up."""

    id: str  # The last delivered id of a group at that place
    after: int | None  # Entries after it; None where they are too many to be counted
    next: str | None  # Id of the first of them; None where there is none


@dataclass(frozen=True, slots=True)
class Between:
    """The entries between two places."""

    entries: int  # Number of entries, as far as they were counted
    pending: int  # Those that are pending in the group, as far as they were counted
    more: bool = False  # There are more entries than were counted
    more_pending: bool = False  # And more pending ones

    def text(self) -> str:
        """The number of entries in words."""
        return counted(self.entries, more=self.more)


@dataclass(frozen=True, slots=True)
class GroupReaders:
    """The present readers of a group."""

    workers: tuple[str, ...] = ()  # Consumers of workers that are not paused
    others: tuple[str, ...] = ()  # Consumers of which no worker tells
    stream: str | None = None  # The stream as their workers name it; None without any

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all readers."""
        return self.workers + self.others


UNREAD = GroupReaders()
"""A group without readers."""

READING_MS = 60_000
"""A consumer that asked for something less long ago than this reads the group."""


def readers(seen: GroupSeen, workers: WorkersSeen) -> GroupReaders:
    """The readers of a group."""
    where = (seen.group.stream, seen.group.name)
    names = [one.name for one in seen.consumers if one.reads and one.idle_ms < READING_MS]
    ours = [name for name in names if workers.holder(*where, name) is not None]
    paused = workers.pause_of(*where) is not None
    others = tuple(name for name in names if name not in ours)
    return GroupReaders(() if paused else tuple(ours), others, workers.named(*where))
