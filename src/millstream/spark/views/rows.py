"""The rows of a view: read page by page, so that millions of them never arrive in one reply."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.client.dead_letter.letter import DeadLetter, unpack
from millstream.client.ranges import behind
from millstream.spark.arrow.arrays import optional_strings
from millstream.spark.arrow.columns import moments
from millstream.spark.arrow.decode import decode_parsed
from millstream.spark.arrow.page import Want
from millstream.spark.connection.router import Router, absent, checked, pairs
from millstream.spark.options.read import Options
from millstream.spark.views.columns import COLUMNS, ViewPartition

PAGE = 5000
"""Most pending entries of one reply; about 400 kB."""

_LETTERS = 500
"""Most dead letters of one reply; each may hold a traceback."""

Rows = list[Sequence[Any]]


def read(kind: str, parsed: Options, schema: StructType, part: ViewPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one share of a view, as record batches."""
    target = to_arrow_schema(schema, timezone="UTC")
    names = list(COLUMNS[kind])
    places = [names.index(name) for name in target.names]
    with closing(Router(parsed.url)) as router:
        for rows in READERS[kind](router, part):
            if rows:
                columns = list(zip(*rows, strict=True))
                arrays = [to_column(columns[place], field.type) for place, field in zip(places, target, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)


def to_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as an Arrow column; text is converted as in a plain read."""
    if pa.types.is_string(kind):
        return optional_strings(
            [value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value for value in values]
        )
    if pa.types.is_timestamp(kind):
        return moments(values)
    if pa.types.is_map(kind):
        page = decode_parsed([(b"0-0", value) for value in values], Want(pairs=True))
        assert page is not None
        return page.pairs
    # A letter may contain any number of deliveries; a number that does not fit the column becomes null.
    most = 1 << (kind.bit_width - 1)
    return pa.array([value if value is None or -most <= value < most else None for value in values], kind)


def _groups(router: Router, part: ViewPartition) -> Iterator[Rows]:
    replies = router.ask([("XINFO", "GROUPS", key) for key in part.keys])
    for key, reply in zip(part.keys, replies, strict=True):
        if absent(reply):
            continue
        yield [
            (
                key, row[b"name"], row[b"consumers"], row[b"pending"], row[b"last-delivered-id"],
                row.get(b"entries-read"), row.get(b"lag"),
            )
            for row in map(pairs, checked(reply))
        ]  # fmt: skip


def _consumers(router: Router, part: ViewPartition) -> Iterator[Rows]:
    # Each task reads the groups again: the driver passes only the streams, which are fewer.
    for page in _groups(router, part):
        places = [(row[0], row[1]) for row in page]
        replies = router.ask([("XINFO", "CONSUMERS", key, group) for key, group in places])
        for (key, group), reply in zip(places, replies, strict=True):
            if absent(reply):
                continue
            rows = map(pairs, checked(reply))
            yield [(key, group, row[b"name"], row[b"pending"], row[b"idle"], row.get(b"inactive")) for row in rows]


def _pending(router: Router, part: ViewPartition) -> Iterator[Rows]:
    (key,) = part.keys
    start: str | None = f"({part.start}"
    while start is not None:
        now, reply = router.ask([("TIME",), ("XPENDING", key, part.group, start, str(part.end), PAGE)])
        if absent(reply):
            return
        rows = checked(reply)
        # The time of delivery is the server's present time minus the idle time.
        ms = int(checked(now)[0]) * 1000 + int(now[1]) // 1000
        yield [
            (key, part.group, consumer, ident, int(ident.partition(b"-")[0]), idle, deliveries, ms - idle or None)
            for ident, consumer, idle, deliveries in rows
        ]
        start = behind(rows[-1][0]) if len(rows) == PAGE else None


def _dead(router: Router, part: ViewPartition) -> Iterator[Rows]:
    (key,) = part.keys
    start: str | None = f"({part.start}"
    while start is not None:
        (reply,) = router.ask([("XRANGE", key, start, str(part.end), "COUNT", _LETTERS)])
        rows = checked(reply)
        yield [(*letter_row(flat), key, ident) for ident, flat in rows]
        start = behind(rows[-1][0]) if len(rows) == _LETTERS else None


def letter_row(flat: Sequence[bytes]) -> tuple[Any, ...]:
    """Return the columns of a dead letter; for any other entry, only its fields."""
    try:
        letter: DeadLetter = unpack(flat)
    except ValueError:
        return (*[None] * 11, flat)
    return (
        letter.stream, letter.id, letter.group, letter.consumer, letter.deliveries, letter.reason, letter.error,
        letter.traceback, letter.published_ms, letter.died_ms, len(letter.history), letter.fields,
    )  # fmt: skip


READERS = {"groups": _groups, "consumers": _consumers, "pending": _pending, "dead": _dead}
