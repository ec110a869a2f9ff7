"""The mover: a task of each app that adds scheduled entries to their stream when they are due.

Any number of movers may run at once, in any process: one script on the server removes a schedule and adds its entry.
Movers take turns only to save work. The mover that has the turn looks four times a second, the others once a second.
Each heartbeat of a worker reads whether the server has schedules. If it has, the mover searches for their streams.
Movers poll, so no wake-up can be lost.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from millstream.client.later import admin, schedule
from millstream.client.later.schedule import BATCH, BATCH_BYTES, SCRIPT, TURN_MS, Schedule
from millstream.client.line import Disconnected, Line, passes
from millstream.client.partitions.layout import is_sealed
from millstream.errors import MillstreamError
from millstream.worker.tasks import cancel_all

log = logging.getLogger("millstream.worker")

_SEARCH = 1.0  # seconds between two searches for streams with schedules, if the server has some

_LOOK = 0.25
_LONGEST_PAUSE = 10.0


@dataclass(slots=True)
class Moved:
    """Counters of one stream's schedules."""

    moved: int = 0  # Number of schedules that became entries
    dropped: int = 0  # Number of schedules that expired
    skipped: int = 0  # Number of firings dropped because an earlier one was not finished
    refused: int = 0  # Number of entries that the server refused


@dataclass(slots=True)
class ScheduledStream:
    """A stream that has schedules."""

    line: Line
    look_at: float = 0.0  # Time of the next check, by the event loop's clock
    failures: int = 0
    counts: Moved = field(default_factory=Moved)


