"""A line that sends over another and reports what passes: to list the commands, to keep the replies."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from millstream.client.line import Command, Line, Reply

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
