"""Delivery of notifications: one queue for each hook, so that a hook that hangs delays no other one."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from millstream.errors import MillstreamError
from millstream.ops.alerts.status import AlertEvent
from millstream.ops.notifying.hooks import Hook, HookError, note_of, summary_of
from millstream.ops.notifying.quiet import QuietHours
from millstream.ops.parameters import now_ms

log = logging.getLogger("millstream.alerts")

PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds before each further try; a random part is added."""

SEVERAL = 5
"""Largest number of waiting events that are messages of their own; more are one summary."""

_MOST = 500  # largest number of events that wait; the oldest go
_LOOK = 15.0  # seconds between two looks at the clock in quiet hours


class HookQueue:
    """The events that a hook is to be told of, in order."""

    def __init__(
        self,
        hook: Hook,
        server: str,
        quiet: QuietHours | None = None,
        *,
        sent: Callable[[str, str], Awaitable[None]] | None = None,
        pauses: tuple[float, ...] = PAUSES,
        look: float = _LOOK,
    ) -> None:
        self.hook = hook
        self._server = server
        self.quiet = quiet
        self._sent = sent
        self._pauses = pauses
        self._look = look
        self._waiting: deque[AlertEvent] = deque(maxlen=_MOST)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, event: AlertEvent) -> None:
        """Add an event, unless it waits already."""
        if event.entry and any(one.entry == event.entry for one in self._waiting):
            return
        self._waiting.append(event)
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Tell the hook of its events until the task is cancelled."""
        while True:
            if not self._waiting:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            held = False
            while self.quiet is not None and self.quiet.cover(now_ms()):
                held = True
                await asyncio.sleep(self._look)
            if held:
                self._drop_passed()
            if self._waiting:
                events = list(self._waiting)[: None if len(self._waiting) > SEVERAL else 1]
                if not await self._deliver(events):  # a receiver that does not know summaries
                    for event in events:
                        await self._deliver((event,))
                done = set(map(id, events))
                self._waiting = deque((one for one in self._waiting if id(one) not in done), maxlen=_MOST)

    async def flush(self, seconds: float) -> bool:
        """Wait until the hook was told of all events, at most this number of seconds; return False if some are left."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _drop_passed(self) -> None:
        """Drop alerts that opened and closed in the quiet hours: nobody can do anything about them."""
        opened = {(one.alert.id, one.alert.opened_ms) for one in self._waiting if one.became == "opened"}
        closed = {(one.alert.id, one.alert.opened_ms) for one in self._waiting if one.became == "closed"}
        left = [one for one in self._waiting if (one.alert.id, one.alert.opened_ms) not in opened & closed]
        self._waiting = deque(left, maxlen=_MOST)

    async def _deliver(self, events: Sequence[AlertEvent]) -> bool:
        """Tell the hook of an event, or of several in a summary; a failure that lasts drops them.

        Return False for a summary that was refused.
        """
        what = repr(events[0].alert.id) if len(events) == 1 else f"{len(events)} alerts"
        for pause in (*self._pauses, None):
            try:
                one = note_of(events[0], self._server, now_ms())
                await self.hook.send(one if len(events) == 1 else summary_of(events, self._server, now_ms()))
                break
            except HookError as error:
                if len(events) > 1 and not error.again:
                    return False
                if pause is None or not error.again:
                    log.warning("the %s hook is not told of %s: %s", self.hook.name, what, error)
                    break
                log.info("the %s hook is told again in %g s: %s", self.hook.name, pause, error)
            await asyncio.sleep(pause * random.uniform(1.0, 1.5))
        entry = next((event.entry for event in reversed(events) if event.entry), "")
        if entry and self._sent is not None:
            try:
                await self._sent(self.hook.name, entry)
            except MillstreamError as error:
                log.info("the last sent alert is not stored: %s", error)
        return True
