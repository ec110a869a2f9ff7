"""The values that the parts of group mode exchange: the options of a read, and one task's work."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from millstream.spark.model.claims import Run
from millstream.spark.options.read import Options


@dataclass(frozen=True)
class GroupOptions:
    """The options of a read in group mode."""

    parsed: Options  # Options shared with the plain read
    group: str  # Group whose entries are read
    query: str  # Name of the query, a part of its consumers' names
    # Idle time after which other consumers' entries are also claimed, in milliseconds; None to leave them
    min_idle_ms: int | None = None
    consumer: str = ""  # Consumer whose pending entries a batch read returns


@dataclass
class ClaimPartition(InputPartition):
    """The claimed entries that one task reads."""

    key: str  # Key of the stream
    runs: tuple[Run, ...]  # Entries
    consumer: str  # Consumer that holds them
    deliveries: tuple[int, ...] = ()  # Delivery count of each entry, if each run has one entry; otherwise empty
