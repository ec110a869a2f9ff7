"""The work of a task: it reads its ranges page by page, and requests the next page before it converts a page."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import DataLossError, Id, Range, StreamState
from millstream.spark.options.read import Options
from millstream.spark.read.pages import Pages
from millstream.spark.read.stream_info import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("millstream.spark")


def read_ranges(options: Options, layout: Layout, wholes: Sequence[Range]) -> "Iterator[pa.RecordBatch]":
    """Yield the entries of ranges, one after the other, as record batches; another attempt yields the same rows."""
    for key, page in pages_of(options, wholes, layout.want):
        yield layout.batch(key, page)


def pages_of(options: Options, wholes: Sequence[Range], want: Want) -> Iterator[tuple[str, Page]]:
    """Yield the entries of ranges, each page with its stream; raise if they are trimmed before they are read."""
    rest = iter(wholes)
    reading = _begun(options, rest)
    try:
        while reading is not None:
            key, page = reading.whole.key, reading.page(want)
            if reading.done:
                reading.close()
                reading = _begun(options, rest)
            if page is not None:
                yield key, page
    finally:
        if reading is not None:
            reading.close()


class _Reading:
    """A range that is being read, with its next page always requested."""

    def __init__(self, options: Options, whole: Range) -> None:
        self._options = options
        self.whole = whole
        self._pages = Pages(options.url, whole.key, whole.start, whole.end, replica=options.from_replica)
        self._reported = False
        self.close = self._pages.close
        if not self.done:
            self._pages.ask()

    @property
    def done(self) -> bool:
        """True if no page is left."""
        return self._pages.done

    def page(self, want: Want) -> Page | None:
        """Return the requested page; None when it is empty."""
        if self.done:
            return None
        before = self._pages.cursor
        page, first = self._pages.decode(self._pages.receive(), want)
        if not self._pages.doubtful and overtaken(self.whole, before, page, first):
            report(self._options, self.whole, warn=not self._reported)
            self._reported = True
        if not self.done:
            self._pages.ask()
        return page


def _begun(options: Options, rest: Iterator[Range]) -> _Reading | None:
    """Start the next range, with its first page requested; return None after the last."""
    whole = next(rest, None)
    return None if whole is None else _Reading(options, whole)


def overtaken(whole: Range, cursor: Id, page: Page | None, first: Id | None) -> bool:
    """Return True if entries of the batch may have left the stream before the page after ``cursor`` was read.

    They have not while an entry up to the cursor still exists (trimming takes the oldest first). Nor have they while
    the first entry of the plan exists.
    """
    planned = whole.first
    if planned is None or (first is not None and first <= max(cursor, planned)):
        return False
    return page is None or page.first != planned


def report(options: Options, whole: Range, *, warn: bool) -> None:
    """Find out why the batch's first entries are missing: raise if they were trimmed, warn if deleted one by one."""
    with closing(StreamInfo(options)) as info:
        state = info.states([whole.key])[whole.key]
    what = _gone(whole, state)
    deleted = state is not None and whole.first is not None and state.max_deleted >= whole.first
    if state is None or (options.fail_on_loss and not deleted):
        raise DataLossError(
            f"{what}. Set option 'failOnDataLoss' to 'false' to go on without them; trim later, or by what this "
            "query's 'group' has read, to keep it from happening again"
        )
    if warn:
        logger.warning("%s; reading goes on", what)


def _gone(whole: Range, state: StreamState | None) -> str:
    message = f"stream {whole.key!r}: while the batch up to {whole.end} was being read, "
    if state is None:
        return message + "the stream was deleted"
    until = f"before {state.first}" if state.first else "up to the end"
    return message + f"entries from {whole.first} and {until} were removed (at most {state.removed - whole.start_n})"
