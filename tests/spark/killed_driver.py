"""A driver that is killed, with its Java machine, at a point of its work that is named; run as a program of its own.

The points are hooks around the real source and sink, in whichever process the work is done. What is reached is written
down first (``reached``), so that a test can prove that it was killed there and not somewhere else.
"""

import itertools
import json
import os
import signal
import sys
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
    from pyspark.sql.types import StructType

FILE_WRITER = "org.apache.spark.sql.execution.datasources.FileFormatWriter"
FILE_POINTS = {"Start to commit write Job": "before commit", "Finished processing stats": "after commit"}
"""What Spark's file sink logs around its commit, and the point that it is."""


def die_at(point: str, batch: int) -> None:
    """The end of everything, if this is the point."""
    if os.environ["KILL_POINT"] != point or batch < int(os.environ["KILL_BATCH"]):
        return
    Path(os.environ["KILL_FOLDER"], "reached").write_text(json.dumps({"point": point, "batch": batch}))
    os.killpg(int(os.environ["KILL_GROUP"]), signal.SIGKILL)
    os._exit(1)  # Python's own workers are in a group of theirs


def newest(log: str) -> int:
    """The last batch in a log of the checkpoint, -1 if there is none."""
    folder = Path(os.environ["KILL_FOLDER"], "checkpoint", log)
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


class KilledReader(StreamReader):
    """The source, killed when its offsets are logged, or around the publishing of its progress."""

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Any]:
        """Called right after the offset log was written."""
        die_at("offsets", newest("offsets"))
        return super().partitions(start, end)

    def latestOffset(self, start: Mapping[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Publishes what ``start`` shows to be done."""
        done = newest("commits")
        die_at("before publishing", done)
        streams = self._plan()._streams
        real = type(streams).publish

        def publish(group: str, places: dict[str, Any]) -> list[str]:
            for key in sorted(places):
                real(streams, group, {key: places[key]})
                die_at("publishing", done)
            return []

        streams.publish = publish  # type: ignore[method-assign] # this one object's
        return super().latestOffset(start, limit)


class KilledSink(StreamSink):
    """The sink, killed in a task or around its commit."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Dies when some rows are in the server and some are not."""
        staging.PIECE_ROWS = 50
        return super().write(dying(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Dies before, amid and after it."""
        die_at("before commit", batchId)
        pieces = itertools.count()

        def reached() -> None:
            if next(pieces) == 2:
                die_at("between pieces", batchId)

        failpoints.on("publishing", reached)
        super().commit(messages, batchId)
        die_at("after commit", batchId)


class FileCommits:
    """An appender of Spark's log, whose lines are handed to it by the thread that runs the batch: it waits meanwhile.

    So the file sink, which is Java, has points that are reached and not only seen.
    """

    def append(self, event: Any) -> None:
        """A line of the log."""
        told = event.getMessage().getFormattedMessage()
        for words, point in FILE_POINTS.items():
            if told.startswith(words):
                die_at(point, newest("offsets"))

    def getName(self) -> str:  # noqa: N802 - log4j's name
        """Its name."""
        return "commits"

    def isStarted(self) -> bool:  # noqa: N802 - log4j's name
        """It is ready."""
        return True

    def ignoreExceptions(self) -> bool:  # noqa: N802 - log4j's name
        """What goes wrong here ends the query."""
        return False

    def __getattr__(self, name: str) -> Any:
        """The rest of the interface: nothing to do."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None

    class Java:
        """What py4j makes of it."""

        implements = ("org.apache.logging.log4j.core.Appender",)


def watch_file_commits(spark: "SparkSession") -> None:
    """Have the lines that the file sink logs pass by here."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)
    log4j = gateway.jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    config = log4j.core.config.LoggerConfig(FILE_WRITER, log4j.Level.INFO, False)
    config.addAppender(FileCommits(), log4j.Level.INFO, None)
    context.getConfiguration().addLogger(FILE_WRITER, config)
    context.updateLoggers()


def dying(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """A step of a task that dies in mid partition."""
    for number, batch in enumerate(batches):
        if number == 2:
            die_at("tasks", newest("offsets"))
        yield batch


class KilledSource(MillstreamSource):
    """``format("killed")``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "killed"

    def streamReader(self, schema: "StructType") -> KilledReader:  # noqa: N802 - Spark's name
        """For ``spark.readStream``."""
        return KilledReader(self.parsed, schema)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> KilledSink:  # noqa: N802 - Spark's name
        """For ``writeStream``."""
        return KilledSink(self.parsed_sink, RowLayout.of(schema, self.parsed_sink.stream))


def main(url: str, folder: str, sink: str, cap: str, master: str) -> None:
    """Copy the streams a and b to the sink, to their end."""
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
    frame = (
        spark.readStream.format("killed").option("url", url).option("stream", "a,b").option("group", "lake")
        .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", cap).option("minPartitions", "2").load()
    )  # fmt: skip
    rows = frame.selectExpr("fields['n'] n")
    if sink == "parquet":
        watch_file_commits(spark)
        writer = rows.mapInArrow(dying, rows.schema).writeStream.format("parquet").option("path", f"{folder}/out")
    else:
        writer = rows.writeStream
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    if sink == "stream":
        writer = writer.format("killed").option("url", url).option("stream", "out")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
