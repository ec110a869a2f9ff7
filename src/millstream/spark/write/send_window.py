"""Commands sent ahead of their replies, to each server that has some of the keys, up to a limit of open requests."""

from collections import deque
from typing import NamedTuple

from millstream.spark.connection.connection import Command, Reply, pack
from millstream.spark.connection.retry import retrying
from millstream.spark.connection.router import Router
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.server_errors import raise_refused

ON_THE_WAY = 8 << 20
"""Most bytes sent and not yet confirmed: at that limit a task waits for the server."""


class _Packed(NamedTuple):
    """Packed commands about one key, with the number of their replies."""

    key: str
    data: bytes
    replies: int


class SendWindow:
    """Commands sent before the replies to earlier ones; all must be safe to repeat, in any order."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._router = Router(options.url)
        self._unconfirmed: dict[str, deque[_Packed]] = {}  # by server, in the order of the replies
        self._unsent: deque[_Packed] = deque()
        self._size = 0

    def send(self, key: str, *commands: Command) -> None:
        """Send some commands about a key, one after the other; wait while too many bytes are unconfirmed."""
        self.send_packed(key, pack(*commands), len(commands))

    def send_packed(self, key: str, packed: bytes, count: int) -> None:
        """Send commands about a key that are packed already; wait while too many bytes are unconfirmed."""
        self._unsent.append(_Packed(key, packed, count))
        self._size += len(packed)
        retrying(self._send_all)
        while self._size > ON_THE_WAY:
            self._confirm()

    def confirm_all(self) -> None:
        """Wait for every reply."""
        while self._size:
            self._confirm()

    def forget(self) -> None:
        """Drop the connections and all unconfirmed commands."""
        self.close()
        self._unconfirmed.clear()
        self._unsent.clear()
        self._size = 0

    def close(self) -> None:
        """Close the connections."""
        self._router.close()

    def _send_all(self) -> None:
        """Send the commands that were not sent, or that were on a broken connection."""
        while self._unsent:
            server = self._router.server_of(self._unsent[0].key)
            try:
                self._router.connect(server).send(self._unsent[0].data)
            except Exception as reason:
                self._lost(server, reason)
                raise
            self._unconfirmed.setdefault(server, deque()).append(self._unsent.popleft())

    def _lost(self, server: str, reason: Exception) -> None:
        """Queue all unconfirmed commands of a server again: they may have to go to another one."""
        self._router.drop(reason, [server])
        self._unsent.extend(self._unconfirmed.pop(server, ()))

    def _confirm(self) -> None:
        raise_refused(retrying(self._receive), self._options)

    def _receive(self) -> list[Reply]:
        """Read the replies to the first commands of the server with the most open requests."""
        self._send_all()
        server = max(self._unconfirmed, key=lambda server: len(self._unconfirmed[server]))
        try:
            replies = self._router.receive(self._router.connect(server), self._unconfirmed[server][0].replies)
        except Exception as reason:
            self._lost(server, reason)
            raise
        self._size -= len(self._unconfirmed[server].popleft().data)
        return replies
