"""Tables of Spark's catalog that keep options: ``CREATE TABLE orders USING millstream OPTIONS (stream 'orders')``.

Spark 4.3 gives the options of a table to a Python data source once, when the table is made. It does not give them for
reads or writes. It gives the schema every time. So a table's options are kept in the comment of its first column, where
DESCRIBE shows them, as ``millstream {"stream": "orders"}``.

A comment stays with the column in anything made of it, files and other tables included. So it holds no password. It is
not used when rows are written: an INSERT has the comments of the rows' own columns, perhaps of another table. Imported
with the source itself, so it imports almost nothing.
"""

import json
from collections.abc import Iterable, Mapping

from pyspark.sql.types import StructField, StructType

from millstream.errors import ConfigError
from millstream.printable import has_password
from millstream.spark.options import common, names

NOT_KEPT = (
    "Spark does not pass on the options of a table that names its columns: leave the columns out and write CREATE "
    "TABLE orders USING millstream OPTIONS (stream 'orders', schema 'id string, amount double'), or give options with "
    "each query, SELECT * FROM orders WITH (stream 'orders')"
)

NOT_WRITTEN = (
    "Spark does not report which table is written: give the options with the rows, INSERT INTO orders WITH (url "
    "'redis://127.0.0.1:6379/0', stream 'orders') ..."
)

_GIVEN = "option."
"""Prefix of the names of OPTIONS, among all properties that Spark passes on for a new table."""

_MARK = "millstream "

_PLACES = frozenset({"url", "stream", "streampattern", "partitionedstream", "hashes"})


def declared(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that is being made, by their names in lower case."""
    lowered = {name.lower(): value for name, value in raw.items()}
    found = {name.removeprefix(_GIVEN): value for name, value in lowered.items() if name.startswith(_GIVEN)}
    reads = names.options(names.BATCH, names.STREAM, names.VIEW, names.GROUP, names.LOOKUP)
    common.check_names(found, (*reads, names.TABLE_SCHEMA), "CREATE TABLE")
    refuse_pushdown(found)
    url = found.get("url", "")
    if has_password(url):
        raise ConfigError(
            "option 'url' has a password: the catalog would show it to all users. Leave the "
            "option out, and set MILLSTREAM_URL where the table is used."
        )
    return found


def refuse_pushdown(options: Iterable[str]) -> None:
    """Raise for the option ``pushdown``: Spark 4.3 would share filters between all uses of a table in a query."""
    if any(name.lower() == "pushdown" for name in options):
        raise ConfigError(
            "option 'pushdown' is for one use of one load(): a query may use a table twice, and Spark would mix their "
            "filters. Leave it out, and give startingTimestamp and endingTimestamp by WITH."
        )


def says_where(options: Iterable[str]) -> bool:
    """Return True if a query's options name the streams to read or write, in place of the table's options.

    A user who gives the columns of a table to another read (``.schema(spark.table("orders").schema)``) wants only
    the columns.
    """
    return not _PLACES.isdisjoint(name.lower() for name in options)


def to_read(options: Mapping[str, str], plain: str) -> dict[str, str]:
    """Return a table's options that have an effect in this read: queries of several kinds read one table."""
    use = plain
    if "hashes" in options:
        use = names.LOOKUP
    elif options.get("view", "entries").strip().lower() != "entries":
        use = names.VIEW
    elif options.get("mode", "").strip().lower() == "group":
        use = names.GROUP
    known = {name.lower() for name in names.options(use)}
    return {name: value for name, value in options.items() if name in known}


def kept(schema: StructType, options: Mapping[str, str]) -> StructType | str:
    """Return the schema of a new table, with its options in the first column's comment."""
    options = dict(options)
    columns = options.pop(names.TABLE_SCHEMA, "").strip()
    if not options:
        return columns or schema
    comment = _MARK + json.dumps(options, sort_keys=True, ensure_ascii=False)
    if not columns:
        first = schema.fields[0]
        return StructType(
            [StructField(first.name, first.dataType, first.nullable, {"comment": comment}), *schema.fields[1:]]
        )
    end = _first_column(columns)
    if "comment" in columns[:end].lower().split():
        raise ConfigError("option 'schema': its first column cannot have a COMMENT, where the table keeps its options")
    quoted = comment.replace("\\", "\\\\").replace("'", "\\'")
    return f"{columns[:end]} COMMENT '{quoted}'{columns[end:]}"


def _first_column(columns: str) -> int:
    """Return the end of the first column in a schema's text."""
    depth, quote = 0, ""
    for at, letter in enumerate(columns):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and not depth:
            return at
    return len(columns)


def stored(schema: StructType) -> dict[str, str]:
    """Return the options of the table that has these columns; empty for any other columns."""
    comment = schema.fields[0].metadata.get("comment") if schema.fields else None
    if not isinstance(comment, str) or not comment.startswith(_MARK):
        return {}
    try:
        found = json.loads(comment.removeprefix(_MARK))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}
