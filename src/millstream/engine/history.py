"""The stream of bytes that the data has come from, and its offset: replicas and their primary compare both.

PURE. A *history* is the bytes that a primary sends to its replicas; it has a name, and an offset counts its bytes. Two
servers with equal name and offset hold the same data. The state is part of the keyspace and of the log, so that a
primary that starts again still knows how far its replicas may have come.

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
    """Histories as text for another server: ``name:offset``, with commas between."""
    return ",".join(f"{name}:{second}" for name, second in zip(names[::2], names[1::2], strict=True))


def names_of(text: bytes) -> tuple[Any, ...]:
    """Another server's ``earlier``, as :class:`ReplicationState` has it, from its text, without malformed parts."""
    # findall skips what does not fit; the cut bounds what a hostile peer can have us keep
    pairs = _PAIR.findall(text)[:EARLIER_MAX]
    return tuple(each for name, second in pairs for each in (name.decode(), int(second)))


@dataclass(slots=True)
class ReplicationState:
    """See the module's text."""

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
        """Count this many bytes more, after which a database is selected."""
        self.offset += size
        self.db = db

    @property
    def is_given_up(self) -> bool:
        """It is recorded no more, and there may be changes since that no offset counts."""
        return not self.replid and bool(self.replid2)

    def before(self) -> tuple[Any, ...]:
        """The value of ``earlier`` for a history that goes on from this one."""
        return ((self.replid2, self.second, *self.earlier) if self.replid2 else self.earlier)[: 2 * EARLIER_MAX]

    def ends(self) -> Iterator[tuple[str, int]]:
        """The histories that this one goes on from, the latest first: name, and offset up to which it is the same."""
        names = self.before()
        for name, second in zip(names[::2], names[1::2], strict=True):
            yield name, second - 1

    def follows(self, replid: str, offset: int) -> bool:
        """True if a server at this offset of that history holds the data that was here at that offset."""
        if not self.replid:
            return False
        return replid == self.replid or (replid == self.replid2 and offset <= self.second)
