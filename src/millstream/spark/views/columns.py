"""The columns of each view, and one task's share of it, shared by the planner, the reader and ``source``."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import DataType, IntegerType, LongType, MapType, StringType, TimestampType

from millstream.spark.model.offsets import Id

_TEXT, _WHEN, _COUNT = StringType(), TimestampType(), LongType()

COLUMNS: dict[str, dict[str, DataType]] = {
    "groups": {
        "stream": _TEXT, "group": _TEXT, "consumers": _COUNT, "pending": _COUNT, "last_delivered_id": _TEXT,
        "entries_read": _COUNT, "lag": _COUNT,
    },
    "consumers": {
        "stream": _TEXT, "group": _TEXT, "consumer": _TEXT, "pending": _COUNT, "idle_ms": _COUNT,
        "inactive_ms": _COUNT,
    },
    "pending": {
        "stream": _TEXT, "group": _TEXT, "consumer": _TEXT, "id": _TEXT, "timestamp": _WHEN, "idle_ms": _COUNT,
        "deliveries": _COUNT, "delivered": _WHEN,
    },
    "dead": {
        "stream": _TEXT, "id": _TEXT, "group": _TEXT, "consumer": _TEXT, "deliveries": _COUNT, "reason": _TEXT,
        "error": _TEXT, "traceback": _TEXT, "published": _WHEN, "died": _WHEN, "returned": IntegerType(),
        "fields": MapType(_TEXT, _TEXT), "letter_stream": _TEXT, "letter_id": _TEXT,
    },
}  # fmt: skip
"""Columns of each view, in order."""

VIEWS = tuple(COLUMNS)


@dataclass
class ViewPartition(InputPartition):
    """One task's share of a view."""

    keys: tuple[str, ...] = ()  # Streams whose groups or consumers are read; empty if there is nothing to read
    group: bytes = b""  # Group of the one stream, for pending entries
    start: Id | None = None  # Exclusive lower bound of the ids, for pending entries and dead letters
    end: Id | None = None  # Inclusive upper bound of the ids
