"""A console's own history in memory, while no process writes one: the figures of its readings, in the same tables.

It has the chosen series of the times when a page was open, at most every ten seconds, for at most 24 hours.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from millstream.ops.history.model import BYTES, KEPT_MS, TEN, TEN_MS, TOTAL, Cell, Subject, packed, table
from millstream.ops.history.sampling import Sampler
from millstream.ops.history.series import KeptReads, SeriesSeen
from millstream.ops.history.windows import TimeRange
from millstream.ops.server.status import ServerStatus
from millstream.ops.streams.status import StreamsSeen
from millstream.ops.workers.status import WorkerStatus


class OwnHistory:
    """The figures that one console has read."""

    def __init__(self) -> None:
        self._sampler = Sampler()
        self._entries: deque[tuple[int, list[bytes]]] = deque()
        self._size = 0
        self._reads = KeptReads()
        self._servers: tuple[Cell, Cell] = (None, None)  # memory, and commands a second

    def note_besides(self, workers: Sequence[WorkerStatus], servers: Sequence[ServerStatus]) -> None:
        """Keep the figures of workers and servers for the next entry."""
        self._sampler.note_workers(workers)
        memory = [one.memory_bytes for one in servers if one.memory_bytes is not None]
        commands = [one.commands_per_second for one in servers if one.commands_per_second is not None]
        self._servers = (sum(memory) if memory else None, sum(commands) if commands else None)

    def note(self, seen: StreamsSeen, *, whole: bool) -> None:
        """Store the figures of a reading, unless the last one is younger than ten seconds."""
        if self._entries and self._entries[-1][0] > seen.at_ms + TEN_MS:  # the clock was set back
            self._entries.clear()
            self._reads.clear()
            self._size = 0
        if self._entries and seen.at_ms - self._entries[-1][0] < TEN_MS:
            return
        self._sampler.note(seen, whole=whole)
        self._sampler.rows[TOTAL] = self._sampler.total(*self._servers)
        rows = {name: self._sampler.rows[name] for name in self._sampler.chosen(seen) if name in self._sampler.rows}
        if not whole:
            del rows[TOTAL]
        name, value = packed(table(rows))
        self._entries.append((seen.at_ms, [b"v", b"1", name.encode(), value]))
        self._size += len(value)
        while self._size > BYTES[TEN] or self._entries[0][0] < seen.at_ms - KEPT_MS[TEN]:
            self._size -= len(self._entries.popleft()[1][-1])

    def read(self, subjects: tuple[Subject, ...], window: TimeRange) -> SeriesSeen:
        """Return the history of some subjects."""
        known = self._reads.of((subjects, window.name), window.start_ms)
        for at_ms, flat in self._entries:
            if int(known.next) <= at_ms < window.end_ms:
                known.take(at_ms, flat, subjects)
                known.next = str(at_ms + 1)
        known.first_ms = self._entries[0][0] if self._entries else None
        known.drop(window.start_ms)
        return replace(known.seen(subjects), own=True)
