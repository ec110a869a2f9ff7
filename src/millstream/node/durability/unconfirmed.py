"""Records that fewer replicas hold than ``sync-replicas`` asks for: their positions are not released yet.

Each record that replicas are told of is noted with the offset after its bytes. Once enough replicas have said that
they are as far, its position may be released, if the log has kept it too. Nothing here says what replicas are *sent*:
that is what the log has kept, or the two would wait for each other for ever.
"""

from collections import deque

from millstream.node.durability.held_replies import UNLIMITED, ReplyGate

_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of records kept to know their keys; above that a record counts as one that touches every key."""


class Unconfirmed:
    """See the module's text."""

    def __init__(self) -> None:
        # The gate whose limit this moves; the shell puts the one of its connections here
        self.gate = ReplyGate(UNLIMITED)
        self.is_asked = False  # Replicas are asked for; else nothing is noted
        self._waiting: deque[tuple[int, int, bytes | None]] = deque()  # position, offset after it, record
        self._last = self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, position: int, offset: int, record: bytes) -> None:
        """A record was made that replicas are told of."""
        if not self.is_asked or position <= self._last:
            return
        self._last = position
        if not self._waiting:
            self.gate.limit_to(position - 1)
        if self._bytes + len(record) > _BYTES_MAX:
            self._waiting.append((position, offset, None))
        else:
            self._bytes += len(record)
            self._waiting.append((position, offset, record))

    def is_between(self, before: int, offset: int) -> bool:
        """True if what waits longest is behind one offset, and not behind a later one that a replica has come to."""
        return bool(self._waiting) and before < self._waiting[0][1] <= offset

    @property
    def oldest(self) -> int | None:
        """The offset behind what waits longest; None where nothing does."""
        return self._waiting[0][1] if self._waiting else None

    def confirm(self, offset: int) -> bool:
        """Enough replicas are at an offset; whether more is released."""
        waiting = self._waiting
        while waiting and waiting[0][1] <= offset:
            self._bytes -= len(waiting.popleft()[2] or b"")
        return self.gate.limit_to(waiting[0][0] - 1 if waiting else UNLIMITED)

    def forget(self) -> bool:
        """No replica is asked for any more; whether more is released."""
        self.is_asked = False
        self._waiting.clear()
        self._bytes = 0
        return self.gate.limit_to(UNLIMITED)

    def records(self) -> list[bytes | None]:
        """The keys of the records that wait, oldest first; None for a record whose keys are not known."""
        return [record for _, _, record in self._waiting]
