"""Commands sent ahead of their replies, to each server that has some of the keys, up to a limit on the way."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hiredis

from millstream.spark.connection import routing, socket
from millstream.spark.connection.command_line import Line, pack
from millstream.spark.write.server_errors import refused

if TYPE_CHECKING:
    from millstream.spark.options.write import SinkOptions

ON_THE_WAY = 8 << 20
"""Bytes sent and not yet confirmed, at most: then a task waits for the server."""


@dataclass(frozen=True, slots=True)
class _Letter:
    """Commands about one key, packed."""

    key: str
    packed: bytes
    count: int


@dataclass(slots=True)
class _Lane:
    """A connection, and what went over it and is not confirmed."""

    line: Line
    letters: deque[_Letter] = field(default_factory=deque)


class Mail:
    """Commands sent ahead of their replies; all must be such as may be sent twice, in any order.

    Args:
        options: of the write.
    """

    def __init__(self, options: "SinkOptions") -> None:
        self._options = options
        self._lanes: dict[str, _Lane] = {}
        self._unsent: deque[_Letter] = deque()
        self._size = 0

    def send(self, key: str, *commands: tuple[bytes | str | int, ...]) -> None:
        """Send some commands about a key in a row; waits while too much is on its way.

        Raises:
            UsageError: the server refused an earlier command.
            OSError: the server was away for too long.
        """
        self.post(key, pack(*commands), len(commands))

    def post(self, key: str, packed: bytes, count: int) -> None:
        """The same of commands that are packed already, so many of them."""
        letter = _Letter(key, packed, count)
        self._unsent.append(letter)
        self._size += len(letter.packed)
        socket.retrying(self._deliver)
        while self._size > ON_THE_WAY:
            self._confirm()

    def settle(self) -> None:
        """Wait for every reply."""
        while self._unsent or any(lane.letters for lane in self._lanes.values()):
            self._confirm()

    def forget(self) -> None:
        """Drop the connections and what was on its way."""
        self.close()
        self._unsent.clear()
        self._size = 0

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            lane.line.close()
        self._lanes = {}

    def _deliver(self) -> None:
        """Send what was not sent, or went over a connection that is no more."""
        while self._unsent:
            letter = self._unsent[0]
            where = routing.home(self._options.url, letter.key)
            try:
                if where not in self._lanes:
                    self._lanes[where] = _Lane(Line(self._options.url, where))
                self._lanes[where].line.send(letter.packed)
            except Exception:
                self._lost(where)
                routing.forget(self._options.url)
                raise
            self._lanes[where].letters.append(self._unsent.popleft())

    def _lost(self, where: str) -> None:
        """Have everything that is not confirmed sent again: it may have to go elsewhere."""
        lane = self._lanes.pop(where, None)
        if lane is not None:
            lane.line.close()
            self._unsent.extend(lane.letters)

    def _confirm(self) -> None:
        replies = socket.retrying(self._receive)
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise refused(reply, self._options)

    def _receive(self) -> list[Any]:
        """Read the replies to what was sent first over the connection with the most on its way."""
        self._deliver()
        where = max(self._lanes, key=lambda where: len(self._lanes[where].letters))
        lane = self._lanes[where]
        try:
            replies = lane.line.receive(lane.letters[0].count)
        except routing.Redirected:
            self._lost(where)
            raise
        except Exception:
            self._lost(where)
            routing.forget(self._options.url)
            raise
        self._size -= len(lane.letters.popleft().packed)
        return replies
