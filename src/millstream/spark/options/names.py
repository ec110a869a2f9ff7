"""All names in Spark's part, once: options with their uses, and columns.

Imported with the source itself, so it imports almost nothing.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from millstream.paths import packaged

BATCH, STREAM, VIEW, GROUP, LOOKUP = "batch", "stream", "view", "group", "lookup"
WRITE, APPEND = "write", "append"
"""Uses in which an option has an effect.

Reads are ``read``, ``readStream``, a view, mode ``group`` and a read of hashes. Writes are any write, and the write of
a batch.
"""


class Option(NamedTuple):
    """One option, as docs/spark/reference.md lists it."""

    uses: tuple[str, ...]  # Uses in which it has an effect
    default: str  # Default, in words; empty for none
    says: str  # Description


OPTIONS = {
    name: Option(tuple(facts["uses"]), facts.get("default", ""), facts["says"])
    for name, facts in json.loads(packaged("millstream.spark.options", "options.json")).items()
}

CHECKPOINT = "checkpointlocation"
PASSED_TO_SINKS = (CHECKPOINT, "queryname")
"""Options of a streaming query that Spark passes on to its sink, in lower case."""

TABLE_SCHEMA = "schema"
"""The option of CREATE TABLE for the columns of a table."""

PROVIDER = "provider"
"""Option under which Spark passes on the format of a table."""

STREAM_COLUMN, ID, TIMESTAMP, FIELDS = ENTRY = ("stream", "id", "timestamp", "fields")
"""Columns of every entry."""

CORRUPT = "_corrupt"
"""Column for values that are not of their column's type, as a JSON object by field name."""

HEADERS, BODY = ENVELOPE = ("headers", "body")
"""Columns of an entry's envelope, with the option ``includeHeaders``."""

DELIVERIES = "deliveries"
"""Column with the number of deliveries of a consumer's pending entry."""


def options(*uses: str) -> tuple[str, ...]:
    """Return the options that have an effect in one of these uses."""
    return tuple(name for name, known in OPTIONS.items() if set(known.uses) & set(uses))


def of_a_table(raw: Mapping[str, str]) -> bool:
    """Return True if these are the options of a ``CREATE TABLE``: Spark adds the format and the properties."""
    return PROVIDER in {name.lower() for name in raw}


def others(use: str) -> tuple[str, ...]:
    """Return the options of other reads, which have no effect in this one: they are refused, not ignored."""
    return tuple(name for name in options(BATCH, STREAM, VIEW, GROUP, LOOKUP) if use not in OPTIONS[name].uses)


def column_of_an_entry(name: str) -> str | None:
    """Return the entry's own column (or :data:`CORRUPT`) that Spark takes this name for; None for a field's name.

    Spark treats ``ID`` and ``id`` as equal, but a server does not: one column would be read as the other.
    """
    return next((own for own in (*ENTRY, CORRUPT) if own == name.lower()), None)
