"""Run by ``record.py`` with version 0.1: queries that end in the midst, and what they leave in their checkpoints.

``flights`` is read by a source and copied by the sink, ``parcels`` read as a consumer group. The names below are 0.1's
own, where it has to be stopped between two steps; nothing else runs this.
"""

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.spark.sink import StreamSink

import millstream.spark
from millstream.spark import publishing, staging
from millstream.spark.source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = {"stream": "flights", "startingOffsets": "earliest", "maxEntriesPerTrigger": "100"}
GROUP = {"stream": "parcels", "mode": "group", "group": "lake", "queryName": "lake", "maxEntriesPerTrigger": "100"}


class OpenSink(StreamSink):
    """A sink that fails when the first piece of its second batch is published, and others are not."""

    def write(self, iterator: Any) -> Any:
        """Pieces so small that a batch has several."""
        staging.PIECE_ROWS = 30
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Fails before the second piece."""
        real = publishing.Publisher._step  # noqa: SLF001 - records are written step by step

        def step(self: publishing.Publisher, part: Any, number: int, *rest: Any) -> Any:
            if number == 1 and batchId == 1:
                raise RuntimeError("the end")
            return real(self, part, number, *rest)

        publishing.Publisher._step = step  # type: ignore[method-assign] # in this process, which ends  # noqa: SLF001 - records are written step by step
        super().commit(messages, batchId)


class OpenSource(MillstreamSource):
    """``format("open")``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "open"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        """For ``writeStream``."""
        made = super().streamWriter(schema, overwrite)
        return OpenSink(made._options, made._layout)  # noqa: SLF001 - the form of an older version


def read(spark: "SparkSession", url: str, options: dict[str, str]) -> "DataFrame":
    """A stream."""
    return spark.readStream.format("millstream").option("url", url).options(**options).load()


def failing(place: Path, frame: "DataFrame", number: int) -> None:
    """Note the ids of a batch, and fail in the second one."""
    place.with_name(f"{place.name}-{number}.ids").write_text("\n".join(row.id for row in frame.collect()))
    if number == 1:
        raise RuntimeError("the end")


def main(url: str, place: str) -> None:
    """Run every query."""
    spark = millstream.spark.session("recording", quick=True, spark__log__level="OFF")
    spark.dataSource.register(OpenSource)
    watch = millstream.spark.watch(spark, url)
    folder = Path(place)
    folder.mkdir()
    for name, options in (("source", SOURCE), ("group", GROUP)):
        fail = partial(failing, folder / name)
        ended(read(spark, url, options).writeStream.foreachBatch(fail).queryName(name), folder / name)
    rows = read(spark, url, SOURCE).selectExpr("fields['n'] n")
    closed = rows.writeStream.format("millstream").options(url=url, stream="copies").queryName("closed")
    ended(closed, folder / "closed")
    (folder / "closed" / "commits" / "2").unlink()
    opened = rows.writeStream.format("open").options(url=url, stream="half").queryName("half")
    ended(opened, folder / "half")
    watch.close()
    spark.stop()
    for scratch in folder.glob("*/.*"):
        shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()


def ended(writer: Any, checkpoint: Path) -> None:
    """Run to the end of what is there, or to the failure that is wanted."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        if "the end" not in str(error):
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
