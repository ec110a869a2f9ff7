"""A line to a recorded report."""

import asyncio
from collections.abc import Callable, Sequence

from millstream.client.line import Command, Line, Reply, Withheld
from millstream.client.recorded.report import RecordedReport


class RecordedLine(Line):
    """A :class:`Line` that gets its replies from a report instead of a server."""

    def __init__(self, report: RecordedReport, node: int = 0) -> None:  # does not call Line's: there is no connection
        self.report = report
        self._node = node

    @property
    def connected(self) -> bool:
        """Always True: a file has no connection to lose."""
        return True

    @property
    def patience(self) -> float:
        """Zero seconds: replies from a file are immediate."""
        return 0.0

    def wall_time(self) -> int:
        """Return the wall milliseconds at which the report was made."""
        return self.report.at_ms

    def calls(
        self,
        commands: Sequence[Command],
        *,
        timeout: float | None = None,  # noqa: ARG002 - replies are immediate
        only_if: Callable[[], bool] | None = None,
    ) -> "asyncio.Future[list[Reply]]":
        """Return the recorded replies, as :meth:`Line.calls` does."""
        future: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if only_if is not None and not only_if():
            future.set_exception(Withheld("the condition of these commands is no longer true"))
        else:
            future.set_result([self.report.reply(self._node, command) for command in commands])
        return future

    async def nodes(self) -> list[Line]:
        """Return a line for each node in the report."""
        return [RecordedLine(self.report, node) for node in self.report.nodes]

    async def close(self) -> None:
        """Do nothing: the file is closed already."""
