"""The mover: a task of each app that adds what is due to its stream.

Any number of movers may look at once, in any process: one step of the server removes a schedule and adds its entry. So
turns only save work. The mover whose turn it is looks four times a second, the others once a second. On a server that
has schedules, which a worker learns with its beat, each searches for their streams. No wake-up could be lost.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from redis.exceptions import NoPermissionError, ResponseError

from millstream.client.later import admin, schedule
from millstream.client.later.schedule import BATCH, BATCH_BYTES, SCRIPT, TURN_MS
from millstream.client.line import Disconnected, Line, passes

log = logging.getLogger("millstream.worker")

_SEARCH = 1.0
"""Seconds between two searches for streams with schedules, on a server that has some."""

_LOOK = 0.25
_LONGEST_PAUSE = 10.0


@dataclass(slots=True)
class Moved:
    """Counters of one stream."""

    moved: int = 0  # Schedules that became entries
    dropped: int = 0  # Schedules that expired
    skipped: int = 0  # Firings that came while an earlier one was not handled
    refused: int = 0  # Times that the server refused an entry


@dataclass(slots=True)
class ScheduledStream:
    """A stream that has schedules."""

    line: Line
    look_at: float = 0.0  # Time of the event loop
    failures: int = 0
    counts: Moved = field(default_factory=Moved)


class Mover:
    """Moves what is due over a line that others use as well."""

    def __init__(self, line: Callable[[], Line], wanted: Callable[[], bool] = lambda: True) -> None:
        self._line = line
        self._wanted = wanted  # The server has schedules, as far as is known
        self._name = secrets.token_hex(6)
        self._watched: dict[str, ScheduledStream] = {}
        self._search_at = 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._warned: set[str] = set()

    @property
    def counts(self) -> dict[str, Moved]:
        """Counters by stream."""
        return {stream: one.counts for stream, one in self._watched.items()}

    def start(self) -> None:
        """Go on in the background."""
        self._task = asyncio.create_task(self.run(), name="millstream-mover")

    async def stop(self) -> None:
        """End; a step that is under way may still be carried out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def watch(self, streams: Iterable[str]) -> None:
        """Look at these streams too, from now on."""
        for stream in streams:
            if stream not in self._watched:
                self._watched[stream] = ScheduledStream(self._line().near(stream))
                self._changed.set()

    async def run(self) -> None:
        """Look for as long as the task runs."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            if now >= self._search_at:
                if self._wanted():
                    await self.search()
                self._search_at = now + _SEARCH
            ready = [stream for stream, one in self._watched.items() if one.look_at <= now]
            await asyncio.gather(*map(self.look, ready))
            soonest = min([self._search_at, *(one.look_at for one in self._watched.values())])
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(soonest - loop.time(), 0.005)):
                    await self._changed.wait()

    async def turn(self) -> None:
        """Move all that is due now."""
        await self.search()
        for stream in self._watched:
            while await self.look(stream):
                pass

    async def search(self) -> None:
        """Learn which streams have schedules."""
        try:
            self.watch(await admin.streams(self._line()))
        except Disconnected:
            return
        except ResponseError as error:
            self._refused("", error)

    async def look(self, stream: str) -> bool:
        """Move what is due in one stream; True if something was moved or dropped."""
        one, loop = self._watched[stream], asyncio.get_running_loop()
        keys = schedule.keys(stream, schedule.mover_key(stream))
        try:
            reply = await SCRIPT.call(one.line, keys, ("move", self._name, TURN_MS, BATCH, BATCH_BYTES))
            moved, dropped, due, now, turn, skipped = reply[:6]
        except Disconnected:
            one.failures += 1
            one.look_at = loop.time() + min(0.2 * 2**one.failures, _LONGEST_PAUSE)
            return False
        except (ResponseError, ValueError) as error:
            one.failures += 1
            one.look_at = loop.time() + _LONGEST_PAUSE
            self._refused(stream, error)
            return False
        one.failures = 0
        one.counts.moved += moved
        one.counts.dropped += dropped
        one.counts.skipped += skipped
        if dropped:
            log.warning("%s: %d schedules expired before they could be moved", stream, dropped)
        pairs = list(zip(reply[6::2], reply[7::2], strict=True))
        one.counts.refused += len(pairs)
        for ident, reason in pairs:
            log.error(
                "%s: schedule %r cannot be added, and is tried again: %s",
                stream,
                ident.decode(errors="replace"),
                reason.decode(errors="replace"),
            )
        one.look_at = loop.time() + self._pause(
            due, now, turn, stopped=bool(pairs), full=moved + dropped + skipped >= BATCH
        )
        return bool(moved or dropped or skipped)

    @staticmethod
    def _pause(due: bytes, now: bytes, turn: int, *, stopped: bool, full: bool) -> float:
        """Seconds until the next look."""
        if turn > 0:
            return turn / 1000 * random.uniform(1.0, 1.2)
        if full and not stopped:
            return 0.0
        if stopped:
            return 1.0
        left = (float(due) - float(now)) / 1000 if due else _LOOK
        # A bit after it is due: the server's milliseconds are whole
        return min(max(left + 0.001, 0.0), _LOOK * random.uniform(0.8, 1.2))

    def _refused(self, stream: str, error: Exception) -> None:
        text = f"{stream or schedule.INDEX}: {error}"
        if text in self._warned or (isinstance(error, ResponseError) and passes(error)):
            return
        self._warned.add(text)
        hint = " (schedules need EVAL, EVALSHA and the keys millstream:*)" * isinstance(error, NoPermissionError)
        log.warning("%s: schedules are not moved by this process: %s%s", stream or schedule.INDEX, error, hint)
