"""A replay as it was asked for, what it came to, and the batches in which its entries go from source to target."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from millstream.errors import MillstreamError
from millstream.printable import without_password
from millstream.spark.model.offsets import ZERO, Id

Fields = list[tuple[bytes, bytes]]


class ReplayError(MillstreamError):
    """The target did not take the entries; what was written before stays, with its cursor.

    What to do: mend what the target refused and run it again: it goes on at its cursor.
    """


@dataclass(frozen=True)
class Replay:
    """What is replayed, and how.

    Attributes:
        source: place of an archive, or URL of a server.
        stream: key there.
        target: URL of the server that gets the entries.
        into: key there.
        since_ms: entries from this time on; None for the beginning.
        until_ms: entries before this time; None for the end as it is when the replay begins.
        where: field and value that an entry must have, each of them.
        speed: 1 for as fast as they came in, 10 for ten times; None for as fast as it goes.
        ids: ``keep`` writes the entries under their own ids, ``new`` under new ones.
        id_field: with ``new``, a field that gets the old id; None for none.
        name: of the replay: one that was broken off goes on under the same name; None makes one of all that is above.
    """

    source: str = field(repr=False)
    stream: str
    target: str = field(repr=False)
    into: str
    since_ms: int | None = None
    until_ms: int | None = None
    where: tuple[tuple[bytes, bytes], ...] = ()
    speed: float | None = None
    ids: Literal["keep", "new"] = "new"
    id_field: bytes | None = None
    name: str | None = None

    @property
    def cursor_key(self) -> str:
        """Where the target keeps how far this is; in the hash slot of the stream, for a cluster."""
        name = self.name
        if name is None:
            name = hashlib.sha256(self.description).hexdigest()[:16]
        tag = self.into if "{" in self.into else f"{{{self.into}}}"
        return f"millstream:replay:{name}:{tag}"

    @property
    def description(self) -> bytes:
        """What must be the same for one run to go on where another ended."""
        # Without the source's password: the target keeps this, and a replay goes on when that was changed.
        facts = [without_password(self.source), self.stream, self.since_ms, self.until_ms, self.ids, repr(self.where)]
        return json.dumps(facts).encode()


@dataclass
class ReplayResult:
    """What a replay came to.

    Attributes:
        read: entries looked at by this run.
        written: entries written, over all its runs.
        skipped: entries that the filter left out, by this run.
        resumed_after: last id of the run before; None for a new one.
        last: id of the last entry looked at.
        finished: False when it was told to stop.
        before: True when an earlier run had finished it, and this one had nothing to do.
    """

    read: int = 0
    written: int = 0
    skipped: int = 0
    resumed_after: str | None = None
    last: str | None = None
    finished: bool = False
    before: bool = False


@dataclass
class ReplayBatch:
    """Entries on their way to the target, and how far they reach."""

    entries: list[tuple[Id, Fields]] = field(default_factory=list)
    first: Id | None = None
    last: Id = ZERO
    bytes: int = 0
