"""Groups as data and figures: rates, readers, marks, and totals over all streams. PURE.

The names of the data never change: ``-o json`` and the JSON of pages use them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.ops.pending.status import PendingEntry
from millstream.ops.plan import counted
from millstream.ops.streams.status import ConsumerStatus, GroupSeen, GroupStatus, StreamsSeen, StreamStatus
from millstream.ops.words import Facts, picked, rounded
from millstream.ops.workers.status import WorkersSeen, WorkerStatus


@dataclass(frozen=True, slots=True)
class GroupRate:
    """The rates of a group between two readings."""

    added: float | None  # Entries added to the stream per second; None if the server does not count them
    # Entries delivered to the group per second; None if unknown, and if its position was moved back
    delivered: float | None
    # Growth of the lag in entries, negative if it shrank; None if unknown
    lag_change: int | None
    # Time until the lag is 0 at this rate; None if it does not shrink or is unknown
    drain_ms: int | None


def group_facts(group: GroupStatus, now_ms: int, rate: GroupRate | None) -> Facts:
    """Return a group as data."""
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
        **picked(group, "delayed unowned consumers last_delivered_id entries_read"),
        "added_per_second": rounded(None if rate is None else rate.added),
        "delivered_per_second": rounded(None if rate is None else rate.delivered),
    }


def consumer_facts(consumer: ConsumerStatus) -> Facts:
    """Return a consumer as data."""
    return {"consumer": consumer.name, **picked(consumer, "pending idle_ms inactive_ms")}


def lag_facts(group: GroupStatus) -> Facts:
    """Return the reason why a lag is unknown and the remedy; all null if it is known."""
    lag = group.lag
    return {
        "why": lag.why or None,
        "repair": None if lag.repair is None else list(lag.repair),
        "repair_note": lag.repair_note or None,
    }


def added_rate(before: StreamStatus, now: StreamStatus, ms: int) -> float | None:
    """Return the entries added to a stream per second; None if unknown."""
    if before.entries_added is None or now.entries_added is None or ms <= 0:
        return None
    return None if now.entries_added < before.entries_added else (now.entries_added - before.entries_added) * 1000 / ms


def rates(before: StreamsSeen, now: StreamsSeen) -> tuple[dict[str, float], dict[tuple[str, str], GroupRate]]:
    """Return the entries added per second by stream key, and the rates of groups by stream and group name.

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
    """Return the rates of a group."""
    read, since = now.entries_read, before.entries_read
    delivered = None if read is None or since is None or read < since or ms <= 0 else (read - since) * 1000 / ms
    return GroupRate(added, delivered, *_drain(before, now, ms))


def _drain(before: GroupStatus, now: GroupStatus, ms: int) -> tuple[int | None, int | None]:
    """Return the change of the lag, and the milliseconds until it is 0 at this rate."""
    if now.lag.entries is None or before.lag.entries is None:
        return None, None
    change = now.lag.entries - before.lag.entries
    if now.lag.entries == 0:
        return change, 0
    return change, round(now.lag.entries * ms / -change) if change < 0 and ms > 0 else None


BEHIND = 60_000
"""Age in milliseconds from which on a group's undelivered entries are marked."""

STUCK = 300_000
"""Age in milliseconds from which on a pending entry is marked."""

LONG_JOB = 300_000
"""Duration in milliseconds from which on a worker's running job is marked."""


def is_late(group: GroupStatus, now_ms: int) -> bool:
    """Return True if the oldest undelivered entry of a group is old."""
    return (group.oldest_undelivered.age(now_ms) or 0) >= BEHIND


def is_stuck(group: GroupStatus, now_ms: int) -> bool:
    """Return True if an entry of the group has been pending for long or has no holder."""
    return group.pending > 0 and ((group.oldest_pending.age(now_ms) or 0) >= STUCK or bool(group.unowned))


def is_left(entry: PendingEntry) -> bool:
    """Return True if a pending entry has been held for long or has no holder; delayed entries do not count."""
    return entry.due_in_ms is None and (entry.unowned or (entry.idle_ms or 0) >= STUCK)


def is_idle(consumer: ConsumerStatus, worker: WorkerStatus | None) -> bool:
    """Return True if a consumer holds entries and has sent no request for long, or its worker is blocked."""
    stuck = consumer.pending > 0 and consumer.idle_ms >= STUCK and not consumer.waits
    return stuck or (worker is not None and worker.blocked_at is not None)


SORTS = ("worst", "name", "length", "pending")
"""Sort orders of a list of streams."""


def sorted_streams(seen: StreamsSeen, sort: str) -> list[StreamStatus]:
    """Return the streams in this order; ``worst`` puts those with the oldest unfinished entry first."""

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
    """Return the totals over all streams as data."""
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
    """A resolved position in a stream, with the entries after it."""

    id: str  # Last delivered id of a group at that position
    after: int | None  # Number of entries after it; None if there are too many to count
    next: str | None  # Id of the first entry after it; None if there is none


@dataclass(frozen=True, slots=True)
class Between:
    """The entries between two positions."""

    entries: int  # Number of entries counted
    pending: int  # Number of pending entries counted
    more: bool = False  # True if there are more entries than counted
    more_pending: bool = False  # True if there are more pending entries than counted

    def text(self) -> str:
        """Return the number of entries in words."""
        return counted(self.entries, more=self.more)


@dataclass(frozen=True, slots=True)
class GroupReaders:
    """The present readers of a group, by consumer name."""

    workers: tuple[str, ...] = ()  # Consumers of workers that are not paused
    others: tuple[str, ...] = ()  # Consumers that no worker reports
    stream: str | None = None  # Name of the stream in the workers' reports; None without a worker

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all readers."""
        return self.workers + self.others


UNREAD = GroupReaders()
"""A group without readers."""

READING_MS = 60_000
"""Idle time in milliseconds below which a consumer counts as a reader of its group."""


def readers(seen: GroupSeen, workers: WorkersSeen) -> GroupReaders:
    """Return the readers of a group."""
    where = (seen.group.stream, seen.group.name)
    names = [one.name for one in seen.consumers if one.reads and one.idle_ms < READING_MS]
    ours = [name for name in names if workers.holder(*where, name) is not None]
    paused = workers.pause_of(*where) is not None
    others = tuple(name for name in names if name not in ours)
    return GroupReaders(() if paused else tuple(ours), others, workers.named(*where))
