"""Write entries of an archive or a stream into a stream again, each once, at their original speed or another.

Every transaction at the target holds entries and the cursor that marks the last of them. It happens only if the cursor
is where this replay left it. So a replay that was killed, or lost its connection within a transaction, continues after
the last entry that was written. Two runs of one replay cannot write at the same time.
"""

import time
from collections.abc import Callable
from contextlib import closing

from millstream.client.url import SERVERS
from millstream.spark.archiving.replay_model import Replay, ReplayBatch, ReplayResult
from millstream.spark.archiving.replay_source import batches, open_folder, open_source
from millstream.spark.archiving.replay_target import ReplayTarget

LOOK_SECONDS = 0.2

Tell = Callable[[str, int, int], None]


def replay(
    what: Replay,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda _what, _done, _all: None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> ReplayResult:
    """Run a replay to its end, or continue an interrupted one."""
    folder = None if what.source.startswith(SERVERS) else open_folder(what.source)
    with closing(ReplayTarget(what)) as target:
        done = ReplayResult()
        after = target.begin(done)
        if done.finished:
            return done
        source = open_source(what, folder, after)
        pace = _Pace(what.speed, clock)
        tell("replayed", 0, source.total)
        for batch in batches(what, source.pages(), done):
            if not _ripe(batch, pace, stop, wait):
                return done
            target.write(batch, done)
            tell("replayed", done.read, max(done.read, source.total))
        target.finish()
        done.finished = True
        return done


class _Pace:
    """The times at which batches are due."""

    def __init__(self, speed: float | None, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._clock = clock
        self._zero: tuple[float, int] | None = None

    def left(self, batch: ReplayBatch) -> float:
        """Return the seconds until a batch is due; the first batch is due at once."""
        if self._speed is None or batch.first is None:
            return 0.0
        if self._zero is None:
            self._zero = self._clock(), batch.first.ms
        began, first_ms = self._zero
        return began + (batch.first.ms - first_ms) / 1000 / self._speed - self._clock()


def _ripe(batch: ReplayBatch, pace: _Pace, stop: Callable[[], bool], wait: Callable[[float], None]) -> bool:
    """Wait until a batch is due; return False if ``stop`` returned True before."""
    while not stop():
        left = pace.left(batch)
        if left <= 0:
            return True
        wait(min(left, LOOK_SECONDS))
    return False
