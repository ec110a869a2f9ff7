"""Thresholds above which a figure is marked, since a person should look at it. Pure."""

from millstream.console.model.pending import PendingEntry
from millstream.console.model.streams import ConsumerStatus, GroupStatus
from millstream.console.model.workers import WorkerStatus

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
