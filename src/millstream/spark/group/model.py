"""What the parts of group mode hand to each other: the options of a read, and one task's work."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from millstream.spark.model.claims import Run

if TYPE_CHECKING:
    from millstream.spark.options.read import Options


@dataclass(frozen=True)
class GroupOptions:
    """What a read in group mode was asked to do."""

    parsed: "Options"  # The options that it shares with the plain read
    group: str  # Whose entries
    query: str  # From which the names of the query's consumers derive
    # Entries that others have left idle for so long are claimed too; None leaves them alone
    min_idle_ms: int | None = None
    consumer: str = ""  # For a batch read, whose pending entries are read


@dataclass
class ClaimPartition(InputPartition):
    """One task's work."""

    key: str  # The stream
    runs: tuple[Run, ...]  # The entries
    consumer: str  # Who holds them
    deliveries: tuple[int, ...] = ()  # Of each entry, where each is a run of its own; else empty
