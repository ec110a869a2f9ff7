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

NO_DATABASE = -1  # Nothing is selected: the next bytes begin with SELECT
NO_OFFSET = -1
# Number of names kept of histories before the last but one: each start or promotion of a primary makes one.
EARLIER_MAX = 32


_PAIR = re.compile(rb"([0-9a-zA-Z]{40}):(-?[0-9]{1,18})")


def text_of(names: tuple[Any, ...]) -> str:
    """Return histories as text for another server: ``name:offset``, with commas between."""
    return ",".join(f"{name}:{second}" for name, second in zip(names[::2], names[1::2], strict=True))


def names_of(text: bytes) -> tuple[Any, ...]:
    """Parse another server's text of earlier histories for :attr:`ReplicationState.earlier`; skip malformed parts."""
    # findall skips what does not fit; the cut bounds what a hostile peer can have us keep
    pairs = _PAIR.findall(text)[:EARLIER_MAX]
    return tuple(each for name, second in pairs for each in (name.decode(), int(second)))


@dataclass(slots=True)
class ReplicationState:
    """Name and offset of the current history, and of the earlier histories that it continues."""

    replid: str = ""  # Name of the history, 40 hexadecimal digits; empty while nothing is recorded of one
    offset: int = 0  # Bytes of it so far
    db: int = NO_DATABASE  # The database that its commands have selected last, or :data:`NO_DATABASE`
    # Name of the history that this one goes on from; empty for none. If nothing is recorded any more, name of the one
    # that was given up.
    replid2: str = ""
    second: int = NO_OFFSET  # Offset in that up to which both are the same, plus 1; :data:`NO_OFFSET` for none
    # The histories that came before those, the latest first: name and such an offset of each in turn. No server goes on
    # after them. They show the changes that another server has which went on from one of them.
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
