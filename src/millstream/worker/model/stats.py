"""Counters of one subscriber in one process.

Each is counted where the thing happens, by ``member.stats``; :mod:`millstream.worker.monitoring.prometheus` names the
metric that shows it, and docs/reference/metrics.md lists that.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class SubscriberStats:
    """Counters of one subscriber since its start."""

    read: int = 0  # New entries received
    claimed: int = 0  # Entries received that had been delivered before
    handled: int = 0  # Runs of the handler that ended well
    acked: int = 0  # Entries the server took the ack for
    failed: int = 0  # Runs that ended in an error, a nack or a reject, and entries that did not fit the handler
    retried: int = 0  # Failures that were given back for another delivery
    released: int = 0  # Entries handed back unharmed, as at shutdown
    limited: int = 0  # Entries that a limit by key put aside, to be delivered again uncounted
    dead: int = 0  # Entries put into the dead-letter stream
    cancelled: int = 0  # Entries that were cancelled before or during their run, and acknowledged
    # Runs of entries that had been delivered before, so that the handler's effect may be a repetition
    suspects: int = 0
    lost: int = 0  # Entries that another consumer took over, or that were trimmed away, before their outcome was stored
    fenced: int = 0  # Outcomes that the server refused because the entry was another's by then; they are among the lost
    groups_created: int = 0  # Times the group was missing and was made
    reconnects: int = 0  # Times the connection for reading was lost
    reaped: int = 0  # Dead consumers of the group that this process removed

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)


def in_words(counters: Mapping[str, int]) -> str:
    """The counters that are not zero, for a line of the log."""
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counters.items() if count) or "nothing"
