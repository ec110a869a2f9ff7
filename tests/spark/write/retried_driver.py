"""A driver whose tasks are retried or run twice at once; run as a separate program.

In the first attempt of one task, Python's worker kills itself in the middle of its partition: once while it reads
rows and once while it writes them. If Spark speculates, one task ends only when a second copy has come as far. Each
attempt records its start and its rows, so that a test can prove the events.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import TaskContext

import millstream.spark
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.options.read import Options
from millstream.spark.sessions.local import java_options
from millstream.spark.source import MillstreamSource, StreamReader
from millstream.spark.write import staging
from millstream.spark.write.sink import Staged, StreamSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

PARTS = 4


class Trouble:
    """The fault for the tasks of one query.

    Args:
        folder: Folder in which attempts are recorded.
        kind: ``kill`` for a worker that dies, ``copy`` for a task that runs twice at once.
    """

    def __init__(self, folder: str, kind: str) -> None:
        self.folder = Path(folder)
        self.kind = kind

    def meet(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one attempt of a task and apply the fault."""
        context = TaskContext.get()
        assert context is not None
        part, attempt = context.partitionId(), context.attemptNumber()
        rows: list[str] = []
        self._note(f"{part}-{attempt}-begun", rows)
        for batch in batches:
            yield batch
            rows += map(repr, batch.to_pylist())
            if self.kind == "kill" and part == attempt == 0 and rows:
                self._note(f"{part}-{attempt}-killed", rows)
                os.kill(os.getpid(), signal.SIGKILL)
        self._note(f"{part}-{attempt}-read", rows)
        if self.kind == "copy" and part == PARTS - 1:
            self._meet(attempt)

    def _note(self, name: str, rows: list[str]) -> None:
        fresh = self.folder / f"{name}.{os.getpid()}"
        fresh.write_text(json.dumps(rows))
        fresh.rename(self.folder / name)

    def _meet(self, attempt: int) -> None:
        """Wait until both copies of a task have had all of its rows, by a pipe."""
        with (self.folder / "both").open("w" if attempt else "r"):
            pass


class RetriedReader(StreamReader):
    """The source with the fault in its reads."""

    def __init__(self, parsed: Options, schema: "StructType", trouble: Trouble) -> None:
        super().__init__(parsed, schema)
        self._trouble = trouble

    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        """Read a partition in a task."""
        return self._trouble.meet(super().read(partition))


class RetriedSink(StreamSink):
    """The sink with the fault in its writes."""

    trouble: Trouble

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        """Write rows in a task, in small pieces."""
        staging.PIECE_ROWS = 50
        return super().write(self.trouble.meet(iterator))


class RetriedSource(MillstreamSource):
    """``format("retried")``."""

    trouble: ClassVar[Mapping[str, Trouble]]

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "retried"

    def streamReader(self, schema: "StructType") -> RetriedReader:  # noqa: N802 - Spark's name
        """Return the reader for ``spark.readStream``."""
        return RetriedReader(self.parsed, schema, self.trouble["read"])

    def streamWriter(self, schema: "StructType", overwrite: bool) -> RetriedSink:  # noqa: N802 - Spark's name
        """Return the sink for ``writeStream``."""
        sink = RetriedSink(self.parsed_sink, RowLayout.of(schema, self.parsed_sink.stream))
        sink.trouble = self.trouble["write"]
        return sink


def copy(spark: "SparkSession", url: str, folder: Path, kind: str) -> None:
    """Copy one batch into each sink, with the fault in the source for Parquet and in the sink for the stream."""
    for sink in ("parquet", "stream"):
        place = folder / f"{kind}-{sink}"
        notes = place / "attempts"
        notes.mkdir(parents=True)
        os.mkfifo(notes / "both")
        troubled = "read" if sink == "parquet" else "write"
        RetriedSource.trouble = {"read": Trouble("", ""), "write": Trouble("", ""), troubled: Trouble(str(notes), kind)}
        spark.dataSource.register(RetriedSource)
        reader = "retried" if sink == "parquet" else "millstream"
        rows = (
            spark.readStream.format(reader).option("url", url).option("stream", "s")
            .option("startingOffsets", "earliest").option("minPartitions", str(PARTS)).load()
            .selectExpr("fields['n'] n")
        )  # fmt: skip
        writer = rows.writeStream.option("checkpointLocation", f"{place}/checkpoint")
        if sink == "parquet":
            writer = writer.format("parquet").option("path", f"{place}/out")
        else:
            writer = writer.format("retried").option("url", url).option("stream", f"out-{kind}")
        writer.trigger(availableNow=True).start().awaitTermination()


def main(url: str, folder: str, master: str, *kinds: str) -> None:
    """Copy the stream ``s`` into all sinks, with each kind of fault."""
    spark = millstream.spark.session(
        "retried",
        quick=True,
        master=master,
        spark__log__level="OFF",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
        spark__executor__extraJavaOptions=java_options(quick=True),
        spark__speculation="true",
        spark__speculation__multiplier="1.0",
        spark__speculation__quantile="0.1",
    )
    for kind in kinds:
        copy(spark, url, Path(folder), kind)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
