"""A range of a stream page by page: pages sized by bytes, requested again if the server was away."""

from millstream.spark.arrow.decode import decode
from millstream.spark.arrow.page import Page, Want
from millstream.spark.connection.bulk_reader import BulkReader
from millstream.spark.model.offsets import DataLossError, Id, parse_id

FIRST_COUNT = 1000
MOST_COUNT = 8000
PAGE_BYTES = 4 << 20
"""Approximate size of a page, so that a task with large entries stays small."""

_NOTHING = Want()


class Pages:
    """Reads the entries of ``(start, end]`` of one stream, over a connection that outlives this object."""

    def __init__(self, url: str, key: str, start: Id, end: Id, *, replica: bool = False) -> None:
        self._bulk = BulkReader(url, key, end if replica else None)
        self._key = key
        self._end = end
        self._count = FIRST_COUNT
        self._asked = 0
        self._failed = False
        self.doubtful = False  # The last page was short, and the server has not confirmed that it is the end
        self.cursor = start  # Id of the last entry that was read
        self.done = start >= end  # Nothing is left to read

    def ask(self, most: int | None = None) -> None:
        """Request the page after the cursor, of at most ``most`` entries, without waiting for it."""
        self._asked = self._count if most is None else min(self._count, most)
        self._bulk.send(
            [
                ("XRANGE", self._key, f"({self.cursor}", str(self._end), "COUNT", self._asked),
                # After the page: an entry in this reply existed when the page was read.
                ("XRANGE", self._key, "-", "+", "COUNT", 1),
            ]
        )

    def receive(self) -> bytes:
        """Return the replies to the last request."""
        return self._bulk.receive()

    def decode(self, raw: bytes, want: Want) -> tuple[Page | None, Id | None]:
        """Return the page in ``raw`` (None when it is empty), and the stream's first entry just after it was read.

        Moves the cursor past the page and sets ``done`` after the last one.
        """
        page, (head,) = decode(raw, want, more=1)
        rows = len(page.ids) if page else 0
        if page is not None:
            self.cursor = page.last
            self._count = max(1, min(MOST_COUNT, PAGE_BYTES * rows // len(raw)))
        self.done = self.cursor >= self._end or (rows < self._asked and self._proved())
        self.doubtful = rows < self._asked and not self.done
        return page, parse_id(head[0][0].decode()) if head else None

    def _proved(self) -> bool:
        """Return True if a page that ended before the range's end did so because there are no more entries.

        The primary gave the end. The present server may be behind it: a primary that was replaced without noticing, or
        a restarted replica. It has fewer entries, and the missing ones would seem to be deleted.
        """
        try:
            last = self._bulk.last_id()
        except OSError:
            return False
        replica = self._bulk.from_replica
        if (last is None and not replica) or (last is not None and last >= self._end):
            return True
        self._bulk.drop()  # the next page is read through a new connection, to the present primary
        if self._failed and not replica:
            raise DataLossError(
                f"stream {self._key!r} went back: entries up to {self._end} were to be read, and its last id is now "
                f"{last}. It was deleted and created again, or restored from an older state. Start the query with a "
                "new checkpointLocation (and startingOffsets)"
            )
        self._failed = not replica
        return False

    def skip(self, most: int) -> tuple[int, Id] | None:
        """Read up to ``most`` entries and drop them; return their number and the last id, or None at the end."""
        if self.done:
            return None
        self.ask(most)
        page, _ = self.decode(self.receive(), _NOTHING)
        return None if page is None else (len(page.ids), page.last)

    def close(self) -> None:
        """Keep the connection for the next range if it has no open request."""
        self._bulk.close()
