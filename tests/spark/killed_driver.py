"""A driver that is killed with its JVM at a named point; run as a separate program.

The points are hooks around the real source and sink, in the process that does the work. A reached point is first
written to ``reached``, so that a test can prove the place of the kill. A driver with two queries dies when both are at
their points: the first waits there for the other.

``KILL_AT`` has the points as JSON by sink: ``{"stream": ["after commit", 1]}`` is the first batch from the second on.
"""

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millstream.spark
from millstream import failpoints
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.source import MillstreamSource, StreamReader
from millstream.spark.write import staging
from millstream.spark.write.sink import Staged, StreamSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

FILE_WRITER = "org.apache.spark.sql.execution.datasources.FileFormatWriter"
FILE_POINTS = {"Start to commit write Job": "before commit", "Finished processing stats": "after commit"}
"""Log lines of Spark's file sink around its commit, by point."""


def place(sink: str) -> Path:
    """Return the folder of the query with this sink: its checkpoint, files and progress."""
    return Path(os.environ["KILL_FOLDER"], sink)


def die_at(sink: str, point: str, batch: int) -> None:
    """Kill the process group if the query with this sink and the other queries are at their points."""
    points = json.loads(os.environ["KILL_AT"])
    wanted, first = points.get(sink, ("", 0))
    if wanted != point or batch < first:
        return
    fresh = place(sink) / "reaching"
    fresh.write_text(json.dumps({"point": point, "batch": batch}))
    fresh.rename(place(sink) / "reached")
    if not all((place(other) / "reached").exists() for other in points):
        threading.Event().wait()
    os.killpg(int(os.environ["KILL_GROUP"]), signal.SIGKILL)
    os._exit(1)  # Python's own workers are in a separate group


def newest(sink: str, log: str) -> int:
    """Return the last batch in a log of the checkpoint, or -1 without one."""
    folder = place(sink) / "checkpoint" / log
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


class KilledReader(StreamReader):
    """The source, killed after the offset log or around the publishing of its progress."""

    sink: str

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Any]:
        """Plan the tasks; Spark calls this right after it has written the offset log."""
        die_at(self.sink, "offsets", newest(self.sink, "offsets"))
        return super().partitions(start, end)

    def latestOffset(self, start: Mapping[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Publish the progress that ``start`` contains."""
        sink, done = self.sink, newest(self.sink, "commits")
        die_at(sink, "before publishing", done)
        streams = self._plan()._streams  # noqa: SLF001 - a driver that dies between the cursors of two streams
        real = type(streams).publish

        def publish(group: str, places: dict[str, Any]) -> list[str]:
            for key in sorted(places):
                real(streams, group, {key: places[key]})
                die_at(sink, "publishing", done)
            return []

        streams.publish = publish  # type: ignore[method-assign] # this one object's
        return super().latestOffset(start, limit)


class KilledSink(StreamSink):
    """The sink, killed in a task or around its commit."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Write rows and die when some of them are at the server."""
        staging.PIECE_ROWS = 50
        return super().write(dying("stream", iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit, and die before, during or after it."""
        die_at("stream", "before commit", batchId)
        pieces = itertools.count()

        def reached() -> None:
            if next(pieces) == 2:
                die_at("stream", "between pieces", batchId)

        failpoints.on("publishing", reached)
        super().commit(messages, batchId)
        die_at("stream", "after commit", batchId)


class FileCommits:
    """Log appender that receives Spark's log lines in the thread of the batch, which waits meanwhile.

    It gives failpoints to the file sink, which is written in Java.
    """

    def append(self, event: Any) -> None:
        """Handle a line of the log."""
        told = event.getMessage().getFormattedMessage()
        for words, point in FILE_POINTS.items():
            if told.startswith(words):
                die_at("parquet", point, newest("parquet", "offsets"))

    def getName(self) -> str:  # noqa: N802 - log4j's name
        """Return the appender's name."""
        return "commits"

    def isStarted(self) -> bool:  # noqa: N802 - log4j's name
        """Report that the appender is ready."""
        return True

    def ignoreExceptions(self) -> bool:  # noqa: N802 - log4j's name
        """Return False, so that an error here ends the query."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Implement the other methods as no-ops."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None

    class Java:
        """The interface that py4j implements."""

        implements = ("org.apache.logging.log4j.core.Appender",)


def watch_file_commits(spark: "SparkSession") -> None:
    """Pass the log lines of the file sink to this process."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public name for it
    assert gateway is not None
    ensure_callback_server_started(gateway)
    log4j = gateway.jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    config = log4j.core.config.LoggerConfig(FILE_WRITER, log4j.Level.INFO, False)
    config.addAppender(FileCommits(), log4j.Level.INFO, None)
    context.getConfiguration().addLogger(FILE_WRITER, config)
    context.updateLoggers()


def dying(sink: str, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Yield a task's batches and die in the middle of the partition."""
    for number, batch in enumerate(batches):
        if number == 2:
            die_at(sink, "tasks", newest(sink, "offsets"))
        yield batch


class KilledSource(MillstreamSource):
    """``format("killed-stream")``: the source and the sink of the query that writes to the stream."""

    sink = "stream"

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return f"killed-{cls.sink}"

    def streamReader(self, schema: "StructType") -> KilledReader:  # noqa: N802 - Spark's name
        """Return the reader for ``spark.readStream``."""
        made = KilledReader(self.parsed, schema)
        made.sink = self.sink
        return made

    def streamWriter(self, schema: "StructType", overwrite: bool) -> KilledSink:  # noqa: N802 - Spark's name
        """Return the sink for ``writeStream``."""
        return KilledSink(self.parsed_sink, RowLayout.of(schema, self.parsed_sink.stream))


class KilledFileSource(KilledSource):
    """``format("killed-parquet")``: the source of the query that writes files."""

    sink = "parquet"


def start(spark: "SparkSession", url: str, sink: str, cap: str) -> "StreamingQuery":
    """Start a query that copies the streams a and b to a sink until their end."""
    frame = (
        spark.readStream.format(f"killed-{sink}").option("url", url).option("stream", "a,b").option("group", sink)
        .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", cap).option("minPartitions", "2").load()
    )  # fmt: skip
    rows = frame.selectExpr("fields['n'] n")
    if sink == "parquet":
        watch_file_commits(spark)
        marked = rows.mapInArrow(lambda batches: dying(sink, batches), rows.schema)
        writer = marked.writeStream.format("parquet").option("path", str(place(sink) / "out"))
    else:
        writer = rows.writeStream.format("killed-stream").option("url", url).option("stream", "out")
    return writer.option("checkpointLocation", str(place(sink) / "checkpoint")).trigger(availableNow=True).start()


def main(url: str, folder: str, cap: str, master: str, *sinks: str) -> None:
    """Run a query for each sink to its end."""
    os.environ["KILL_GROUP"] = str(os.getpgrp())
    os.environ["KILL_FOLDER"] = folder
    spark = millstream.spark.session(
        "killed",
        quick=True,
        master=master,
        spark__log__level="OFF",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
    )
    spark.dataSource.register(KilledSource)
    spark.dataSource.register(KilledFileSource)
    for query in [start(spark, url, sink, cap) for sink in sinks]:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
