"""The values that the parts of group mode exchange: the options of a read, and one task's work."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from millstream.spark.model.claims import Run
from millstream.spark.options.read import Options


@dataclass(frozen=True)
class GroupOptions:
    """The options of a read in group mode."""

    parsed: Options  # The options that it shares with the plain read
    group: str  # The group whose entries are read
    query: str  # The query's name, a part of its consumers' names
    # Idle time after which entries of other consumers are claimed too; None leaves them alone
    min_idle_ms: int | None = None
    consumer: str = ""  # The consumer whose pending entries a batch read returns


@dataclass
class ClaimPartition(InputPartition):
    """The claimed entries that one task reads."""

    key: str  # The stream
    runs: tuple[Run, ...]  # The entries
    consumer: str  # The consumer that holds them
    deliveries: tuple[int, ...] = ()  # Delivery count of each entry if each run has one entry; else empty