class Mover:
    """Moves due schedules into their streams, over a shared connection."""

    def __init__(
        self,
        line: Callable[[], Line],
        wanted: Callable[[], bool] = lambda: True,
        hand_over: Callable[[Schedule], Awaitable[bool]] | None = None,
    ) -> None:
        self._line = line
        self._hand_over = hand_over  # Adds the entry of a schedule elsewhere if its stream is sealed
        self._wanted = wanted  # Reports whether the server had schedules at the last heartbeat
        self._name = secrets.token_hex(6)
        self._watched: dict[str, ScheduledStream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._warned: set[str] = set()

    @property
    def counts(self) -> dict[str, Moved]:
        """The counters by stream."""
        return {stream: one.counts for stream, one in self._watched.items()}

    @property
    def lines(self) -> dict[str, Line]:
        """The connection to each stream's node, by stream."""
        return {stream: one.line for stream, one in self._watched.items()}

    def start(self) -> None:
        """Start the tasks in the background."""
        self._loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self.run(), name="millstream-mover"))
        for stream in self._watched:
            self._tasks.append(asyncio.create_task(self._follow(stream)))

    async def stop(self) -> None:
        """Cancel the tasks; the server may still carry out a step under way."""
        tasks, self._tasks, self._loop = self._tasks, [], None
        await cancel_all(tasks)

    def watch_soon(self, stream: str) -> None:
        """Add a stream to the watched streams; safe to call from any thread."""
        if self._loop is not None and stream not in self._watched:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self.watch, [stream])

    def watch(self, streams: Iterable[str]) -> None:
        """Add streams to the watched streams."""
        for stream in streams:
            if stream not in self._watched:
                self._watched[stream] = ScheduledStream(self._line().near(stream))
                if self._loop is not None:
                    self._tasks.append(asyncio.create_task(self._follow(stream)))

    async def run(self) -> None:
        """Search for streams with schedules until the task is cancelled."""
        while True:
            if self._wanted():
                await self.search()
            await asyncio.sleep(_SEARCH)

    async def _follow(self, stream: str) -> None:
        """Move the due schedules of one stream, again and again.

        Each stream has its own task, so a cluster node that is down does not delay the streams on other nodes.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self.look(stream)
            await asyncio.sleep(max(self._watched[stream].look_at - loop.time(), 0.0))

    async def turn(self) -> None:
        """Move all schedules that are due now."""
        await self.search()
        for stream in list(self._watched):
            while await self.look(stream):
                pass

    async def search(self) -> None:
        """Find the streams that have schedules, and watch them."""
        try:
            self.watch(await admin.streams(self._line()))
        except Exception as error:  # noqa: BLE001 - the next search may succeed
            self._refused("", error)

    async def look(self, stream: str) -> bool:
        """Move the due schedules of one stream; return True if any was moved, dropped or refused."""
        one, loop = self._watched[stream], asyncio.get_running_loop()
        keys = schedule.keys(stream, schedule.mover_key(stream))
        try:
            reply = await SCRIPT.call(one.line, keys, ("move", self._name, TURN_MS, BATCH, BATCH_BYTES))
            moved, dropped, due, now, turn, skipped, stopped = reply[:7]
            left = (float(due) - float(now)) / 1000 if due else _LOOK
        except Exception as error:  # noqa: BLE001 - the next check may succeed
            one.failures += 1
            one.look_at = loop.time() + self._again(one)
            self._refused(stream, error)
            return False
        one.counts.moved += moved
        one.counts.dropped += dropped
        one.counts.skipped += skipped
        if dropped:
            log.warning("%s: %d schedules expired before they could be moved", stream, dropped)
        rows = list(zip(reply[7::2], reply[8::2], strict=True))
        sealed = [ident.decode(errors="surrogateescape") for ident, why in rows if is_sealed(why)]
        handed = await self._to_others(stream, one, sealed) if sealed else frozenset()
        refused = [word.decode(errors="replace") for row in rows if row[0] not in handed for word in row]
        one.counts.refused += len(refused) // 2
        if refused and not stopped:
            log.error(
                "%s: %d schedules cannot be added and are tried again in a minute, the first is %r: %s",
                stream,
                len(refused) // 2,
                *refused[:2],
            )
        if stopped:
            one.failures += 1
            self._refused(stream, ResponseError(refused[-1]))
            one.look_at = loop.time() + self._again(one)
            return bool(moved or dropped or skipped)
        one.failures = 0
        one.look_at = loop.time() + (turn / 1000 * random.uniform(1.0, 1.2) if turn > 0 else self._pause(left))
        return bool(moved or dropped or skipped or refused or handed)

    async def _to_others(self, stream: str, one: ScheduledStream, ids: Iterable[str]) -> frozenset[bytes]:
        """Add the entries that a sealed stream refused to the stream that replaced it; return their ids.

        The server has postponed these schedules by a minute. Each entry has a mark, so it is added once even if a mover
        ends between the two steps.
        """
        handed = set()
        try:
            for waits in await admin.found(one.line, stream, list(ids)):
                if self._hand_over is not None and await self._hand_over(waits):
                    await admin.cancel(one.line, stream, [waits.id])
                    handed.add(waits.id.encode(errors="surrogateescape"))
                    one.counts.moved += 1
        except (MillstreamError, RedisError) as error:
            self._refused(stream, error)
        return frozenset(handed)

    @staticmethod
    def _again(one: ScheduledStream) -> float:
        """Return the delay in seconds before the next look after an error."""
        return min(0.2 * 2.0**one.failures, _LONGEST_PAUSE) * random.uniform(0.8, 1.2)

    @staticmethod
    def _pause(left: float) -> float:
        """Return the delay in seconds before the next look, given the seconds until the next schedule is due."""
        # One millisecond longer, since the server rounds its clock down to milliseconds
        return min(max(left + 0.001, 0.0), _LOOK * random.uniform(0.8, 1.2))

    def _refused(self, stream: str, error: Exception) -> None:
        text = f"{stream or schedule.INDEX}: {error}"
        passing = isinstance(error, Disconnected) or (isinstance(error, ResponseError) and passes(error))
        if text in self._warned or passing:
            return
        self._warned.add(text)
        hint = " (schedules need EVAL, EVALSHA and the keys millstream:*)" * isinstance(error, NoPermissionError)
        log.warning("%s: schedules are not moved by this process: %s%s", stream or schedule.INDEX, error, hint)
