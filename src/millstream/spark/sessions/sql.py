"""One SQL query over the views of a server, for the command line: a short session, and plain values out of it."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from millstream.errors import UsageError
from millstream.spark.sessions.local import session
from millstream.spark.views.columns import VIEWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Found:
    """What a query gave.

    Attributes:
        columns: name and Spark's simple type of each.
        rows: read once; times are milliseconds since 1970, structs are mappings.
    """

    columns: Sequence[tuple[str, str]]
    rows: Iterator[Sequence[object]]


def run(query: str, options: Mapping[str, str]) -> Found:
    """Run a query; ``entries``, ``groups``, ``consumers``, ``pending`` and ``dead`` are its tables.

    Args:
        query: in Spark's SQL.
        options: of ``format("millstream")``, for every table.

    Raises:
        UsageError: the query or an option is invalid.
        ConfigError: there is no Java that Spark can use.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - slow, and only where a query runs
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above

    # PySpark logs an error once more, as JSON with its frames; the one line that is shown says it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    spark = session("millstream sql", quick=True, quiet=True, spark__log__level="OFF")
    try:
        for table in ("entries", *VIEWS):
            if re.search(rf"\b{table}\b", query, re.IGNORECASE):
                _frame(spark, table, options).createOrReplaceTempView(table)
        frame = spark.sql(query)
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        return Found(columns, iter([[_plain(value) for value in row] for row in frame.collect()]))
    except PySparkException as error:
        raise UsageError(_cause(error) + _advice(error.getCondition())) from None


def _frame(spark: "SparkSession", table: str, options: Mapping[str, str]) -> "DataFrame":
    return spark.read.format("millstream").options(**options).option("view", table).load()


def _advice(condition: str | None) -> str:
    """What Spark cannot know of an error of its own: which tables there are."""
    if condition != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return f" The tables here are {', '.join(('entries', *VIEWS))}; --stream and --stream-pattern choose streams."


def _cause(error: BaseException) -> str:
    """The line of one of Spark's errors that says what to do: ours where it is ours, else its first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("millstream.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MS
    if isinstance(value, date | Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
