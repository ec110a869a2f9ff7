"""A range that is read again, as by each action on a batch, returns identical rows for all kinds of entries."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.spark.arrow.decode_uniform import decode_uniform
from millstream.spark.arrow.page import Want
from millstream.spark.connection.raw_connection import RawConnection
from support.servers import ServerProcess
from support.streams import REGULAR, SHAPES, fill_shaped, words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

COUNT = 4000
LISTED = "id string, fields array<struct<name:binary,value:binary>>"
MAPPED = "id string, fields map<string,string>"


def is_uniform(url: str, want: Want) -> bool:
    """Return True if the fast decoder reads a page of the stream."""
    connection = RawConnection(url)
    connection.request([("XRANGE", "s", "-", "+", "COUNT", "1000")])
    raw = connection.receive_raw()
    connection.close()
    return decode_uniform(raw, want) is not None


def rows_of(frame: "DataFrame") -> list[tuple[int, str, list[tuple[bytes, bytes]]]]:
    """Return partition number, id and fields of each row, in order."""
    rows = frame.selectExpr("spark_partition_id() part", "id", "fields").collect()
    return [(row.part, row.id, _pairs(row.fields)) for row in rows]


def _pairs(fields: Any) -> list[tuple[bytes, bytes]]:
    if isinstance(fields, dict):
        return sorted((name.encode(), value.encode()) for name, value in fields.items())  # Spark's maps have no order
    return [(bytes(pair.name), bytes(pair.value)) for pair in fields]


@pytest.mark.parametrize("schema", [LISTED, MAPPED], ids=["listed", "mapped"])
@pytest.mark.parametrize("shape", SHAPES)
def test_several_actions_on_one_batch_see_the_same_rows(
    real_redis: ServerProcess, spark: "SparkSession", tmp_path: Path, shape: str, schema: str
) -> None:
    """In foreachBatch, each action reads the same rows in the same partitions, without entries added meanwhile."""
    with real_redis.client() as client:
        fill_shaped(client, "s", COUNT, shape)
        assert is_uniform(real_redis.url, Want(listed=schema is LISTED, pairs=schema is MAPPED)) == (shape == REGULAR)
        seen = []

        def often(frame: "DataFrame", _: int) -> None:
            for number in range(3):
                seen.append(rows_of(frame))
                fill_shaped(client, "s", 100, shape, first=2 * COUNT + 100 * number)

        source = spark.readStream.format("millstream").option("url", real_redis.url).option("stream", "s")
        query = (
            source.option("startingOffsets", "earliest").option("minPartitions", "3").schema(schema).load()
            .writeStream.foreachBatch(often)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
    once, *again = seen
    assert again == [once, once]
    assert {part for part, _, _ in once} == {0, 1, 2}
    assert [(ident, fields) for _, ident, fields in once] == [
        (f"{1_700_000_000_000 + number}-0", entry(number, shape, mapped=schema is MAPPED))
        for number in range(1, COUNT + 1)
    ]


def entry(number: int, shape: str, *, mapped: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of an added entry. A map keeps the last value of a name."""
    flat = [word.encode() for word in words(number, shape)]
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    return sorted(dict(pairs).items()) if mapped else pairs
