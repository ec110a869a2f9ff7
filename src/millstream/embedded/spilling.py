"""The in-process shell of spilling: turns of the background thread, and a thread that writes packs.

The callers' threads only say that data has changed. So no call waits for a pack, except one above ``maxmemory``.
"""

import time
from collections.abc import Callable

from millstream.clock import Now
from millstream.embedded.guard import Helper
from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.maintenance.joining import join_tier
from millstream.node.node import Node
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.log import Log

log = logger("millstream.embedded")

# Seconds from a change of data to the next turn, and from an internal error to the next attempt
_PACE, _AFTER_ERROR = 0.05, 1.0


class StoreSpilling:
    """Runs a store's spiller. All but :meth:`stop` and :meth:`abandon` is called inside the store's guard.

    Args:
        node: the store's node.
        opened: its log.
        wake: wakes the background thread; called in the thread that writes packs.
    """

    def __init__(self, node: Node, opened: Log, wake: Callable[[], None]) -> None:
        self._node = node
        self._wake_thread = wake
        self.due: float | None = None  # Monotonic seconds of the next turn; None if only a change makes it due
        self._spiller = Spiller(node, opened, wake=self._wake, thread=Helper)
        self._vacuum = join_tier(node, opened, self._spiller)

    def _wake(self) -> None:
        self.due = 0.0
        self._wake_thread()

    def poke(self) -> None:
        """Note that data may have changed."""
        soon = time.monotonic() + _PACE
        if (self._node.config.tier or self._node.spills is not None) and (self.due is None or self.due > soon):
            self.due = soon

    def turn(self, now: Now) -> bool:
        """Do the next piece of work; return False if it is not due. A defect is logged and tried again later."""
        if self.due is None or self.due > time.monotonic():
            return False
        self.due = None
        try:
            seconds = self._spiller.turn(now)
        except StorageError:
            raise
        except Exception:
            log.exception("internal error while entries were moved to files")
            seconds = _AFTER_ERROR
        if seconds is not None:
            self.due = time.monotonic() + seconds
        return True

    def stop(self) -> None:
        """Wait for the thread that writes packs, and end its pack."""
        self._spiller.stop()

    def abandon(self) -> None:
        """Close a forked child's copies of packs, and write nothing."""
        self._spiller.filler.abandon()
        self._vacuum.renewer.abandon()
