"""Triggers that Spark supports for no Python source end the query at its start, and the error names them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import IllegalArgumentException, PySparkException, StreamingQueryException
from pyspark.errors import UnsupportedOperationException as Unsupported

from millstream.spark.monitoring.error_text import last_words
from support.servers import ServerProcess
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

CONTINUOUS = {"continuous": "1 second"}
REAL_TIME = {"realTime": "5 seconds"}
NO_CONTINUOUS = "Data source millstream does not support continuous processing."
NO_SOURCE = "[STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED]"
NO_SINK = "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST]"


@pytest.mark.parametrize(
    ("trigger", "sink", "kind", "told"),
    [
        (CONTINUOUS, "console", Unsupported, NO_CONTINUOUS),
        (CONTINUOUS, "millstream", Unsupported, NO_CONTINUOUS),
        (REAL_TIME, "console", StreamingQueryException, NO_SOURCE),
        (REAL_TIME, "millstream", IllegalArgumentException, NO_SINK),
    ],
)
def test_continuous_and_real_time_are_refused_and_a_short_interval_goes_on(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    trigger: dict[str, Any],
    sink: str,
    kind: type[PySparkException],
    told: str,
) -> None:
    """Continuous and real-time triggers are refused before any read.

    With a short interval, the same checkpoint works.
    """
    ids = fill(client, "s", 10)
    checkpoint = str(tmp_path / "checkpoint")
    source = spark.readStream.format("millstream").option("url", real_redis.url).option("stream", "s")
    rows = source.option("startingOffsets", "earliest").load()
    refused = rows.select("fields").writeStream.format(sink).option("checkpointLocation", checkpoint).trigger(**trigger)
    if trigger is REAL_TIME:
        refused = refused.outputMode("update")  # Spark looks at that first
    if sink == "millstream":
        refused = refused.option("url", real_redis.url).option("stream", "out")
    with pytest.raises(kind) as caught:
        refused.start().awaitTermination()
    assert told in last_words(caught.value)
    assert client.xlen("out") == 0

    seen: list[str] = []

    def take(frame: "DataFrame", _: int) -> None:
        seen.extend(row.id for row in frame.collect())

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == ids
