"""A line with a report as its other end."""

import asyncio
from collections.abc import Callable, Sequence

from millstream.client.line import Command, Line, Reply, Withheld
from millstream.client.recorded.report import RecordedReport


class RecordedLine(Line):
    """Asks a report as a :class:`Line` asks a server."""

    def __init__(self, report: RecordedReport, node: int = 0) -> None:  # not Line's: there is no connection
        self.report = report
        self._node = node

    @property
    def connected(self) -> bool:
        """A file does not go away."""
        return True

    @property
    def patience(self) -> float:
        """Nothing is waited for."""
        return 0.0

    def wall_time(self) -> int:
        """When the report was made."""
        return self.report.at_ms

    def calls(
        self,
        commands: Sequence[Command],
        *,
        timeout: float | None = None,  # noqa: ARG002 - nothing is waited for
        only_if: Callable[[], bool] | None = None,
    ) -> "asyncio.Future[list[Reply]]":
        """As :meth:`Line.calls`."""
        future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if only_if is not None and not only_if():
            future.set_exception(Withheld("the condition of these commands is no longer true"))
        else:
            future.set_result([self.report.reply(self._node, command) for command in commands])
        return future

    async def nodes(self) -> list[Line]:
        """One for each node that was asked."""
        return [RecordedLine(self.report, node) for node in self.report.nodes]

    async def close(self) -> None:
        """Nothing is open."""
