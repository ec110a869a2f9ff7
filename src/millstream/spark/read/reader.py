"""What a task does: reads its range page by page, the next one asked for before the present one is made into rows."""

import logging
from typing import TYPE_CHECKING

from millstream.spark.model.offsets import DataLossError, Id, Range, StreamState
from millstream.spark.read.pages import Pages
from millstream.spark.read.stream_info import StreamInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from millstream.spark.arrow.columns import Layout
    from millstream.spark.arrow.page import Page
    from millstream.spark.options.read import Options

logger = logging.getLogger("millstream.spark")


def read_range(options: "Options", layout: "Layout", whole: Range) -> "Iterator[pa.RecordBatch]":
    """The entries of a range as record batches. Reading has no side effect: doing it again gives the same rows.

    Args:
        options: of the read.
        layout: of the rows.
        whole: what is to be read, as it was planned.

    Raises:
        DataLossError: the stream was trimmed past the place where this was reading.
    """
    pages = Pages(options.url, whole.key, whole.start, whole.end, replica=options.from_replica)
    reported = False
    try:
        if not pages.done:
            pages.ask()
        while not pages.done:
            before = pages.cursor
            page, first = pages.decode(pages.receive(), layout.want)
            if not pages.doubtful and overtaken(whole, before, page, first):
                report(options, whole, warn=not reported)
                reported = True
            if not pages.done:
                pages.ask()
            if page is not None:
                yield layout.batch(whole.key, page)
    finally:
        pages.close()


def overtaken(whole: Range, cursor: Id, page: "Page | None", first: Id | None) -> bool:
    """Whether entries of the batch may have left the stream before the page after ``cursor`` was read.

    They have not while an entry up to the cursor is still there (trimming takes the oldest first), nor while the first
    entry that the batch was planned with is.

    Args:
        whole: the range, with the first entry that it was planned with.
        cursor: the last entry before the page.
        page: what was read.
        first: of the stream after the page was read; entries that left between the two were in the page.
    """
    planned = whole.first
    if planned is None or (first is not None and first <= max(cursor, planned)):
        return False
    return page is None or page.first != planned


def report(options: "Options", whole: Range, *, warn: bool) -> None:
    """Find out what happened to the batch's first entries: raise if they were trimmed, warn if deleted one by one.

    Args:
        options: of the read; ``fail_on_loss`` says whether a loss is an error.
        whole: the range that is being read.
        warn: whether to log a loss that is no error; once a range is enough.

    Raises:
        DataLossError: entries of the range are gone, unread.
    """
    info = StreamInfo(options)
    try:
        state = info.states([whole.key])[whole.key]
    finally:
        info.close()
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
