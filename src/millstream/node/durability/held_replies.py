"""Replies that wait for the log: each leaves after its barrier is reached, and after the earlier replies to its client.

A *barrier* is a log position. A reply with a barrier above the released position is held: a power cut, or the loss of
this machine, could still undo the changes that it shows. The released position is the one that the log has *kept*
(:class:`~millstream.node.durability.group_commit.GroupCommit`), up to a *limit*: the position that enough replicas hold
(:class:`~millstream.node.durability.unconfirmed.Unconfirmed`). Without a log every position counts as kept.
"""

import sys
from collections import deque
from typing import Protocol

from millstream.replies import Buffer


class ReplyHolder(Protocol):
    """A connection with replies that wait for a position."""

    def release(self) -> None:
        """Send the replies that waited, since the position has moved on."""


UNLIMITED = sys.maxsize
"""A limit above every position."""


class ReplyGate:
    """The position up to which replies may go, for all connections of a node."""

    def __init__(self, kept: int = 0) -> None:
        self.kept = self.released = kept
        self.limit = UNLIMITED  # No reply for a later position may be sent, even if that position is kept
        # Connections with held replies; each leaves when it has none
        self.holders: dict[ReplyHolder, None] = {}  # in the order in which they began to wait
        self.watchers: dict[ReplyHolder, None] = {}  # Holders that send up to the kept position, not the released one

    def begin(self, position: int) -> None:
        """Start at the position up to which a log was read; it is kept."""
        self.kept, self.released = position, min(position, self.limit)

    def keep(self, position: int) -> None:
        """Note that the log has kept everything up to a position."""
        self.kept = max(self.kept, position)
        self.released = min(self.kept, self.limit)

    def limit_to(self, position: int) -> bool:
        """Release replies only up to this position; report whether that is more than before."""
        before, self.limit = self.released, position
        self.released = min(self.kept, position)
        return self.released > before

    def open(self) -> None:
        """Let all connections send the replies that may go now, after the position has moved on."""
        self.tell_watchers()
        for holder in list(self.holders):
            holder.release()

    def tell_watchers(self) -> None:
        """Notify watchers that the log has kept or synced more."""
        for watcher in list(self.watchers):
            watcher.release()


class HeldReplies:
    """One connection's waiting replies, oldest first."""

    __slots__ = ("_gate", "_holder", "_queue", "size")

    def __init__(self, gate: ReplyGate, holder: ReplyHolder) -> None:
        self._gate = gate
        self._holder: ReplyHolder | None = holder  # None at the end, or the two would be a reference cycle
        self._queue: deque[tuple[int, list[Buffer]]] = deque()  # position and buffers
        self.size = 0  # Bytes of held replies

    def __bool__(self) -> bool:
        return bool(self._queue)

    def hold(self, buffers: list[Buffer], barrier: int) -> bool:
        """Keep a reply if it must wait for this log position; False if it may be sent now."""
        # Its own barrier may be lower than that of the queue: a client gets replies in the order of its commands
        if self._queue or barrier > self._gate.released:
            if self._holder is not None:
                self._queue.append((barrier, buffers))
                self.size += sum(map(len, buffers))
                self._gate.holders[self._holder] = None
            return True
        return False

    def take(self) -> list[Buffer]:
        """Remove and return the replies that may be sent now."""
        ready: list[Buffer] = []
        while self._queue and self._queue[0][0] <= self._gate.released:
            ready += self._queue.popleft()[1]
        self.size -= sum(map(len, ready))
        if not self._queue and self._holder is not None:
            self._gate.holders.pop(self._holder, None)
        return ready

    def end(self) -> None:
        """Drop the held replies when the connection ends, and deregister its holder."""
        self._queue.clear()
        self.size = 0
        if self._holder is not None:
            self._gate.holders.pop(self._holder, None)
            self._holder = None
