"""Parts of every reading function: the server's time limit, refusals as errors with their subject, notes of traffic."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from millstream.client.line import Command, Line, Reply
from millstream.errors import MillstreamError
from millstream.texts import said

PATIENCE = 10.0
"""Seconds that a round trip may take; a page of many streams is one."""


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
    """The error for what :func:`explained` made of a server's refusal."""
    # redis-py takes NOPERM off; the rest is Redis's wording since ACLs exist
    said = text.removeprefix(f"{stream}: ").lower()
    denied = said.startswith(("noperm", "noauth")) or "no permissions" in said
    return (NotAllowedError if denied else NotReadableError)(text)


async def calls(line: Line, commands: Sequence[Command]) -> list[Reply]:
    """The replies to commands, each of which names a key, sent in one round trip."""
    return list(await line.calls(commands, timeout=PATIENCE)) if commands else []


def checked(reply: Reply, stream: str, group: str | None = None) -> Reply:
    """The reply, unless it is a refusal."""
    said = refusal(reply)
    if said is None:
        return reply
    raise unreadable(explained(said, stream, group), stream)


def explained(said: str, stream: str, group: str | None = None) -> str:
    """The meaning of the server's refusal, for the person who named a stream and a group."""
    if "no such key" in said:
        return f"there is no stream {stream!r}: check the name, and the database in the URL"
    if said.startswith("WRONGTYPE"):
        return f"the key {stream!r} holds no stream"
    if said.startswith("NOGROUP"):
        return f"there is no stream {stream!r} with a group {group!r}: `millstream group ls` lists the groups"
    return f"{stream}: {said}"


async def is_missing(line: Line, key: str) -> bool:
    """True when nothing is at a key."""
    return await line.near(key).calls([("EXISTS", key)]) == [0]


Note: TypeAlias = Callable[[int, Sequence[Command], Sequence[Reply]], None]
"""Called with the number of a cluster's node, commands and their replies."""


class NotedLine(Line):
    """A line that sends over another, and reports the replies."""

    def __init__(self, line: Line, note: Note, node: int = 0) -> None:  # not Line's: there is no connection of its own
        self._to = line
        self._note = note
        self._node = node

    def calls(
        self, commands: Sequence[Command], *, timeout: float | None = None, only_if: Callable[[], bool] | None = None
    ) -> "asyncio.Future[list[Reply]]":
        """Send as :meth:`Line.calls` does."""
        return asyncio.ensure_future(self._noted(commands, self._to.calls(commands, timeout=timeout, only_if=only_if)))

    def wall_time(self) -> int:
        """The time, as of :meth:`Line.wall_time`."""
        return self._to.wall_time()

    def near(self, key: str) -> Line:
        """The line, as of :meth:`Line.near`."""
        return NotedLine(self._to.near(key), self._note)

    async def nodes(self) -> list[Line]:
        """The nodes, as of :meth:`Line.nodes`."""
        return [NotedLine(each, self._note, number) for number, each in enumerate(await self._to.nodes())]

    async def _noted(self, commands: Sequence[Command], asked: Awaitable[list[Reply]]) -> list[Reply]:
        replies = await asked
        self._note(self._node, commands, replies)
        return replies


Record: TypeAlias = dict[str, Any]


def record(row: Sequence[Any]) -> Record:
    """One of XINFO's maps, which RESP2 sends as names and values in turn."""
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}


def refusal(reply: Reply) -> str | None:
    """The server's words where it refused; None where it answered."""
    return said(reply) if isinstance(reply, Exception) else None
