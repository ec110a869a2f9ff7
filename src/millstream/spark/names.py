"""Every name that Spark's part gives a meaning to, once: options with where they do something, and columns.

Imported with the source itself, so it imports nothing.
"""

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

PASSED_ON = ("provider",)
"""What Spark hands on beside the options a user gave (lower case): the format of a table, of CREATE TABLE ... USING."""

PASSED_TO_SINKS = (*PASSED_ON, "checkpointlocation", "queryname")
"""The same of a streaming query's sink."""

STREAM_COLUMN, ID, TIMESTAMP, FIELDS = ENTRY = ("stream", "id", "timestamp", "fields")
"""Columns of every entry."""

CORRUPT = "_corrupt"
"""Column that takes the values that are not of their column's type, as a JSON object by field name."""

DELIVERIES = "deliveries"
"""Column of what a consumer holds."""


def options(*uses: str) -> tuple[str, ...]:
    """The options that do something in one of these."""
    return tuple(name for name, known in _USES.items() if set(known) & set(uses))


def others(use: str) -> tuple[str, ...]:
    """The options of reads that do nothing in this one."""
    return tuple(name for name in options(BATCH, STREAM, VIEW, GROUP) if use not in _USES[name])


def column_of_an_entry(name: str) -> str | None:
    """The column of every entry (or :data:`CORRUPT`) that Spark takes this name for; None for a field's own name.

    Spark does not tell ``ID`` from ``id``, and a server does: a column of the one name would be read as the other.
    """
    return next((own for own in (*ENTRY, CORRUPT) if own == name.lower()), None)
