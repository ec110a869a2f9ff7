"""Parts of every reading function: the server's time limit, and refusals as errors with their subject."""

from collections.abc import Sequence
from typing import ClassVar

from millstream.client.line import Command, Line, Reply
from millstream.console.model.replies import refusal
from millstream.errors import MillstreamError

PATIENCE = 10.0
"""Seconds that a round trip may take; a page of many streams is one."""


class NotReadableError(MillstreamError):
    """The name does not exist, or is not a stream, or the server does not let us look; the text says which.

    What to do: list the existing names (`millstream stream ls`), or name another server with --url.
    """

    exit_code: ClassVar[int] = 4


class NotAllowedError(NotReadableError):
    """The server does not let this user look.

    What to do: connect as a user with the rights that the text names.
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
        return f"there is no stream {stream!r}: look at the name, and at the database in the URL"
    if said.startswith("WRONGTYPE"):
        return f"the key {stream!r} holds no stream"
    if said.startswith("NOGROUP"):
        return f"there is no stream {stream!r} with a group {group!r}: `millstream group ls` shows those there are"
    return f"{stream}: {said}"


async def is_missing(line: Line, key: str) -> bool:
    """True when nothing is at a key."""
    return await line.near(key).calls([("EXISTS", key)]) == [0]
