"""Keeps what a consumer holds from looking abandoned while a batch runs, in a thread beside it."""

import logging
import threading
from collections.abc import Callable, Sequence

from millstream.client.ranges import behind
from millstream.spark.connection.connection import CONNECT_SECONDS, ErrorReply
from millstream.spark.connection.router import Router, absent

logger = logging.getLogger("millstream.spark")

DEFAULT_SECONDS = 10.0
_PAGE = 1000


class Keeper:
    """Renews entries by resetting their idle time, as long as nobody else has claimed them.

    Args:
        url: of the server.
        group: the group.
        min_idle_ms: after how long others claim; a third of it is the time between two rounds. None is ten seconds.
        beside: called in every round, with the thread's own connection.
    """

    def __init__(
        self, url: str, group: str, min_idle_ms: int | None = None, beside: Callable[[Router], None] | None = None
    ) -> None:
        self._url = url
        self._group = group
        self.period = DEFAULT_SECONDS if min_idle_ms is None else max(0.05, min_idle_ms / 3000)
        self._beside = beside
        self._held: tuple[str, Sequence[str]] | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def keep(self, consumer: str, keys: Sequence[str]) -> None:
        """From now on renew what this consumer holds of these streams, and nothing else."""
        self._held = (consumer, tuple(keys))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millstream-keeper", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Renew nothing until the next :meth:`keep`."""
        self._held = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CONNECT_SECONDS)
            self._thread = None

    def _run(self) -> None:
        asker = Router(self._url)
        while not self._wake.wait(self.period):
            held = self._held
            if held is None:
                continue
            try:
                if self._beside is not None:
                    self._beside(asker)
                self.round(asker, *held)
            except Exception as reason:  # noqa: BLE001 - whatever it is, the batch goes on and the next round tries again
                logger.warning("group %r: what %s holds could not be renewed: %s", self._group, held[0], reason)
        asker.close()

    def round(self, asker: Router, consumer: str, keys: Sequence[str]) -> None:
        """Renew once. Only entries that are idle for a while, which what a thief has just claimed is not."""
        old = int(self.period * 500)
        for key in keys:
            start: str | None = "-"
            while start is not None and not self._stopped and self._held is not None:
                (rows,) = asker.once([("XPENDING", key, self._group, "IDLE", old, start, "+", _PAGE, consumer)])
                if isinstance(rows, ErrorReply):
                    if not absent(rows):
                        raise rows
                    break
                if rows:
                    ids = [row[0] for row in rows]
                    asker.once([("XCLAIM", key, self._group, consumer, old, *ids, "JUSTID")])
                    start = behind(rows[-1][0])
                if len(rows) < _PAGE:
                    break
