"""Reading ahead for clients that read a stream's extents in order, and forgetting what is behind them.

A client whose miss is in the extent after that of its last one is *sequential*: threads read the next 256 KiB, twice as
much each time, into the page cache. The first extent that is read ahead is marked, so that the reader misses there once
more and the next ones are read; nothing is parked for that. Extents behind a sequential reader are dropped from the
page cache after some time, unless another one reads there. So a long backlog does not push out all else.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.commands.context.session import Session
from millstream.engine.cold import ColdMiss, Range
from millstream.node.tiering.fetching import joined
from millstream.node.tiering.packreader import PackSource
from millstream.node.tiering.tickets import Tickets

FIRST = 256 << 10
"""Bytes that are read ahead at first."""
IN_FLIGHT = 64 << 20
"""Bytes that are read ahead at most at a time, for all clients."""
KEPT_SECONDS = 10.0
"""Seconds until an extent behind a reader is dropped from the page cache."""
IDLE_SECONDS = 60.0
"""Seconds after its last miss for which a reader is followed."""
# Readers that are followed at a time
_RUNS = 1024
# Extents that are dropped at a time
_DROPPED = 64


@dataclass(slots=True, eq=False)
class _Pursuit:
    """A client's reading of one stream."""

    at: Range  # Extent of its last miss
    expected: Sequence[Range]  # Extents after it
    seen: float = 0.0  # Seconds of the clock at its last miss
    window: int = 0  # Bytes to read ahead
    mark: Range | None = None  # Extent that is marked for it


@dataclass(slots=True, eq=False)
class _Behind:
    """Extents that a sequential reader has left."""

    run: _Pursuit
    until: float  # Seconds of the clock at which they are dropped
    extents: list[Range]


class ReadAhead:
    """Follows the clients that read cold entries."""

    def __init__(
        self, tickets: Tickets, source: PackSource, limit: Callable[[], int], newest: Callable[[], int]
    ) -> None:
        self._tickets, self._source = tickets, source
        self._limit = limit  # bytes to read ahead at most for one client
        self._newest = newest  # number of the pack that may still be filled
        self._runs: dict[int, _Pursuit] = {}  # by session id, in order of their last misses
        self._marks: dict[Range, _Pursuit] = {}  # each pursuit has one mark at most, and takes it along when it ends
        self._behind: deque[_Behind] = deque()
        self._sent: dict[Range, None] = {}  # extents that were read ahead lately

    def note(self, session: Session, miss: ColdMiss, seconds: float) -> bool:
        """Take in a miss; return True if its bytes were only marked, so that the command may run again at once."""
        is_mark = self._take_mark(miss.ranges[0])
        if not miss.ahead or not self._limit() or self._source.nowait == 0:
            return is_mark
        here, after = miss.ahead[0], miss.ahead[1:]
        run = self._runs.pop(session.id, None)
        if run is not None and here in run.expected:
            run.window = min(max(2 * run.window, FIRST), self._limit())
            left = [run.at, *run.expected[: run.expected.index(here)]]
            self._behind.append(_Behind(run, seconds + KEPT_SECONDS, left))
            run.at, run.expected = here, after
            if run.mark not in after:
                self._unmark(run)
            self._read(run)
        elif run is None or here != run.at:
            if run is not None:
                self._unmark(run)
            run = _Pursuit(here, after)
        run.seen = seconds
        self._runs[session.id] = run
        if len(self._runs) > _RUNS:
            self._end(next(iter(self._runs)))
        self.forget(seconds)
        return is_mark

    def clear(self, miss: ColdMiss) -> bool:
        """Remove the marks on all that a command will read next; return True if its miss was only made by one."""
        is_mark = self._take_mark(miss.ranges[0])
        for extent in miss.ahead:
            if extent in self._marks:
                self._unmark(self._marks[extent])
        return is_mark

    def _end(self, session_id: int) -> None:
        """Follow a reader no longer."""
        self._unmark(self._runs.pop(session_id))

    def _unmark(self, run: _Pursuit) -> None:
        if run.mark is not None:
            self._source.unpin(*run.mark, True)
            del self._marks[run.mark]
            run.mark = None

    def drop(self, pack: int) -> None:
        """Forget a pack that is closed; another one may get its number."""
        for session_id, run in list(self._runs.items()):
            if pack in {run.at[0], *(extent[0] for extent in run.expected)}:
                self._end(session_id)
        self._sent = {extent: None for extent in self._sent if extent[0] != pack}
        for left in self._behind:
            left.extents = [extent for extent in left.extents if extent[0] != pack]

    def _take_mark(self, wanted: Range) -> bool:
        pack, offset, length = wanted
        for mark, run in self._marks.items():
            if mark[0] == pack and mark[1] <= offset and offset + length <= mark[1] + mark[2]:
                self._unmark(run)
                return True
        return False

    def _read(self, run: _Pursuit) -> None:
        """Read the extents of a window that were not read ahead before, and mark the first of them."""
        size, fresh = 0, []
        for extent in run.expected:
            if size >= run.window:
                break
            size += extent[2]
            if extent not in self._sent:
                fresh.append(extent)
        room = IN_FLIGHT - self._tickets.ahead
        for extent in fresh.copy():
            room -= extent[2]
            if room < 0:
                fresh.remove(extent)
        if not fresh:
            return
        self._sent |= dict.fromkeys(fresh)
        while len(self._sent) > 2 * _RUNS:
            del self._sent[next(iter(self._sent))]
        for part in joined(fresh):
            self._tickets.fetch_of(part, is_ahead=True)
        if fresh[0] not in self._marks:
            self._unmark(run)
            run.mark = fresh[0]
            self._marks[run.mark] = run
            self._source.pin(*run.mark, 0)

    def forget(self, seconds: float) -> None:
        """Drop extents from the page cache that readers have left some time ago, and readers that have stopped."""
        while self._runs and (first := next(iter(self._runs.items())))[1].seen + IDLE_SECONDS <= seconds:
            self._end(first[0])
        while self._behind and self._behind[0].until <= seconds:
            left = self._behind.popleft()
            for extent in left.extents[:_DROPPED]:
                self._sent.pop(extent, None)
                if extent[0] != self._newest() and not self._is_wanted(left.run, extent):
                    self._source.advise(*extent, False)

    def _is_wanted(self, run: _Pursuit, extent: Range) -> bool:
        """True if another reader in order is at an extent, comes to it, or has left it more lately."""
        return any(each.run is not run and extent in each.extents for each in self._behind) or any(
            each is not run and each.window and (extent == each.at or extent in each.expected)
            for each in self._runs.values()
        )
