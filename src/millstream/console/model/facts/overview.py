"""All streams together: figures over all of them, and their order, the worst first. Pure."""

from collections.abc import Mapping

from millstream.console.model.facts.marks import is_late, is_stuck
from millstream.console.model.facts.streams import Facts
from millstream.console.model.streams import StreamsSeen, StreamStatus

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
