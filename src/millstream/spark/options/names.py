"""Every name that Spark's part gives a meaning to, once: options with where they do something, and columns.

Imported with the source itself, so it imports next to nothing.
"""

from collections.abc import Mapping

BATCH, STREAM, VIEW, GROUP, WRITE, APPEND = "batch", "stream", "view", "group", "write", "append"
"""Where an option does something: ``read``, ``readStream``, a view, mode ``group``, any write, a write of a batch."""

_USES = {
    "url": (BATCH, STREAM, VIEW, GROUP, WRITE),
    "stream": (BATCH, STREAM, VIEW, GROUP, WRITE),
    "streamPattern": (BATCH, STREAM, VIEW),
    "startingOffsets": (BATCH, STREAM, GROUP),
    "startingTimestamp": (BATCH, STREAM),
    "startingOffsetsByTimestamp": (BATCH, STREAM),
    "endingOffsets": (BATCH,),
    "endingTimestamp": (BATCH,),
    "endingOffsetsByTimestamp": (BATCH,),
    "maxEntriesPerTrigger": (STREAM, GROUP),
    "minEntriesPerTrigger": (STREAM,),
    "maxTriggerDelay": (STREAM,),
    "minPartitions": (BATCH, STREAM, VIEW, GROUP),
    "maxEntriesPerPartition": (BATCH, STREAM, GROUP),
    "failOnDataLoss": (BATCH, STREAM, GROUP),
    "onMissingStream": (STREAM,),
    "group": (STREAM, GROUP),
    "fields": (BATCH, STREAM, GROUP),
    "readFrom": (BATCH, STREAM),
    "archive": (BATCH,),
    "liveTail": (BATCH,),
    "pushdown": (BATCH,),
    "view": (BATCH, STREAM, VIEW, GROUP),
    "mode": (BATCH, STREAM, VIEW, GROUP),
    "queryName": (GROUP,),
    "minIdleTime": (GROUP,),
    "consumer": (GROUP,),
    "maxLen": (WRITE,),
    "minId": (WRITE,),
    "retention": (WRITE,),
    "approximate": (WRITE,),
    "stagingTimeout": (WRITE,),
    "txnAppId": (APPEND,),
    "txnVersion": (APPEND,),
}

PASSED_TO_SINKS = ("checkpointlocation", "queryname")
"""Options of a streaming query that Spark hands on to its sink, in lower case."""

PROVIDER = "provider"
"""By what Spark hands on the format of a table."""

STREAM_COLUMN, ID, TIMESTAMP, FIELDS = ENTRY = ("stream", "id", "timestamp", "fields")
"""Columns of every entry."""

CORRUPT = "_corrupt"
"""Column that takes the values that are not of their column's type, as a JSON object by field name."""

DELIVERIES = "deliveries"
"""Column of what a consumer holds."""


def options(*uses: str) -> tuple[str, ...]:
    """The options that do something in one of these."""
    return tuple(name for name, known in _USES.items() if set(known) & set(uses))


def of_a_table(raw: Mapping[str, str]) -> bool:
    """Whether these are what Spark hands on for ``CREATE TABLE ... USING``: the format and the properties too."""
    return PROVIDER in {name.lower() for name in raw}


def others(use: str) -> tuple[str, ...]:
    """The options of reads that do nothing in this one: given there they are refused, not passed over."""
    return tuple(name for name in options(BATCH, STREAM, VIEW, GROUP) if use not in _USES[name])


def column_of_an_entry(name: str) -> str | None:
    """The column of every entry (or :data:`CORRUPT`) that Spark takes this name for; None for a field's own name.

    Spark does not tell ``ID`` from ``id``, and a server does: a column of the one name would be read as the other.
    """
    return next((own for own in (*ENTRY, CORRUPT) if own == name.lower()), None)
