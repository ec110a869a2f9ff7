"""Parts that all reading functions share: the time limit, errors for refused commands, and a log of replies."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from millstream.client.line import Command, Line, Reply
from millstream.errors import MillstreamError
from millstream.texts import said

PATIENCE = 10.0
"""Time limit of one round trip in seconds; one round trip may read many streams."""


class NotReadableError(MillstreamError):
    """The named object does not exist or is not a stream, or the server refuses to show it.

    What to do: list the existing names (`millstream stream ls`), or name another server with --url.
    """

    exit_code: ClassVar[int] = 4


class NotAllowedError(NotReadableError):
    """The user has no right to read the named object.

    What to do: connect as a user with the rights that the message names.
    """

    exit_code: ClassVar[int] = 5


def unreadable(text: str, stream: str) -> NotReadableError:
    """Return the exception for a refusal that :func:`explained` put into words."""
    # redis-py removes NOPERM; the remaining text has been Redis's since the first version with ACLs
    said = text.removeprefix(f"{stream}: ").lower()
    denied = said.startswith(("noperm", "noauth")) or "no permissions" in said
    return (NotAllowedError if denied else NotReadableError)(text)


async def calls(line: Line, commands: Sequence[Command]) -> list[Reply]:
    """Send commands in one round trip and return their replies; each command names a key."""
    return list(await line.calls(commands, timeout=PATIENCE)) if commands else []


async def together(*readers: Awaitable[Any]) -> list[Any]:
    """Run readers at once, so that their requests share round trips; the first that failed raises, after all ended."""
    found = await asyncio.gather(*readers, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def checked(reply: Reply, stream: str, group: str | None = None) -> Reply:
    """Return the reply; raise an error if it is a refusal."""
    said = refusal(reply)
    if said is None:
        return reply
    raise unreadable(explained(said, stream, group), stream)


def explained(said: str, stream: str, group: str | None = None) -> str:
    """Return the server's refusal in words for the person who named the stream and the group."""
    if "no such key" in said:
        return f"there is no stream {stream!r}: check the name, and the database in the URL"
    if said.startswith("WRONGTYPE"):
        return f"the key {stream!r} holds no stream"
    if said.startswith("NOGROUP"):
        return f"there is no stream {stream!r} with a group {group!r}: `millstream group ls` lists the groups"
    return f"{stream}: {said}"


async def is_missing(line: Line, key: str) -> bool:
    """Return True if the key does not exist."""
    return await line.near(key).calls([("EXISTS", key)]) == [0]


Note: TypeAlias = Callable[[int, Sequence[Command], Sequence[Reply]], None]
"""Callback with the number of the cluster's node, the commands and their replies."""


class NotedLine(Line):
    """A connection that sends over another one and passes each reply to a callback."""

    def __init__(self, line: Line, note: Note, node: int = 0) -> None:  # not Line's: there is no connection of its own
        self._to = line
        self._note = note
        self._node = node

    def calls(
        self, commands: Sequence[Command], *, timeout: float | None = None, only_if: Callable[[], bool] | None = None
    ) -> "asyncio.Future[list[Reply]]":
        """Send commands as :meth:`Line.calls` does."""
        return asyncio.ensure_future(self._noted(commands, self._to.calls(commands, timeout=timeout, only_if=only_if)))

    def wall_time(self) -> int:
        """Return the wall time; see :meth:`Line.wall_time`."""
        return self._to.wall_time()

    def near(self, key: str) -> Line:
        """Return the connection for a key; see :meth:`Line.near`."""
        return NotedLine(self._to.near(key), self._note)

    async def nodes(self) -> list[Line]:
        """Return one connection for each node; see :meth:`Line.nodes`."""
        return [NotedLine(each, self._note, number) for number, each in enumerate(await self._to.nodes())]

    async def _noted(self, commands: Sequence[Command], asked: Awaitable[list[Reply]]) -> list[Reply]:
        replies = await asked
        self._note(self._node, commands, replies)
        return replies


Record: TypeAlias = dict[str, Any]


def record(row: Sequence[Any]) -> Record:
    """Return one of XINFO's maps as a dict; RESP2 sends it as a flat list of names and values."""
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}


def refusal(reply: Reply) -> str | None:
    """Return the server's error text; None if the reply is not an error."""
    return said(reply) if isinstance(reply, Exception) else None
