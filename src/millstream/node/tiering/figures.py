"""The figures of INFO's section ``tier``: of what is in packs and on its way there, and of reading.

A sum over all streams is valid for a second, since a server may have very many.
"""

import time
from collections.abc import Callable, Iterator

from millstream.engine.cold import EXTENT_BYTES
from millstream.engine.streams.stream import Stream
from millstream.node.clients.sessions import Sessions
from millstream.node.tiering.reading import ColdRunner
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.log import Log

Rows = Iterator[tuple[str, object]]

# Milliseconds for which sums over all streams are valid
_VALID = 1000
_NOWAIT = {1: "yes", 0: "no"}


class _Sums:
    """Sums over all streams with cold entries."""

    def __init__(self) -> None:
        self.live = self.extents = self.entries = self.holes = self.hot = 0

    def add(self, stream: Stream) -> None:
        """Add one stream."""
        entries = stream.entries
        self.hot += entries.sealed_bytes
        if entries.extent_count:
            self.live += entries.cold_bytes
            self.extents += entries.extent_count
            self.entries += entries.cold_live
            self.holes += entries.hole_bytes


def rows_of(
    opened: Log, spiller: Spiller, sessions: Sessions, disagreements: Callable[[], int]
) -> Callable[[int], Rows]:
    """Return a function that yields the rows as of a wall time in milliseconds.

    ``disagreements`` returns the number of packs that a rewriting kept only because of the data in memory.
    """
    sums, summed_at = _Sums(), -_VALID

    def rows(wall: int) -> Rows:
        nonlocal sums, summed_at
        if not 0 <= wall - summed_at < _VALID:
            sums, summed_at = _Sums(), wall
            for db in spiller.keyspace.databases:
                for value in db.keys.values():
                    if isinstance(value, Stream):
                        sums.add(value)
        filler, size = spiller.filler, opened.pack_bytes()
        yield "tier_packs", opened.pack_count
        yield "tier_bytes", size
        yield "tier_live_bytes", sums.live
        yield "tier_waste_bytes", max(size - sums.live, 0)
        yield "tier_extents", sums.extents
        yield "tier_entries", sums.entries
        yield "tier_index_bytes", EXTENT_BYTES * sums.extents
        yield "tier_hole_bytes", sums.holes
        yield "tier_hot_bytes", sums.hot
        yield "tier_spilled_bytes", spiller.spilled
        yield "tier_spill_in_progress", int(spiller.is_busy)
        yield "tier_last_spill_status", filler.status
        yield "tier_spill_failures", filler.failures
        yield "tier_disk_needed", spiller.disk_needed
        yield "tier_stalls", sessions.stalls.count
        yield "tier_disagreements", disagreements()

    return rows


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
        ("tier_damaged_extents", len(cold.damages())),
    ]
