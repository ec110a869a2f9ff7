"""Short commands in one round trip: the server's own replies, untouched by redis-py, errors among them as values."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import hiredis

from millstream.errors import UsageError
from millstream.spark import wire

Command: TypeAlias = tuple[bytes | str | int, ...]
Reply: TypeAlias = Any

Refusal = hiredis.ReplyError
"""What stands in the place of a reply where the server refused the command."""


class Asker:
    """A connection that is made when it is first needed.

    Args:
        url: of the server.

    Attributes:
        received: bytes of the last replies.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._wire: wire.Wire | None = None
        self.received = 1

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to commands that may be repeated: sent again for a while when the server is away."""
        return wire.retrying(lambda: self.once(commands)) if commands else []

    def once(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to commands that are sent once.

        Raises:
            OSError: the connection broke; whether they ran is unknown.
        """
        if self._wire is None:
            self._wire = _connected(self._url)
        try:
            self._wire.send(commands)
            raw = self._wire.receive()
        except BaseException:
            self.close()
            raise
        self.received = len(raw)
        reader = hiredis.Reader()
        reader.feed(raw)
        return [reader.gets() for _ in commands]

    def close(self) -> None:
        """Close the connection; the next command makes another one."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def _connected(url: str) -> wire.Wire:
    """A connection; redis-py's errors of making one as those of a socket."""
    import redis  # noqa: PLC0415 - looking up the source must stay cheap

    try:
        return wire.Wire(url)
    except redis.AuthenticationError as reason:
        raise UsageError(f"option 'url': the server refuses the user or the password: {reason}") from None
    except (redis.ConnectionError, redis.TimeoutError) as reason:
        raise ConnectionError(str(reason)) from None


def checked(reply: Reply) -> Reply:
    """The reply itself.

    Raises:
        UsageError: the server refused the command.
    """
    if isinstance(reply, Refusal):
        raise UsageError(f"the server refused a command: {reply}")
    return reply


def absent(reply: Reply) -> bool:
    """Whether a command was refused because its stream or its group is not there."""
    return isinstance(reply, Refusal) and ("no such key" in str(reply).lower() or str(reply).startswith("NOGROUP"))


def pairs(flat: Reply) -> dict[bytes, Any]:
    """A reply of names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
