"""The plan for renewing a consumer's entries, so that no other takes them for abandoned and claims them. Pure.

A Redis server does not have leases. An entry counts as abandoned once it is idle for ``min_idle``, on which the
claimers of its group agree. So a consumer that works on an entry for longer resets its idle time, again and again. A
worker does it for the entries it is handling, from its event loop (``worker/settlement/leases.py``). Spark's driver
does it for the entries of a batch, from a thread (``spark/group/renewal.py``). Both follow the plan in this module.

At most a third of ``min_idle`` passes between two renewals: two may then fail or come late, and the entry is still
the consumer's.
"""

from dataclasses import dataclass

#: Longest and shortest seconds between two rounds of a holder that records the renewal time of each entry.
_LONGEST, _SHORTEST = 1.0, 0.005
#: Shortest seconds between two rounds of a holder that must query the server, which costs a command or more.
_SHORTEST_ASKING = 0.05
#: Milliseconds assumed as ``min_idle`` if the group's consumers did not set it.
ASSUMED_MIN_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """The renewal plan of one consumer."""

    period: float  # Seconds between two rounds
    # Milliseconds since an entry's last renewal after which a round renews it. An entry that another consumer has just
    # claimed is younger, so it is left alone.
    renew_after_ms: int

    @classmethod
    def known(cls, min_idle_ms: int) -> "LeasePlan":
        """Return the plan for a holder that knows each entry's last renewal: it renews after a third of the time."""
        third = min_idle_ms / 3
        return cls(max(min(third / 1000, _LONGEST), _SHORTEST), min_idle_ms // 3)

    @classmethod
    def asked(cls, min_idle_ms: int | None) -> "LeasePlan":
        """Return the plan for a holder that queries the idle entries: each round renews all but the youngest."""
        period = max((min_idle_ms or ASSUMED_MIN_IDLE_MS) / 3000, _SHORTEST_ASKING)
        return cls(period, int(period * 500))

    def is_due(self, now_ms: int, renewed_ms: int) -> bool:
        """Return True if an entry is to be renewed in this round, given its last renewal; both times by one clock."""
        return now_ms - renewed_ms >= self.renew_after_ms
