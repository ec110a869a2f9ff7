"""The relay of an outbox: it publishes committed rows in the order of their ids, and deletes them.

A publish has the row's mark, which the server keeps for a day. So if a relay is killed between the publish and the
commit, the row is published again and adds nothing.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from millstream.client.later.schedule import When
from millstream.client.line import passes
from millstream.errors import UsageError
from millstream.logs import logger
from millstream.worker.handlers.sender import How, Later, Sender
from millstream.worker.model.answers import PayloadError
from millstream.worker.outbox import database
from millstream.worker.outbox.database import FailedRow, Turn
from millstream.worker.outbox.rows import Row, check, fields_in
from millstream.worker.tasks import cancel_all, set_within

T = TypeVar("T")
log = logger("millstream.worker")

_LOOK = 0.25  # seconds between two checks for rows, while there are none
_WHILE_LOCKED = 1.0
_LONGEST_PAUSE = 10.0
_TURN = 1.0  # seconds after which a turn publishes no further row: on SQLite it blocks all writers
_TRY = "2s"  # time for which attempts to publish are repeated
_STOP = 15.0


class OutboxRelay:
    """Moves the rows of one database.

    Args:
        engine: the database's SQLAlchemy engine.
        sender: function that returns the sender of the running event loop.
    """

    def __init__(self, engine: Any, sender: Callable[[], Sender]) -> None:
        self._engine = database.checked(engine)
        self._sender = sender
        # All calls for one database in one thread, since drivers may not be thread-safe
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Event | None = None
        self.moved = 0
        self.put_aside = 0

    async def start(self) -> None:
        """Start the task in the background."""
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run(self._stopping), name="millstream-outbox")

    async def stop(self) -> None:
        """End after the current turn."""
        if self._stopping is not None and self._task is not None:
            self._stopping.set()
            await asyncio.wait([self._task], timeout=_STOP)
            await cancel_all([self._task])
            self._task = None

    async def _run(self, stopping: asyncio.Event) -> None:
        failures, shown = 0, ""
        with ThreadPoolExecutor(1, "millstream-outbox") as self._thread:
            while not stopping.is_set():
                try:
                    pause = await self.turn()
                    failures, shown = 0, ""
                except Exception as error:  # noqa: BLE001 - the relay must continue; no other code would report it
                    failures += 1
                    pause = min(0.2 * 2 ** min(failures, 10), _LONGEST_PAUSE)
                    if str(error) != shown:
                        log.warning("outbox: rows are not moved now, and are tried again: %s", error)
                        shown = str(error)
                await set_within(stopping, pause)

    async def turn(self) -> float:
        """Move at most a hundred rows; return the seconds until the next turn.

        Raises:
            OSError: the database cannot be used now.
            Disconnected: the server cannot be reached.
            ResponseError: the server refuses all commands now.
        """
        if not await self._in_thread(database.is_waiting, self._engine):
            return _LOOK
        turn = await self._in_thread(Turn, self._engine)
        if not turn.rows:
            return _LOOK if turn.locked else _WHILE_LOCKED
        moved: list[int] = []
        failures: list[FailedRow] = []
        try:
            await self._publish_all(turn.rows, moved, failures)
        finally:
            # Even if the server became unreachable: the rows that it accepted are done
            await self._in_thread(turn.end, moved, failures)
            self.moved += len(moved)
            self.put_aside += len(failures)
        return 0.0

    async def _publish_all(self, rows: list[Row], moved: list[int], failures: list[FailedRow]) -> None:
        until = time.monotonic() + _TURN
        for row in rows:
            if time.monotonic() > until or (self._stopping is not None and self._stopping.is_set()):
                return
            try:
                await self._publish(row)
                moved.append(row.id)
            except (ResponseError, UsageError, PayloadError) as error:
                if isinstance(error, ResponseError) and passes(error):
                    raise
                failures.append(FailedRow(row, str(error)))
                log.error("outbox: row %s for %s is set aside: %s", row.id, row.stream, error)  # noqa: TRY400 - no fault of ours

    async def _publish(self, row: Row) -> None:
        """Add the entry, unless an earlier try has added it."""
        check(row)
        later = None if row.at_ms is None else Later(row.mark, When(row.at_ms))
        how = How(retry=_TRY, later=later, mark=row.mark, key=row.entry_key)
        await self._sender().add(row.stream, fields_in(row.fields), how)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        def call() -> T:
            with database.readable_errors():
                return function(*arguments)

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
