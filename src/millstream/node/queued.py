"""Plain commands of a transaction, stored as the bytes that arrived.

A transaction that adds a thousand entries is a thousand commands that only wait. Their names and numbers of arguments
are enough to queue them, so they are counted together and not parsed. EXEC passes the bytes to the runner of
:mod:`millstream.node.batch`. Only commands that write are stored this way, since those are sent by the thousand. The
sizes of all of them count for the transaction's record.
"""

import re
from collections.abc import Iterator

from millstream import core
from millstream.commands.context.session import WORD_SIZE, Queue, Session
from millstream.node.log.weight import WORD_OVERHEAD
from millstream.protocol import limits
from millstream.protocol.reader import CommandReader
from millstream.replies import Buffer

# Largest number of bytes that a queued command takes for each input byte: an empty argument takes six
_QUEUED_MAX = 11
# Plain commands that may read entries, in the bytes of a queue
_READS = re.compile(rb"(?i)\r\n(xreadgroup|xclaim|xdel)\r\n")


class PlainPiece:
    """Plain commands that were queued together."""

    __slots__ = ("data", "weight")

    def __init__(self, data: bytes, weight: int) -> None:
        self.data, self.weight = data, weight

    def __iter__(self) -> Iterator[list[bytes]]:
        """The arguments of each command."""
        return self.after(0)

    def after(self, at: int) -> Iterator[list[bytes]]:
        """The arguments of each command from a position on."""
        reader = CommandReader()  # the native core also queues arguments that contain line ends
        reader.feed(self.data[at:])
        while (words := reader.next()) is not None or reader.has_more:
            if words is not None:
                yield words


def reading(queue: Queue) -> Iterator[list[bytes]]:
    """The queued commands that may read entries, whose names are not searched for one by one."""
    for item in queue.items:
        if isinstance(item, list):
            yield item
        elif isinstance(item, PlainPiece) and _READS.search(item.data):
            yield from item


class Answers:
    """The bytes of EXEC's reply."""

    __slots__ = ("_ceiling", "_size", "buffers", "overflow")

    def __init__(self, count: int, ceiling: int) -> None:
        self.buffers: list[Buffer] = [b"*%d\r\n" % count]  # Encoded replies, in order
        self.overflow = self._size = 0
        self._ceiling = ceiling

    def add(self, buffers: list[Buffer]) -> None:
        """Add the next commands' replies. If EXEC's reply gets too large, drop it, but still run the transaction."""
        self._size += sum(map(len, buffers))
        if self._ceiling and self._size > self._ceiling:
            self.overflow = self._size
            self.buffers.clear()
        else:
            self.buffers += buffers


def append_plain(session: Session, queue: Queue, data: bytes, at: int) -> tuple[int, int, str]:
    """Queue the commands that may be queued together.

    Returns:
        The position after them, their number, and the name of the last one.
    """
    if queue.size + _QUEUED_MAX * (len(data) - at) > limits.QUERY_BUFFER_MAX:  # the ordinary way enforces the limit
        return at, 0, ""
    assert core.native is not None  # without the native core nothing is plain
    end, commands, size, words, last = core.native.queue_plain(data, at)
    if commands:
        if not session.is_doomed:
            queue.append_together(
                PlainPiece(data[at:end], size + WORD_OVERHEAD * words), commands, size + WORD_SIZE * words
            )
        session.commands += commands
        session.last_command = last
    return end, commands, last
