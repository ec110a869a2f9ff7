"""``app.later``: the entries that wait for their time, for the program that published them."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime

from millstream.client.later import admin, schedule
from millstream.client.later.schedule import Schedule
from millstream.client.line import Line


class Schedules:
    """The schedules of an app's server."""

    def __init__(self, line: Callable[[], Line]) -> None:
        self._line = line

    async def list(self, stream: str, limit: int | None = None) -> AsyncIterator[Schedule]:
        """The schedules of a stream, in the order in which they are due.

        Args:
            stream: key of the stream.
            limit: most schedules; None for all.

        Raises:
            Disconnected: the server could not be reached.
        """
        async for one in admin.listed(self._line().near(stream), stream, limit):
            yield one

    async def get(self, stream: str, id: str) -> Schedule | None:  # noqa: A002 - as publish(id=)
        """One schedule; None if it does not wait any more.

        Args:
            stream: key of the stream.
            id: of the schedule.
        """
        found = await admin.found(self._line().near(stream), stream, [schedule.checked_id("get", id)])
        return found[0] if found else None

    async def cancel(self, stream: str, id: str) -> bool:  # noqa: A002 - as publish(id=)
        """Remove a schedule; False if it does not wait any more, since it was added, cancelled or dropped.

        Args:
            stream: key of the stream.
            id: of the schedule.
        """
        return bool(await admin.cancel(self._line().near(stream), stream, [schedule.checked_id("cancel", id)]))

    async def move(
        self,
        stream: str,
        id: str,  # noqa: A002 - as publish(id=)
        *,
        at: datetime | str | int | None = None,
        delay: float | str | None = None,
    ) -> bool:
        """Give a schedule another time; False if it does not wait any more.

        Args:
            stream: key of the stream.
            id: of the schedule.
            at: as for :meth:`millstream.App.publish`.
            delay: as for :meth:`millstream.App.publish`.

        Raises:
            ConfigError: both or neither of the times are given, or one is not a time.
        """
        to = schedule.when("move", at, delay)
        return bool(await admin.move(self._line().near(stream), stream, [schedule.checked_id("move", id)], to))
