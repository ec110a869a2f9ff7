"""A replay's request, its result, and the batches of entries from source to target."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from millstream.errors import MillstreamError
from millstream.printable import without_password
from millstream.spark.model.offsets import ZERO, Id

Fields = list[tuple[bytes, bytes]]


class ReplayError(MillstreamError):
    """The target refused entries. The entries written before stay, with the cursor that marks their end.

    What to do: correct the cause of the refusal and run the command again. It continues at the cursor.
    """


@dataclass(frozen=True)
class Replay:
    """The source, target and options of a replay."""

    source: str = field(repr=False)  # Location of an archive, or URL of a server
    stream: str  # Key of the stream in the source
    target: str = field(repr=False)  # URL of the server that gets the entries
    into: str  # Key of the stream on the target
    since_ms: int | None = None  # Earliest time of the entries; None for the beginning
    until_ms: int | None = None  # End of the times, exclusive; None for the end of the stream when the replay begins
    where: tuple[tuple[bytes, bytes], ...] = ()  # Fields and values that an entry must all have
    speed: float | None = None  # 1 for the original speed, 10 for ten times that; None for the maximum
    ids: Literal["keep", "new"] = "new"  # ``keep`` preserves the ids, ``new`` generates new ones
    id_field: bytes | None = None  # With ``new``, field that stores the old id; None for none
    # Name under which an interrupted replay continues; None derives one from all fields above
    name: str | None = None

    @property
    def cursor_key(self) -> str:
        """Key of the cursor at the target; on a cluster in the hash slot of the stream."""
        name = self.name
        if name is None:
            name = hashlib.sha256(self.description).hexdigest()[:16]
        tag = self.into if "{" in self.into else f"{{{self.into}}}"
        return f"millstream:replay:{name}:{tag}"

    @property
    def description(self) -> bytes:
        """The properties that must be equal for one run to continue another, as JSON."""
        # Without the source's password: the target stores this, and the password may change between runs.
        facts = [without_password(self.source), self.stream, self.since_ms, self.until_ms, self.ids, repr(self.where)]
        return json.dumps(facts).encode()


@dataclass
class ReplayResult:
    """The result of a replay."""

    read: int = 0  # Entries read by this run
    written: int = 0  # Entries written, over all its runs
    skipped: int = 0  # Entries that the filter excluded in this run
    resumed_after: str | None = None  # Last id of the previous run; None for a new replay
    last: str | None = None  # Id of the last entry read
    finished: bool = False  # False if it was stopped
    before: bool = False  # True if an earlier run had already finished the replay


@dataclass
class ReplayBatch:
    """Entries to write in one transaction, with their first and last ids."""

    entries: list[tuple[Id, Fields]] = field(default_factory=list)
    first: Id | None = None
    last: Id = ZERO
    bytes: int = 0
