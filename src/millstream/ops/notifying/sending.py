"""Delivery of notifications: one queue for each hook, so that a hook that hangs delays no other one."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable

from millstream.errors import MillstreamError
from millstream.ops.alerts.status import AlertEvent
from millstream.ops.notifying.hooks import Hook, HookError, note_of
from millstream.ops.notifying.quiet import QuietHours

log = logging.getLogger("millstream.alerts")

PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds before each further try; a random part is added."""

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
            while self.quiet is not None and self.quiet.cover(_now_ms()):
                held = True
                await asyncio.sleep(self._look)
            if held:
                self._drop_passed()
            if self._waiting:
                event = self._waiting[0]
                await self._deliver(event)
                if self._waiting and self._waiting[0] is event:  # a full queue may have dropped it meanwhile
                    self._waiting.popleft()

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

    async def _deliver(self, event: AlertEvent) -> None:
        for pause in (*self._pauses, None):
            try:
                await self.hook.send(note_of(event, self._server, _now_ms()))
                break
            except HookError as error:
                if pause is None or not error.again:
                    log.warning("the %s hook is not told of %r: %s", self.hook.name, event.alert.id, error)
                    break
                log.info("the %s hook is told again in %g s: %s", self.hook.name, pause, error)
            await asyncio.sleep(pause * random.uniform(1.0, 1.5))
        if event.entry and self._sent is not None:
            try:
                await self._sent(self.hook.name, event.entry)
            except MillstreamError as error:
                log.info("the last sent alert is not stored: %s", error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
