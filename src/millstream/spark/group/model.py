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
    query: str  # From which the names of the query's consumers derive
    # Entries that others have left idle for so long are claimed too; None leaves them alone
    min_idle_ms: int | None = None
    consumer: str = ""  # For a batch read, whose pending entries are read


@dataclass
class ClaimPartition(InputPartition):
    """The claimed entries that one task reads."""

    key: str  # The stream
    runs: tuple[Run, ...]  # The entries
    consumer: str  # The consumer that holds them
    deliveries: tuple[int, ...] = ()  # Delivery count of each entry, if each is a run of its own; else empty
