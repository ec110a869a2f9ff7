"""The history of the data, a named stream of bytes with an offset, which replicas and their primary compare.

PURE. A *history* is the bytes that a primary sends to its replicas; it has a name, and an offset counts its bytes. Two
servers with equal name and offset hold the same data. The state is part of the keyspace and of the log, so a restarted
primary still has the offsets that its replicas may have reached.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/ (replication ID explained)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NO_DATABASE = -1  # No database is selected: the next bytes begin with SELECT
NO_OFFSET = -1
# Number of names kept of histories before the last two: each start or promotion of a primary creates one.
EARLIER_MAX = 32


_PAIR = re.compile(rb"([0-9a-zA-Z]{40}):(-?[0-9]{1,18})")


def text_of(names: tuple[Any, ...]) -> str:
    """Return histories as text for another server: ``name:offset``, with commas between."""
    return ",".join(f"{name}:{second}" for name, second in zip(names[::2], names[1::2], strict=True))


def names_of(text: bytes) -> tuple[Any, ...]:
    """Parse another server's text of earlier histories for :attr:`ReplicationState.earlier`; skip malformed parts."""
    # findall skips malformed parts; the limit bounds the memory that a hostile peer can use
    pairs = _PAIR.findall(text)[:EARLIER_MAX]
    return tuple(each for name, second in pairs for each in (name.decode(), int(second)))


@dataclass(slots=True)
class ReplicationState:
    """Name and offset of the current history, and of the earlier histories that it continues."""

    replid: str = ""  # Name of the history, 40 hexadecimal digits; empty if no history is recorded
    offset: int = 0  # Length of the history in bytes
    db: int = NO_DATABASE  # Database that its commands selected last, or :data:`NO_DATABASE`
    # Name of the history that this one continues; empty for none. If no history is recorded any more, name of the one
    # that was given up.
    replid2: str = ""
    second: int = NO_OFFSET  # Offset up to which both histories are equal, plus 1; :data:`NO_OFFSET` for none
    # Earlier histories, latest first: each name is followed by such an offset. No server continues them. They reveal
    # the differing changes of another server that branched off from one of them.
    earlier: tuple[Any, ...] = ()

    def advance(self, db: int, size: int) -> None:
        """Add this many bytes to the offset, and set the database that is selected after them."""
        self.offset += size
        self.db = db

    @property
    def is_given_up(self) -> bool:
        """True if the history is no longer recorded; later changes may exist that no offset counts."""
        return not self.replid and bool(self.replid2)

    def before(self) -> tuple[Any, ...]:
        """Return the value of ``earlier`` for a history that continues this one."""
        return ((self.replid2, self.second, *self.earlier) if self.replid2 else self.earlier)[: 2 * EARLIER_MAX]

    def ends(self) -> Iterator[tuple[str, int]]:
        """The histories that this one continues, latest first: the name, and the offset up to which both are equal."""
        names = self.before()
        for name, second in zip(names[::2], names[1::2], strict=True):
            yield name, second - 1

    def follows(self, replid: str, offset: int) -> bool:
        """True if a server at this offset of the named history holds the data that this server had at that offset."""
        if not self.replid:
            return False
        return replid == self.replid or (replid == self.replid2 and offset <= self.second)
