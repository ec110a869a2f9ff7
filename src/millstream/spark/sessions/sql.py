"""One SQL query over the views of a server, for the command line: a short session, and plain values out of it."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from millstream import errors
from millstream.client.line import wrong_reply
from millstream.errors import MillstreamError, UsageError
from millstream.spark.sessions.local import session
from millstream.spark.views.columns import VIEWS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a query."""

    columns: Sequence[tuple[str, str]]  # Name and Spark's simple type of each column
    rows: Iterator[Sequence[object]]  # Read once; times are milliseconds since 1970, structs are mappings


def run(query: str, options: Mapping[str, str]) -> Found:
    """Run a query; its tables are ``entries``, ``groups``, ``consumers``, ``pending`` and ``dead``."""
    # PySpark would log an error again, as JSON with stack frames; the printed line is enough.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    spark = session("millstream sql", quick=True, quiet=True, spark__log__level="OFF")
    try:
        _check_reads(spark, query)
        for table in ("entries", *VIEWS):
            if re.search(rf"\b{table}\b", query, re.IGNORECASE):
                _frame(spark, table, options).createOrReplaceTempView(table)
        frame = spark.sql(query)
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        return Found(columns, iter([[_plain(value) for value in row] for row in frame.collect()]))
    except PySparkException as error:
        raise _ours(error, options["url"]) or UsageError(_first(error) + _advice(error.getCondition())) from None


def _frame(spark: SparkSession, table: str, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("millstream").options(**options).option("view", table).load()


def _advice(condition: str | None) -> str:
    """Return advice that Spark's error lacks: the names of the tables."""
    if condition != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return f" The tables here are {', '.join(('entries', *VIEWS))}; --stream and --stream-pattern choose streams."


def _check_reads(spark: SparkSession, query: str) -> None:
    """Refuse statements that change something: INSERT INTO entries adds to the stream, CREATE TABLE leaves files."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Spark's own way to its parser
    plan: Any = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001 - as above
    command = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.plans.logical.Command")
    waiting = [plan]
    while waiting:
        one = waiting.pop()
        kind = one.getClass().getSimpleName()
        if kind.startswith("Insert") or (command.isInstance(one) and kind not in _HARMLESS):
            raise UsageError(f"{query.split(maxsplit=1)[0].upper()}: `millstream sql` only answers questions (SELECT)")
        children = one.children()
        waiting += [children.apply(at) for at in range(children.size())]


_HARMLESS = frozenset({"DescribeRelation", "DescribeQueryCommand", "ExplainCommand", "ShowTables", "ShowFunctions"})
"""Spark's commands that only show something."""


def _ours(error: BaseException, url: str) -> MillstreamError | None:
    """Return Millstream's error if the text of Spark's error contains one; None if the error is Spark's own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [match for line in lines if (match := re.match(r"millstream(?:\.\w+)*\.(\w+): (.*)", line))]
    if found:
        kind = getattr(errors, found[-1][1], UsageError)
        return cast("MillstreamError", kind(found[-1][2]))
    raised = [
        line for line in lines if re.match(r"(?:TypeError|ValueError|KeyError|IndexError|AttributeError): ", line)
    ]
    return wrong_reply(ValueError(raised[-1]), url) if raised and "Traceback" in str(error) else None


def _first(error: BaseException) -> str:
    """Return the first line of one of Spark's own errors."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


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
