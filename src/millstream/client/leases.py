"""When to renew a consumer's entries, so that no other takes them for abandoned and claims them. Pure.

A server does not know leases. An entry counts as abandoned once it is idle for ``min_idle``, on which the claimers of
its group agree. So a consumer that works on an entry for longer resets its idle time, again and again. A worker does it
for the entries in its hands, from its event loop (``worker/settlement/leases.py``). Spark's driver does it for the
entries of a batch, from a thread (``spark/group/renewal.py``). Both go by the plan that is here.

A third of ``min_idle`` is the most that passes between two renewals: two may then fail or come late, and the entry is
still ours.
"""

from dataclasses import dataclass

#: Longest and shortest seconds between two rounds of a holder that knows when it renewed each entry.
_LONGEST, _SHORTEST = 1.0, 0.005
#: Shortest seconds between two rounds of a holder that asks the server, which costs a command or more.
_SHORTEST_ASKING = 0.05
#: Milliseconds of ``min_idle`` if the claimers of a group did not give theirs.
ASSUMED_MIN_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """A plan for one consumer."""

    period: float  # Seconds between two rounds
    # Milliseconds since its last sign of life after which a round renews an entry. An entry that another consumer has
    # just claimed is younger, and left to it.
    renew_after_ms: int

    @classmethod
    def known(cls, min_idle_ms: int) -> "LeasePlan":
        """For a holder that knows when it last renewed each entry: it looks often, and renews each at a third."""
        third = min_idle_ms / 3
        return cls(max(min(third / 1000, _LONGEST), _SHORTEST), min_idle_ms // 3)

    @classmethod
    def asked(cls, min_idle_ms: int | None) -> "LeasePlan":
        """For a holder that asks the server which entries are idle: each round renews all but the youngest."""
        period = max((min_idle_ms or ASSUMED_MIN_IDLE_MS) / 3000, _SHORTEST_ASKING)
        return cls(period, int(period * 500))

    def is_due(self, now_ms: int, renewed_ms: int) -> bool:
        """True when an entry that was last renewed then is to be renewed in this round; both by one clock."""
        return now_ms - renewed_ms >= self.renew_after_ms
