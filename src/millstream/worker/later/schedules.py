"""``app.later``: list, change and cancel the entries that an app scheduled for a later time."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime

from millstream.client.later import admin, schedule
from millstream.client.later.schedule import Schedule
from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.errors import require


class Schedules:
    """The schedules on an app's server."""

    def __init__(self, line: Callable[[], Line]) -> None:
        self._line = line

    async def list(self, stream: str, limit: int | None = None) -> AsyncIterator[Schedule]:
        """Yield the schedules of a stream, ordered by due time.

        Args:
            stream: key of the stream.
            limit: maximum number of schedules; None for all.

        Raises:
            Disconnected: the server could not be reached.
        """
        fine = limit is None or (type(limit) is int and limit >= 0)
        require("list", "limit", limit, fine, "a number of schedules, or None for all")
        parts = await self._parts(stream)
        if len(parts) == 1:
            async for one in admin.listed(self._line().near(parts[0]), parts[0], limit):
                yield one
            return
        found = [one for part in parts async for one in admin.listed(self._line().near(part), part, limit)]
        for one in sorted(found, key=lambda one: one.at_ms)[:limit]:
            yield one

    async def _parts(self, stream: str) -> tuple[str, ...]:
        """Return the keys that may have the schedules of a stream: its partitions and the stream itself."""
        layout = await find_layout(self._line(), stream)
        # Firings of a recurring schedule wait under the stream's own name, other entries under old and new partitions
        return (stream,) if layout is None else (*layout.every_key, stream)

    async def get(self, stream: str, id: str) -> Schedule | None:  # noqa: A002 - as publish(id=)
        """Return one schedule; None if it is no longer waiting.

        Args:
            stream: key of the stream.
            id: id of the schedule.
        """
        ids = [schedule.checked_id("get", id)]
        for part in await self._parts(stream):
            if found := await admin.found(self._line().near(part), part, ids):
                return found[0]
        return None

    async def cancel(self, stream: str, id: str) -> bool:  # noqa: A002 - as publish(id=)
        """Remove a schedule; return False if it is no longer waiting, because it was added, cancelled or dropped.

        Args:
            stream: key of the stream.
            id: id of the schedule.
        """
        ids = [schedule.checked_id("cancel", id)]
        # In every partition, since the same id may occur in each
        parts = await self._parts(stream)
        return any([await admin.cancel(self._line().near(part), part, ids) for part in parts])

    async def move(
        self,
        stream: str,
        id: str,  # noqa: A002 - as publish(id=)
        *,
        at: datetime | str | int | None = None,
        delay: float | str | None = None,
    ) -> bool:
        """Change the time of a schedule; return False if it is no longer waiting.

        Args:
            stream: key of the stream.
            id: id of the schedule.
            at: as for :meth:`millstream.App.publish`.
            delay: as for :meth:`millstream.App.publish`.

        Raises:
            ConfigError: both or neither of the times are given, or one is not a time.
        """
        to = schedule.when("move", at, delay)
        ids = [schedule.checked_id("move", id)]
        parts = await self._parts(stream)
        return any([await admin.move(self._line().near(part), part, ids, to) for part in parts])
