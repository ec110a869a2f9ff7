"""Counters of one subscriber in one process.

Each is counted where the thing happens, by ``member.stats``; :mod:`millstream.worker.monitoring.prometheus` names the
metric that shows it, and docs/worker/reference.md lists that.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class SubscriberStats:
    """What one subscriber did since it started.

    Attributes:
        read: new entries received.
        claimed: entries received that had been delivered before.
        handled: runs of the handler that ended well.
        acked: entries the server took the ack for.
        failed: runs that ended in an error, a nack or a reject, and entries that did not fit the handler.
        retried: failures that were given back for another delivery.
        released: entries handed back unharmed, as at shutdown.
        dead: entries put into the dead-letter stream.
        suspects: runs of entries that had been delivered before, so that the handler's effect may be a repetition.
        lost: entries that another consumer took over, or that were trimmed away, before their outcome was stored.
        fenced: outcomes that the server refused because the entry was another's by then; they are among the lost.
        groups_created: times the group was missing and was made.
        reconnects: times the connection for reading was lost.
        reaped: dead consumers of the group that this process removed.
    """

    read: int = 0
    claimed: int = 0
    handled: int = 0
    acked: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    dead: int = 0
    suspects: int = 0
    lost: int = 0
    fenced: int = 0
    groups_created: int = 0
    reconnects: int = 0
    reaped: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self)
