"""What a task does: reads its range page by page, the next one asked for before the present one is decoded."""

import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.spark import wire
from millstream.spark.columns import Layout
from millstream.spark.decode import Page, fast, general, parse_replies
from millstream.spark.offsets import DataLossError, Id, Loss, Range, StreamState, parse_id
from millstream.spark.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.spark.options import Options

logger = logging.getLogger("millstream.spark")

FIRST_COUNT = 1000
MOST_COUNT = 8000
PAGE_BYTES = 4 << 20
"""Pages are kept to about this size, so that a task with large entries stays small."""


def read_range(options: "Options", layout: Layout, whole: Range) -> "Iterator[pa.RecordBatch]":
    """The entries of a range as record batches. Reading has no side effect: doing it again gives the same rows.

    Raises:
        DataLossError: the stream was trimmed past the place where this was reading.
    """
    reader = _Reader(options, whole)
    try:
        while (raw := reader.receive()) is not None:
            page, first = _decode(raw, layout)
            reader.check(page, first)
            if page is None:
                break
            reader.went_on(page, len(raw))
            yield layout.batch(whole.key, page)
    finally:
        reader.close()


def _decode(raw: bytes, layout: Layout) -> "tuple[Page | None, Id | None]":
    """A page, and the id of the stream's first entry just after it was read."""
    found = fast(raw, layout.want)
    if found is not None:
        page, size = found
        (head,) = parse_replies(raw[size:])
        return page, _first(head)
    collecting = gc.isenabled()
    gc.disable()  # a page is hundreds of thousands of objects, none of them in a cycle
    try:
        entries, head = parse_replies(raw)
        return general(entries, layout.want), _first(head)
    finally:
        if collecting:
            gc.enable()


def _first(head: list[list[bytes]]) -> Id | None:
    return parse_id(head[0][0].decode()) if head else None


class _Reader:
    """The pages of one range, over a connection that outlives it.

    Args:
        options: of the read.
        whole: the range.
    """

    def __init__(self, options: "Options", whole: Range) -> None:
        self._options = options
        self._range = whole
        self._cursor = whole.start
        self._count = FIRST_COUNT
        self._wire: wire.Wire | None = None
        self._done = whole.start >= whole.end
        self._warned = False
        if not self._done:
            self._again()

    def _again(self) -> None:
        """Ask for the page after the cursor, over a new connection if there is none."""

        def ask() -> None:
            if self._wire is None:
                self._wire = wire.borrow(self._options.url)
            try:
                self._wire.send(
                    [
                        ("XRANGE", self._range.key, f"({self._cursor}", str(self._range.end), "COUNT", self._count),
                        # After the page: what it shows as still there was there when the page was read.
                        ("XRANGE", self._range.key, "-", "+", "COUNT", 1),
                    ]
                )
            except OSError:
                self._drop()
                raise

        wire.retrying(ask)

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def receive(self) -> bytes | None:
        """The replies for the next page; None when the range is through."""
        if self._done:
            return None
        while True:
            assert self._wire is not None
            try:
                return self._wire.receive()
            except OSError:  # the server went away: the same page again, once it is back
                self._drop()
                self._again()

    def went_on(self, page: Page, size: int) -> None:
        """Move past a page and ask for the next one, if there is one."""
        rows = len(page.ids)
        asked, self._cursor = self._count, page.last
        self._count = max(1, min(MOST_COUNT, PAGE_BYTES * rows // max(size, 1)))
        self._done = rows < asked or page.last >= self._range.end
        if not self._done:
            self._again()

    def check(self, page: Page | None, first: Id | None) -> None:
        """Raise (or warn) if trimming has come past the place where this page begins.

        Nothing is lost while an entry up to that place is still there, nor while the batch's own first entry is.
        """
        planned = self._range.first
        if planned is None or (first is not None and (first <= self._cursor or first <= planned)):
            return
        if page is not None and page.first == planned:
            return
        survey = Survey(self._options)
        try:
            state = survey.states([self._range.key])[self._range.key]
        finally:
            survey.close()
        self._report(state)

    def _report(self, state: StreamState | None) -> None:
        trimmed = state is None or state.max_deleted < (self._range.first or self._range.start)
        count = max(1, state.removed - self._range.start_n) if state else self._range.rows
        first = state.first if state else None
        loss = Loss(self._range.key, self._range.start, first, count, certain=trimmed)
        if trimmed and (self._options.fail_on_loss or state is None):
            raise DataLossError(
                f"{loss}, while the batch up to {self._range.end} was being read. Set option 'failOnDataLoss' to 'false' to "
                "go on without them; trim later, or by what this query's 'group' has read, to keep it from happening again"
            )
        if not self._warned:
            self._warned = True
            logger.warning("%s; reading goes on", loss)

    def close(self) -> None:
        """Keep the connection for the next task if nothing is under way on it."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                wire.give_back(self._options.url, self._wire)
            self._wire = None
