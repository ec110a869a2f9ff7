"""The figures of reading for INFO's section ``tier``."""

import time

from millstream.node.clients.sessions import Sessions
from millstream.node.tiering.reading import ColdRunner

_NOWAIT = {1: "yes", 0: "no"}


def reading_rows(cold: ColdRunner, sessions: Sessions) -> list[tuple[str, object]]:
    """Return name and value of each figure of reading, in order."""
    source, tickets = cold.source, cold.tickets
    times = sorted(tickets.times) if tickets is not None else []
    p50, p99 = (times[len(times) * share // 100] if times else 0 for share in (50, 99))
    return [
        ("tier_nowait", "unknown" if source is None else _NOWAIT.get(source.nowait, "unknown")),
        ("tier_cache_bytes", (0 if source is None else source.held) + (0 if tickets is None else tickets.pinned)),
        ("tier_read_bytes", 0 if source is None else source.read_bytes),
        ("tier_reads", 0 if source is None else source.reads),
        ("tier_misses", 0 if tickets is None else tickets.parked),
        ("tier_blocking_reads", 0 if source is None else source.blocking),
        ("tier_parked_clients", sessions.parking.count),
        ("tier_parked_longest_msec", sessions.parking.longest(time.perf_counter_ns()) // 1_000_000),
        ("tier_miss_usec", f"p50={p50},p99={p99}"),
        ("tier_damaged_extents", cold.damaged),
    ]
