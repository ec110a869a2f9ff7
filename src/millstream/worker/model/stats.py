"""Counters of one subscriber in one process.

The code at each event increments its counter in ``member.stats``.
:mod:`millstream.worker.monitoring.prometheus` maps counters to metrics, and docs/reference/metrics.md lists those.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class SubscriberStats:
    """Counters of one subscriber since its start."""

    read: int = 0  # New entries that were read
    claimed: int = 0  # Claimed entries, which had been delivered before
    handled: int = 0  # Successful runs of the handler
    acked: int = 0  # Entries that the server acknowledged
    failed: int = 0  # Runs that ended in an error, a nack or a reject, and entries that did not fit the handler
    retried: int = 0  # Failed entries that were released for another delivery
    released: int = 0  # Entries released without a failure, as at shutdown
    limited: int = 0  # Entries that a limit by key delayed, for another delivery that is not counted
    dead: int = 0  # Entries put into the dead-letter stream
    cancelled: int = 0  # Entries that were cancelled before or during their run, and acknowledged
    # Runs of entries that had been delivered before, so that the handler may repeat an effect
    suspects: int = 0
    lost: int = 0  # Entries that another consumer claimed, or that were trimmed, before their outcome was stored
    fenced: int = 0  # Outcomes refused because another consumer holds the entry; they also count as lost
    groups_created: int = 0  # Number of times that the missing group was created
    reconnects: int = 0  # Number of times that the reading connection was lost
    reaped: int = 0  # Dead consumers of the group that this process removed

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)


def in_words(counters: Mapping[str, int]) -> str:
    """Return the counters that are not zero as text, for a log line."""
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counters.items() if count) or "nothing"
