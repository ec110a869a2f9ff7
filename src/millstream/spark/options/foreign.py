"""Equivalents of the options of Kafka's source and sink and of spark-redis, for users who bring a job along.

A name of another program is refused like any unknown one, and the error says what it is called here or why it is
not needed. Names are in lower case, as Spark hands them on.
"""

from collections.abc import Collection
from typing import NamedTuple

KAFKA, SPARK_REDIS = "Kafka", "spark-redis"


class Hint(NamedTuple):
    """The equivalent of another program's name."""

    whose: str  # The program that uses the name
    ours: str | None  # The option's name here; None where nothing is needed
    note: str = ""  # A remark: how its value differs, or why there is no such option


_CONNECTION = "the whole address is one URL: redis://user:password@host:6379/0, rediss:// for TLS"
_AGAIN = "a server that is away is asked again for some time by itself"
_PAGES = "entries are read in pages of about a megabyte, the next one asked for ahead"
_GROUPS = "a query needs no consumer group; option 'group' names one that shows its progress"

_FOREIGN: dict[str, Hint] = {
    # Kafka's source and sink
    "kafka.bootstrap.servers": Hint(KAFKA, "url", _CONNECTION),
    "assign": Hint(KAFKA, "stream", "a stream has no partitions: name it alone"),
    "subscribe": Hint(KAFKA, "stream"),
    "subscribepattern": Hint(KAFKA, "streamPattern", "ours is a glob such as orders.*, no regular expression"),
    "topic": Hint(KAFKA, "stream"),
    "startingoffsetsbytimestampstrategy": Hint(KAFKA, None, "a time that no entry has reached yet is waited for"),
    "maxoffsetspertrigger": Hint(KAFKA, "maxEntriesPerTrigger"),
    "minoffsetspertrigger": Hint(KAFKA, "minEntriesPerTrigger"),
    "maxrecordsperpartition": Hint(KAFKA, "maxEntriesPerPartition"),
    "groupidprefix": Hint(KAFKA, None, _GROUPS),
    "kafka.group.id": Hint(KAFKA, "group", "it shows the query's progress; with option 'mode' = 'group' it is read"),
    "kafkaconsumer.polltimeoutms": Hint(KAFKA, None, _AGAIN),
    "fetchoffset.numretries": Hint(KAFKA, None, _AGAIN),
    "fetchoffset.retryintervalms": Hint(KAFKA, None, _AGAIN),
    "key.deserializer": Hint(KAFKA, None, "name the columns and their types by .schema(...)"),
    "value.deserializer": Hint(KAFKA, None, "name the columns and their types by .schema(...)"),
    "retention.ms": Hint(KAFKA, "retention", "a length of time such as 7d"),
    # spark-redis: connections, streams, hashes
    **{name: Hint(SPARK_REDIS, "url", _CONNECTION) for name in ("host", "port", "auth", "user", "dbnum", "ssl")},
    "timeout": Hint(SPARK_REDIS, None, _AGAIN),
    "stream.keys": Hint(SPARK_REDIS, "stream"),
    "stream.offsets": Hint(SPARK_REDIS, "startingOffsets", 'earliest, latest, or ids as in {"orders": "0-0"}'),
    "stream.group.name": Hint(SPARK_REDIS, "group", "not needed to read"),
    "stream.consumer.prefix": Hint(SPARK_REDIS, "queryName", "only where option 'mode' is 'group'"),
    "stream.parallelism": Hint(SPARK_REDIS, "minPartitions"),
    "stream.read.batch.size": Hint(SPARK_REDIS, "maxEntriesPerTrigger", "which bounds a micro-batch"),
    "stream.read.block": Hint(SPARK_REDIS, None, "the trigger says how often there is a batch"),
    "table": Hint(SPARK_REDIS, "hashes", "a glob of their keys, such as person:*"),
    "keys.pattern": Hint(SPARK_REDIS, "hashes"),
    "key.column": Hint(SPARK_REDIS, "keyColumn"),
    "infer.schema": Hint(SPARK_REDIS, None, "name the columns and their types by .schema(...)"),
    "partitions.number": Hint(SPARK_REDIS, "minPartitions"),
    "filter.keys.by.type": Hint(SPARK_REDIS, None, "keys that hold something else are passed over"),
    "scan.count": Hint(SPARK_REDIS, None, _PAGES),
    "iterator.grouping.size": Hint(SPARK_REDIS, None, _PAGES),
    "max.pipeline.size": Hint(SPARK_REDIS, None, _PAGES),
}

_PREFIXES = {
    "kafka.ssl.": Hint(KAFKA, "url", "rediss:// for TLS, with ?ssl_ca_certs=FILE for a certificate of your own"),
    "kafka.sasl.": Hint(KAFKA, "url", _CONNECTION),
    "kafka.security.": Hint(KAFKA, "url", _CONNECTION),
    "kafka.": Hint(KAFKA, None, "a setting of its client"),
    "spark.redis.": Hint(SPARK_REDIS, "url", _CONNECTION),
}


def hint(name: str) -> Hint | None:
    """The equivalent of a name of Kafka's or of spark-redis; None for one that is neither's."""
    return _FOREIGN.get(name) or next((found for start, found in _PREFIXES.items() if name.startswith(start)), None)


def refusal(name: str, options: Collection[str], call: str) -> str | None:
    """The error for a name that is Kafka's or spark-redis's; None for any other."""
    found = hint(name)
    if found is None:
        return None
    whose = f"a name of {found.whose}'s"
    if found.ours in options:
        note = f"; {found.note}" if found.note else ""
        return f"unknown option {name!r}: did you mean {found.ours!r}? It is {whose}{note}"
    if found.ours is not None:
        return f"unknown option {name!r}: leave it out. It is {whose}, here {found.ours!r}, which {call} does not take"
    return f"unknown option {name!r}: leave it out. It is {whose}; {found.note}"
