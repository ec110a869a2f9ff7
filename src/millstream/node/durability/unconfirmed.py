"""Records that fewer replicas hold than ``sync-replicas`` requires: their positions are not released yet.

Each record for replicas is noted with the offset after its bytes. Once enough replicas have confirmed that offset, its
position may be released, if the log has kept it too. The bytes *sent* to replicas do not depend on this: they go out
once the log has kept them. Otherwise server and replicas would wait for each other for ever.
"""

from collections import deque

from millstream.node.durability.held_replies import UNLIMITED, ReplyGate

_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size in bytes of records stored to find their keys; beyond it a record counts for every key."""


class Unconfirmed:
    """The records that wait for replicas, and the limit that they set on released replies."""

    def __init__(self) -> None:
        # The gate whose limit this sets; the shell replaces it by that of its connections
        self.gate = ReplyGate(UNLIMITED)
        self.is_asked = False  # Replicas must confirm writes; otherwise nothing is recorded
        self._waiting: deque[tuple[int, int, bytes | None]] = deque()  # position, offset after it, record
        self._last = self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, position: int, offset: int, record: bytes) -> None:
        """Note a new record for replicas, with its position and the offset after its bytes."""
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
        """True if the offset of the oldest waiting record is above ``before`` and at most ``offset``."""
        return bool(self._waiting) and before < self._waiting[0][1] <= offset

    @property
    def oldest(self) -> int | None:
        """Offset after the oldest waiting record; None if no record waits."""
        return self._waiting[0][1] if self._waiting else None

    def confirm(self, offset: int) -> bool:
        """Note that enough replicas have reached an offset; report whether more is released."""
        waiting = self._waiting
        while waiting and waiting[0][1] <= offset:
            self._bytes -= len(waiting.popleft()[2] or b"")
        return self.gate.limit_to(waiting[0][0] - 1 if waiting else UNLIMITED)

    def forget(self) -> bool:
        """Stop waiting for replicas; report whether more is released."""
        self.is_asked = False
        self._waiting.clear()
        self._bytes = 0
        return self.gate.limit_to(UNLIMITED)

    def records(self) -> list[bytes | None]:
        """The waiting records, oldest first; None for one that was not stored, so its keys are unknown."""
        return [record for _, _, record in self._waiting]
