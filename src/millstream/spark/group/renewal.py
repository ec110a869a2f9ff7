"""Lease renewal of Spark's driver: while a batch runs, another thread renews the entries that the batch holds.

:mod:`millstream.client.leases` decides the times. A round queries which entries have been idle for a while, so it needs
no list of them. Entries that another consumer has claimed are not this query's, and are not queried.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from millstream.client.leases import LeasePlan
from millstream.client.ranges import behind
from millstream.spark.connection.connection import CONNECT_SECONDS, ErrorReply
from millstream.spark.connection.router import Router, absent

logger = logging.getLogger("millstream.spark")

_PAGE = 1000


class LeaseRenewal:
    """Renews entries by resetting their idle time, as long as no other consumer has claimed them."""

    def __init__(
        self, url: str, group: str, min_idle_ms: int | None = None, beside: Callable[[Router], None] | None = None
    ) -> None:
        self._url = url
        self._group = group
        self.plan = LeasePlan.asked(min_idle_ms)
        self._beside = beside
        self._held: tuple[str, Sequence[str]] | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def keep(self, consumer: str, keys: Sequence[str]) -> None:
        """Renew this consumer's entries of these streams from now on, and no others."""
        self._held = (consumer, tuple(keys))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millstream-renewal", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Stop renewing until the next :meth:`keep`."""
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
        while not self._wake.wait(self.plan.period):
            held = self._held
            if held is None:
                continue
            try:
                if self._beside is not None:
                    self._beside(asker)
                self.round(asker, *held)
            except Exception as reason:  # noqa: BLE001 - the batch continues after any error; the next round retries
                logger.warning("group %r: what %s holds could not be renewed: %s", self._group, held[0], reason)
        asker.close()

    def round(self, asker: Router, consumer: str, keys: Sequence[str]) -> None:
        """Renew the entries once that have been idle for a while; entries just claimed by others have not."""
        old = self.plan.renew_after_ms
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
