"""Short commands in one round trip: the server's own replies, untouched by redis-py, errors among them as values."""

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import hiredis

from millstream.errors import UsageError
from millstream.spark.connection import routing, socket

Command: TypeAlias = tuple[bytes | str | int, ...]
Reply: TypeAlias = Any

Refusal = hiredis.ReplyError
"""What stands in the place of a reply where the server refused the command."""


class Asker:
    """Connections that are made when they are first needed, each to a server that has keys that were asked about.

    On a cluster a command goes to the node that has its key; one that names none (TIME, MULTI) goes with the next that
    does, or with the one before. What a call asks about one key keeps its order.

    Args:
        url: of the server, or of all of them.

    Attributes:
        received: bytes of the last replies.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._wires: dict[str, socket.Wire] = {}
        self._last = ""
        self._watching: socket.Wire | None = None
        self.received = 1

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to commands that may be repeated: sent again for a while when the server is away."""
        return socket.retrying(lambda: self.once(commands)) if commands else []

    def once(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to commands that are sent once; what was not run since it was sent elsewhere is sent there.

        Raises:
            OSError: the connection broke; whether they ran is unknown.
        """
        names = {command[0] for command in commands}
        guard = self._watching if "MULTI" in names else None
        deadline = time.monotonic() + socket.RETRY_SECONDS
        try:
            while True:
                try:
                    return self._sent(commands, whole=bool(names & {"WATCH", "MULTI"}), guard=guard)
                except routing.Redirected:
                    if guard is not None or time.monotonic() > deadline:
                        raise
                time.sleep(routing.PAUSE)  # no node tells when a slot has arrived
        finally:
            if "WATCH" in names:
                self._watching = self._wires.get(self._last)
            elif names & {"EXEC", "UNWATCH"}:
                self._watching = None

    def once_at(self, url: str, commands: Sequence[Command]) -> list[Reply]:
        """The replies of one server, whatever the commands are about."""
        try:
            if url not in self._wires:
                self._wires[url] = _connected(url)
            self._wires[url].send(commands)
            raw = self._wires[url].receive()
        except BaseException:
            self.close()
            routing.forget(self._url)
            raise
        self.received = len(raw)
        reader = hiredis.Reader()
        reader.feed(raw)
        return [reader.gets() for _ in commands]

    def _sent(self, commands: Sequence[Command], *, whole: bool, guard: socket.Wire | None) -> list[Reply]:
        """The replies to all commands.

        Args:
            commands: all.
            whole: they are one step, so that none of them is to be run elsewhere alone.
            guard: the connection that looked, over which alone they may be sent.

        Raises:
            Redirected: one of them was not run.
        """
        replies: list[Reply] = [None] * len(commands)
        for url, part in routing.spread(self._url, commands, self._last).items():
            self._last = url
            if guard is not None and self._wires.get(url) is not guard:
                raise routing.Redirected(
                    "the connection that watched is no more, or no longer the right one: look again"
                )
            for at, reply in zip(part, self.once_at(url, [commands[at] for at in part]), strict=True):
                replies[at] = reply
        lost = None
        for at, reply in enumerate(replies):
            where = routing.redirection(self._url, reply)
            if where and not whole:
                replies[at] = self.once_at(where, [("ASKING",), commands[at]])[1]
                where = routing.redirection(self._url, replies[at])
            lost = reply if where is not None else lost
        if lost is not None:
            self.close()
            raise routing.Redirected(f"the server did not run it: {lost}")
        return replies

    def close(self) -> None:
        """Close the connections; the next command makes others."""
        for one in self._wires.values():
            one.close()
        self._wires = {}


def _connected(url: str) -> socket.Wire:
    """A connection; redis-py's errors of making one as those of a socket."""
    import redis  # noqa: PLC0415 - looking up the source must stay cheap

    try:
        return socket.Wire(url)
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
        raise routing.one_of_many(reply) or UsageError(f"the server refused a command: {reply}")
    return reply


def absent(reply: Reply) -> bool:
    """Whether a command was refused because its stream or its group is not there."""
    return isinstance(reply, Refusal) and ("no such key" in str(reply).lower() or str(reply).startswith("NOGROUP"))


def pairs(flat: Reply) -> dict[bytes, Any]:
    """A reply of names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
