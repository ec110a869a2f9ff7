"""The partition of each row, by its key: the layout is read once, and Spark's own functions apply it."""

from contextlib import closing

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from millstream.errors import UsageError
from millstream.spark.options.common import find_url
from millstream.spark.options.read import Options
from millstream.spark.read.stream_info import StreamInfo

_PLAIN = ("string", "binary", "tinyint", "smallint", "int", "bigint")
_REAL = ("float", "double")


def partition(stream: str, key: Column | str, url: str | None = None) -> Column:
    """Return the key of the partition for each row, for the column ``stream`` of a write.

    The partition is the same that ``App.publish(key=...)`` chooses. The layout is the present one: a query whose
    partitions are sealed later ends, and continues with the new layout when it is started again.

    Args:
        stream: Name of the partitioned stream.
        key: Column of keys: text, bytes or numbers.
        url: The server's URL; that of the environment unless given.

    Raises:
        NotFoundError: the stream is not partitioned.
        LayoutError: Millstream did not write the descriptor.
        UsageError: the number of partitions is being changed.
    """
    with closing(StreamInfo(Options(find_url({"url": url or ""})))) as info:
        *before, now = info.layout(stream).generations
    if not all(one.sealed for one in before):
        raise UsageError(f"the number of partitions of {stream!r} is being changed: start this again when that is over")
    column = F.col(key) if isinstance(key, str) else key
    # Spark knows the type when it analyses the query, and removes the branches for other types.
    kind, wrong = F.typeof(column), f"partition({stream!r}) is invalid: "
    # Java's text of a float differs from Python's.
    text = F.when(kind.isin(*_REAL), F.udf(repr, "string")(column)).otherwise(column.cast("string"))
    fault = F.when(column.isNull(), F.lit(f"{wrong}the key of a row is null. Filter such rows, or give them a key."))
    refused = F.concat(F.lit(f"{wrong}its keys are "), kind, F.lit(", not text, bytes or numbers. Cast to string."))
    fault = fault.when(~kind.isin(*_PLAIN, *_REAL), refused)
    place = F.get(F.array(*map(F.lit, now.keys)), (F.crc32(text) % len(now.keys)).cast("int"))
    return F.when(fault.isNotNull(), F.raise_error(fault)).otherwise(place)
