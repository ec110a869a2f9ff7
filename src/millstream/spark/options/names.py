"""Every name with a meaning in Spark's part, once: options with their uses, and columns.

Imported with the source itself, so it imports next to nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

BATCH, STREAM, VIEW, GROUP, LOOKUP = "batch", "stream", "view", "group", "lookup"
WRITE, APPEND = "write", "append"
"""Where an option does something: ``read``, ``readStream``, a view, mode ``group``, a read of hashes; any write, and
that of a batch."""


class Option(NamedTuple):
    """One option, as docs/spark/reference.md lists it."""

    uses: tuple[str, ...]  # The uses in which it has an effect
    default: str  # Its default, in words; empty for nothing
    says: str  # Its description


OPTIONS: dict[str, Option] = {
    "url": Option(
        (BATCH, STREAM, VIEW, GROUP, LOOKUP, WRITE),
        "MILLSTREAM_URL, REDIS_URL, redis://127.0.0.1:6379/0",
        "the server: `redis://`, `rediss://`, `unix://`, with user, password and database; "
        "`redis+cluster://`, `redis+sentinel://`. The variables are read when Spark starts",
    ),
    "stream": Option(
        (BATCH, STREAM, VIEW, GROUP, WRITE),
        "",
        "one key, or several with commas. For a write, the target of all rows; without it the column `stream` names it",
    ),
    "streamPattern": Option(
        (BATCH, STREAM, VIEW),
        "",
        "glob of keys, as SCAN MATCH takes it, instead of `stream`; a stream that appears later joins "
        "at its beginning, within a second",
    ),
    "startingOffsets": Option(
        (BATCH, STREAM, GROUP),
        "latest; batch: earliest",
        "`earliest`, `latest`, `group` (streams only: the position of the query's `group`, for a query that "
        'lost its checkpoint; its last batch may come again), or JSON. `{"orders": "1700000000000-0"}` '
        'begins after that id, as XREAD does. An offset of a query\'s progress (`{"id": ..., "n": ...}`) may replace '
        "the id; it needs no counting and finds entries trimmed since. In mode `group` it makes a missing group",
    ),
    "startingTimestamp": Option(
        (BATCH, STREAM), "", "milliseconds since 1970 or an ISO time; reading begins at that moment"
    ),
    "startingOffsetsByTimestamp": Option(
        (BATCH, STREAM),
        "",
        'the same, a time for each stream: `{"orders": 1700000000000, "refunds": '
        '"2026-01-31T12:00:00Z"}`; the query waits for a time in the future',
    ),
    "endingOffsets": Option((BATCH,), "latest", "`latest` or JSON: ends with that id, as XRANGE does"),
    "endingTimestamp": Option((BATCH,), "", "ends before that moment"),
    "endingOffsetsByTimestamp": Option((BATCH,), "", "the same, a time for each stream"),
    "maxEntriesPerTrigger": Option(
        (STREAM, GROUP),
        "all there is",
        "cap of a micro-batch, never exceeded; shared over the streams so that none starves",
    ),
    "minEntriesPerTrigger": Option((STREAM,), "", "number of entries that a micro-batch waits for"),
    "maxTriggerDelay": Option(
        (STREAM,),
        "15m",
        "longest wait of `minEntriesPerTrigger` after the last batch; `availableNow` and `once` do not wait",
    ),
    "minPartitions": Option(
        (BATCH, STREAM, VIEW, GROUP, LOOKUP),
        "one for each 100,000 entries of a stream, 8 at most; small streams share",
        "tasks of a batch: streams are cut by time or by known counts, and small ones share a task",
    ),
    "maxEntriesPerPartition": Option((BATCH, STREAM, GROUP), "", "exact; costs a pass over the range at the driver"),
    "failOnDataLoss": Option(
        (BATCH, STREAM, GROUP),
        "true",
        "`true`: end with an error if entries were trimmed before they were read; `false`: log that and go on",
    ),
    "onMissingStream": Option((STREAM,), "fail", "`skip`: a query goes on without a stream that was removed"),
    "group": Option(
        (STREAM, GROUP),
        "",
        "consumer group of the query alone that shows its progress. In mode `group`, the group to read, which must "
        "exist in each stream unless `startingOffsets` is given",
    ),
    "fields": Option((BATCH, STREAM, GROUP), "", "fields to show as string columns, with commas"),
    "readFrom": Option((BATCH, STREAM), "primary", "`replica`: read from replicas"),
    "archive": Option(
        (BATCH,),
        "",
        "folder of an archive or its `s3://`, `gs://` or `abfss://` URL, to read with the stream as one table",
    ),
    "liveTail": Option((BATCH,), "true", "`false` reads the archive alone, and needs no server"),
    "pushdown": Option(
        (BATCH,),
        "false",
        "`true`: filters on `id`, `timestamp` and `stream` limit the entries that are read, of streams and of an "
        "archive; safe for one query a `load()`",
    ),
    "view": Option(
        (BATCH, STREAM, VIEW, GROUP),
        "entries",
        "table to read instead of the entries: `groups`, `consumers`, `pending`, `dead`",
    ),
    "mode": Option((BATCH, STREAM, VIEW, GROUP), "offset", "`group` reads as a consumer group"),
    "queryName": Option(
        (GROUP,),
        "",
        "base of the names of the query's consumers. No other query of the group may have it, "
        "no other consumer may be called `<queryName>-<number>`, and it must not change",
    ),
    "minIdleTime": Option(
        (GROUP,),
        "",
        "age from which the query also claims idle entries of other consumers (`10m`; ms, s, m, h, d), at most 1000"
        " such entries a batch and stream",
    ),
    "consumer": Option(
        (GROUP,), "", "with `spark.read`: show this consumer's pending entries, with `deliveries`, and change nothing"
    ),
    "hashes": Option((LOOKUP,), "", "glob of the keys of hashes to read instead of a stream, as SCAN MATCH takes it"),
    "keyColumn": Option(
        (LOOKUP,), "", "column for the part of the key after the prefix, if `hashes` is a prefix and a star"
    ),
    "maxLen": Option((WRITE,), "", "trim the stream to this number of entries (XTRIM MAXLEN)"),
    "minId": Option((WRITE,), "", "trim entries below this id (XTRIM MINID)"),
    "retention": Option((WRITE,), "", "trim entries older than this by the server's clock: `30m`, `12h`, `7d`"),
    "approximate": Option((WRITE,), "true", "trim whole blocks only, which costs less; `false` trims exactly"),
    "stagingTimeout": Option((WRITE,), "1d", "time that rows wait in the server for a missing commit"),
    "includeHeaders": Option(
        (BATCH, STREAM, GROUP, WRITE),
        "false",
        "`true`: two more columns, `headers` (map<string,string>) and `body` (binary), of the envelope that "
        "`App.publish(headers=...)` and FastStream write; a write makes such an envelope",
    ),
    "txnAppId": Option(
        (APPEND,),
        "",
        "name of the job. A write adds nothing if the job already wrote the same `txnVersion` or a larger one to the "
        "same `stream`; the log warns of a larger one. A job that starts from nothing, as with a new checkpoint, "
        "needs another name",
    ),
    "txnVersion": Option((APPEND,), "", "number of this write, a growing one; in `foreachBatch` the batch id"),
}

PASSED_TO_SINKS = ("checkpointlocation", "queryname")
"""Options of a streaming query that Spark hands on to its sink, in lower case."""

TABLE_SCHEMA = "schema"
"""The columns of a table, an option of CREATE TABLE alone."""

PROVIDER = "provider"
"""By what Spark hands on the format of a table."""

STREAM_COLUMN, ID, TIMESTAMP, FIELDS = ENTRY = ("stream", "id", "timestamp", "fields")
"""Columns of every entry."""

CORRUPT = "_corrupt"
"""Column that takes the values that are not of their column's type, as a JSON object by field name."""

HEADERS, BODY = ENVELOPE = ("headers", "body")
"""Columns of an entry's envelope, with the option ``includeHeaders``."""

DELIVERIES = "deliveries"
"""Column of what a consumer holds."""


def options(*uses: str) -> tuple[str, ...]:
    """The options that do something in one of these."""
    return tuple(name for name, known in OPTIONS.items() if set(known.uses) & set(uses))


def of_a_table(raw: Mapping[str, str]) -> bool:
    """True if these are the options of a ``CREATE TABLE ... USING``: Spark adds the format and the properties."""
    return PROVIDER in {name.lower() for name in raw}


def others(use: str) -> tuple[str, ...]:
    """The options of reads that do nothing in this one: given there they are refused, not passed over."""
    return tuple(name for name in options(BATCH, STREAM, VIEW, GROUP, LOOKUP) if use not in OPTIONS[name].uses)


def column_of_an_entry(name: str) -> str | None:
    """The column of every entry (or :data:`CORRUPT`) that Spark takes this name for; None for a field's own name.

    Spark does not tell ``ID`` from ``id``, and a server does: a column of the one name would be read as the other.
    """
    return next((own for own in (*ENTRY, CORRUPT) if own == name.lower()), None)
