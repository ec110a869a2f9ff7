"""What the parts of group mode hand to each other: the options of a read, and one task's work."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from millstream.spark.model.claims import Run

if TYPE_CHECKING:
    from millstream.spark.options.read import Options


@dataclass(frozen=True)
class GroupOptions:
    """What a read in group mode was asked to do.

    Attributes:
        parsed: the options that it shares with the plain read.
        group: whose entries.
        query: from which the names of the query's consumers derive.
        min_idle_ms: entries that others have left idle for so long are claimed too; None leaves them alone.
        consumer: for a batch read, whose pending entries are read.
    """

    parsed: "Options"
    group: str
    query: str
    min_idle_ms: int | None = None
    consumer: str = ""


@dataclass
class ClaimPartition(InputPartition):
    """One task's work.

    Attributes:
        key: the stream.
        runs: the entries.
        consumer: who holds them.
        deliveries: of each entry, where each is a run of its own; else empty.
    """

    key: str
    runs: tuple[Run, ...]
    consumer: str
    deliveries: tuple[int, ...] = ()
