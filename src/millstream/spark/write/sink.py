"""``writeStream.format("millstream")`` and ``write.format("millstream")`` as Spark sees them.

Tasks stage their rows (``staging``), the driver makes them visible (``commit``). A streaming query's batches are
identified by the query's id, which Spark gives to its tasks as a local property, and the batch's number. The property's
name is internal to Spark, and a test pins it. A problem with the rows does not fail the task, which Spark would repeat
and report amid Java's frames. It travels with the task's message, and the commit raises it.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import redis
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.client.url import login_refused, no_connection, remedy
from millstream.errors import ConfigError, NotLetInError, NotReachedError, UsageError
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.connection.router import Router
from millstream.spark.model import keys
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.commit import SinkCommit
from millstream.spark.write.server_errors import refused, wrong_type
from millstream.spark.write.staging import Part, Staging

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("millstream.spark")

QUERY_PROPERTY = "sql.streaming.queryId"

_LOCAL = re.compile(r"^file:(//)?(?=/)")
_BEFORE_OFFSETS = 2  # number of lines before the offsets: the format's version, and the batch's time and settings


@dataclass
class Staged(WriterCommitMessage):
    """The rows that a task has staged."""

    writer: str  # Writer of the rows
    parts: list[Part] = field(default_factory=list)  # Parts by stream
    problem: UsageError | None = None  # Problem with the rows; if set, nothing may be published


def stage(options: SinkOptions, layout: RowLayout, writer: str, batches: "Iterable[pa.RecordBatch]") -> Staged:
    """Store a task's rows on the server, invisible to readers.

    Returns:
        The staged rows, or the problem with the rows, which the driver raises.
    """
    staging = Staging(options, writer)
    try:
        staging.write(batches, layout)
        return Staged(writer, staging.parts)
    except UsageError as problem:
        _drop(staging)
        return Staged(writer, problem=problem)
    except BaseException:
        _drop(staging)
        raise
    finally:
        staging.close()


def _drop(staging: Staging) -> None:
    with contextlib.suppress(Exception):  # the first error is the one to raise; staged rows expire
        staging.discard()


def settle(
    options: SinkOptions,
    writer: str,
    version: int,
    messages: Sequence[Staged],
    *,
    lasting: bool,
    in_order: bool = False,
    sources: str | None = None,
) -> None:
    """Make the rows of all tasks visible; the driver calls it."""
    with closing(SinkCommit(options, writer, lasting=lasting, in_order=in_order)) as sink_commit:
        problem = next((message.problem for message in messages if message.problem is not None), None)
        if problem is not None:
            sink_commit.discard()
            raise problem
        sink_commit.commit(version, [part for message in messages for part in message.parts], sources)


def withdraw(options: SinkOptions, writer: str, *, lasting: bool) -> None:
    """Remove the tasks' staged rows after a failure, if the server is there; the driver calls it."""
    with closing(SinkCommit(options, writer, lasting=lasting)) as sink_commit:
        try:
            sink_commit.discard()
        except (UsageError, OSError) as reason:
            logger.warning("rows that were not committed stay until their time is up: %s", reason)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


_seen: set[tuple[str, str | None]] = set()
"""Servers and streams that passed the check in this process: later trouble is retried, not raised at once."""


def check_server(options: SinkOptions) -> None:
    """Raise at once, and in plain words, if the server is away or the target is not a stream."""
    if (options.url, options.stream) in _seen:
        return
    # If each row names its stream, the streams are unknown here, but any key reaches a server.
    key = options.stream or keys.PREFIX
    try:
        with contextlib.closing(Router(options.url)) as router:
            (kind,) = router.once([("TYPE", key)])
    except NotLetInError:
        raise
    except (UsageError, redis.RedisError, OSError, ValueError) as reason:
        away = NotLetInError if login_refused(reason) else NotReachedError
        step = remedy(options.url, reason)
        raise away(f"option 'url': {no_connection(options.shown_url, reason)} {step}, or correct the URL.") from None
    if isinstance(kind, ErrorReply):
        raise refused(kind, options)
    if options.stream is not None and kind not in (b"stream", b"none"):
        raise wrong_type(options.stream, kind, options)
    _seen.add((options.url, options.stream))


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Stage a partition."""
        return stage(self._options, self._layout, _query(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a batch, unless it was published before."""
        staged = _staged(messages)
        if staged:
            sources = _batch_range(self._options.checkpoint, batchId)
            settle(self._options, staged[0].writer, batchId, staged, lasting=True, in_order=True, sources=sources)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Remove the staged rows."""
        staged = _staged(messages)
        if staged:  # otherwise no task has staged rows, and the query's id is unknown
            withdraw(self._options, staged[0].writer, lasting=True)


def _query() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context else None
    if not query:
        raise UsageError(f"this version of Spark does not pass the id of the query to its tasks ({QUERY_PROPERTY})")
    return query


def _job(app: str, stream: str | None) -> str:
    """Return the writer's name for a numbered batch write, with the stream: ``foreachBatch`` may write two."""
    named = quote(app, safe="")
    return f"job:{named}" if stream is None else f"job:{named}:{stream}"


class BatchSink(DataSourceArrowWriter):
    """The sink of a batch write."""

    def __init__(self, options: SinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout
        self._lasting = options.app is not None
        self._writer = _job(options.app, options.stream) if options.app is not None else f"once:{os.urandom(12).hex()}"
        self._version = options.version or 0

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Stage a partition."""
        return stage(self._options, self._layout, self._writer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish everything."""
        settle(self._options, self._writer, self._version, _staged(messages), lasting=self._lasting)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Remove the staged rows."""
        withdraw(self._options, self._writer, lasting=self._lasting)


def stream_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> StreamSink:
    """Return the sink for ``writeStream``."""
    options.refuse_batch_only()
    if overwrite:
        raise ConfigError(
            "outputMode('complete') would replace all rows by each batch, and entries of a stream stay. Use 'append', "
            "or 'update' with foreachBatch and a batch write with txnAppId and txnVersion."
        )
    return StreamSink(options, _checked(options, schema))


def batch_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchSink:
    """Return the sink for ``write``."""
    if overwrite:
        raise ConfigError(
            "mode('overwrite') would delete the stream, with its groups and their pending entries. Use "
            "mode('append'), and DEL the key first if that is what you want."
        )
    return BatchSink(options, _checked(options, schema))


def _checked(options: SinkOptions, schema: StructType) -> RowLayout:
    layout = RowLayout.of(schema, options.stream, headers=options.headers)
    check_server(options)
    return layout


def _batch_range(checkpoint: str | None, batch: int) -> str | None:
    """Return a short digest of the sources' offsets of a batch; None if they are not in a readable local file.

    Spark writes the sources' offsets of a batch to ``offsets/<batch>`` before it runs the batch, and reads that file
    when it runs the batch again. If the file is lost, Spark makes a new batch of the same number, from the sources'
    present content. The rows themselves do not separate the two: a query may give a repeated batch new random values.
    """
    if checkpoint is None:
        return None
    try:
        lines = (Path(_LOCAL.sub("", checkpoint)) / "offsets" / str(batch)).read_bytes().splitlines()
    except (OSError, ValueError):
        return None
    return hashlib.sha256(b"\n".join(lines[_BEFORE_OFFSETS:])).hexdigest()[:32]
