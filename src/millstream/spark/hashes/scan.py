"""The work of a task: it scans for keys, keeps its share of them, and reads their hashes a page at a time.

Each task scans all keys, which costs the server a fraction of what the hashes cost, so that keys need no planning.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from millstream.client.cluster_line import CLUSTER_INFO
from millstream.client.url import CLUSTERS
from millstream.errors import ConfigError
from millstream.spark.arrow.arrays import optional_strings, strings
from millstream.spark.arrow.columns import as_arrow, converted, is_readable, record_batch, unreadable
from millstream.spark.arrow.decode import mapped
from millstream.spark.connection import routing
from millstream.spark.connection.connection import Command, ErrorReply
from millstream.spark.connection.retry import retrying
from millstream.spark.connection.router import Router, checked, pairs
from millstream.spark.hashes.options import HashOptions
from millstream.spark.options.names import CORRUPT, FIELDS
from millstream.spark.options.read import Options
from millstream.spark.read.stream_info import StreamInfo

KEYS_A_TASK = 100_000
MOST_TASKS = 8
PAGE = 1000
"""Approximate keys of one step of the scan, and hashes of one record batch."""

_MAP = pa.map_(pa.string(), pa.string())

Row = tuple[bytes, dict[bytes, bytes]]


@dataclass
class HashLayout:
    """The source of each column."""

    schema: pa.Schema  # Schema of the batches for Spark
    key_column: str  # Column of the key
    typed: dict[str, pa.DataType] = field(default_factory=dict)  # Columns that are fields of a hash, with their types
    whole: bool = False  # True if all fields are returned as a map

    @classmethod
    def of(cls, schema: StructType, options: HashOptions) -> "HashLayout":
        """Return the layout of a Spark schema."""
        made = cls(as_arrow(schema), options.key_column)
        for column in made.schema:
            if column.name in (made.key_column, CORRUPT):
                if column.type != pa.string():
                    raise ConfigError(f"schema: column {column.name!r} must be of type string. Declare it as that.")
            elif column.name == FIELDS:
                if column.type != _MAP:
                    raise ConfigError("schema: column 'fields' must be map<string,string>. Declare it as that.")
                made.whole = True
            elif not is_readable(column.type):
                raise unreadable(schema[column.name])
            else:
                made.typed[column.name] = column.type
        return made

    def batch(self, rows: Sequence[Row], prefix: str) -> pa.RecordBatch:
        """Return the record batch of some hashes."""
        bad: dict[str, Any] = {}

        def made(column: pa.Field) -> pa.Array:
            return self._column(column.name, rows, len(prefix.encode()), bad)

        return record_batch(self.schema, made, bad, len(rows), "hashes")

    def _column(self, name: str, rows: Sequence[Row], cut: int, bad: dict[str, Any]) -> pa.Array:
        if name == self.key_column:
            return strings([key[cut:] for key, _ in rows])
        if name == FIELDS:
            return mapped([fields for _, fields in rows])
        if name == CORRUPT:
            return pa.nulls(len(rows), pa.string())
        source = optional_strings([fields.get(name.encode()) for _, fields in rows])
        return converted(source, self.typed[name], name, bad)


def shares(options: HashOptions) -> int:
    """Return the number of tasks: more if there are many keys, of whatever type."""
    with closing(StreamInfo(Options(url=options.url, pattern=options.pattern))) as info:
        size = info.size()
    return max(options.min_partitions or 1, min(MOST_TASKS, -(-size // KEYS_A_TASK)))


def read(options: HashOptions, schema: StructType, number: int, of: int) -> Iterator[pa.RecordBatch]:
    """Yield the hashes of one share.

    A hash that was deleted before it is read gives no row; neither does a key of another type.
    """
    layout = HashLayout.of(schema, options)
    with closing(Router(options.url)) as router:
        for keys in share_keys(router, options, number, of):
            rows = hashes_of(router, layout, keys)
            if rows:
                yield layout.batch(rows, options.prefix)


def share_keys(router: Router, options: HashOptions, number: int, of: int) -> Iterator[list[bytes]]:
    """Yield the keys of a share, each once: a scan may return one twice.

    On a cluster all keys are scanned twice, for a hash that moves to a node that was scanned before.
    """
    seen: set[bytes] = set()
    if not options.url.startswith(CLUSTERS):
        routing.require_whole(retrying(lambda: router.once([CLUSTER_INFO])[0]))
    for _ in range(2 if options.url.startswith(CLUSTERS) else 1):
        for server in retrying(lambda: routing.primaries(options.url)):
            cursor: Any = None
            while cursor is None or int(cursor):
                words: Command = ("SCAN", cursor or 0, "MATCH", options.pattern, "COUNT", PAGE, "TYPE", "hash")
                cursor, page = _scanned(router, server, words, options)
                fresh = [key for key in dict.fromkeys(page) if key not in seen and zlib.crc32(key) % of == number]
                seen.update(fresh)
                if fresh:
                    yield fresh


def _scanned(router: Router, server: str, words: Command, options: HashOptions) -> Any:
    reply = retrying(lambda: router.once_at(server, [words])[0])
    if isinstance(reply, ErrorReply):
        raise routing.refusal(reply, f"option 'hashes': {options.shown_url} refused SCAN: {reply}")
    return reply


def hashes_of(router: Router, layout: HashLayout, keys: Sequence[bytes]) -> list[Row]:
    """Return the wanted fields of each hash that still exists."""
    if layout.whole or not layout.typed:
        replies = router.ask([("HGETALL", key) for key in keys])
        return [(key, pairs(reply)) for key, reply in zip(keys, replies, strict=True) if _is_hash(reply) and reply]
    names = [name.encode() for name in layout.typed]
    rows: list[Row] = []
    doubtful = []
    for key, reply in zip(keys, router.ask([("HMGET", key, *names) for key in keys]), strict=True):
        if not _is_hash(reply):
            continue
        known = {name: value for name, value in zip(names, reply, strict=True) if value is not None}
        rows.append((key, known))
        if not known:
            doubtful.append(key)
    # HMGET replies the same for a hash without these fields and for a deleted one.
    there = router.ask([("EXISTS", key) for key in doubtful])
    gone = {key for key, exists in zip(doubtful, there, strict=True) if not exists}
    return [row for row in rows if row[0] not in gone]


def _is_hash(reply: Any) -> bool:
    """Return False if the key holds another type by now; raise for any other error."""
    if isinstance(reply, ErrorReply) and str(reply).startswith("WRONGTYPE"):
        return False
    checked(reply)
    return True
