"""The watcher: it reads the causes of problems again and again, and writes alerts that open and close.

Any number of watchers may run. The one with the lease writes and tells the hooks; another takes over when the lease
ends. A server that refuses writes, or does not answer, is an alert too: the watcher tells its hooks at once, and writes
it when the server accepts it. Until then, each watcher acts alone.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from millstream.client.alerts import store
from millstream.client.line import AccessDenied
from millstream.client.partitions.lease import PartitionLease
from millstream.client.ranges import order_of
from millstream.errors import MillstreamError
from millstream.ops.alerts.reading import read_every_event
from millstream.ops.alerts.status import Alert, AlertBoard, AlertEvent, alert_of, folded, words_of
from millstream.ops.notifying.hooks import Hook
from millstream.ops.notifying.quiet import QuietHours
from millstream.ops.notifying.sending import HookQueue
from millstream.ops.watching.questions import problems
from millstream.ops.watching.servers import ConsoleServer
from millstream.ops.watching.watch import ServerWatch
from millstream.ops.words import brief, shell_line, text_of
from millstream.printable import without_secrets

log = logging.getLogger("millstream.alerts")

_UNWRITTEN = 200  # largest number of events that wait until the server accepts them
_FLUSH = 5.0  # seconds for notifications at the end
_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
SILENT = "no-answer"
"""Id and code of the alert about a server that does not answer."""


class AlertWatcher:
    """Watches one server, and tells hooks of its alerts."""

    def __init__(
        self,
        server: ConsoleServer,
        hooks: Sequence[Hook] = (),
        *,
        every: float = 10.0,
        quiet: QuietHours | None = None,
        level: str = "warning",
        said: Callable[[AlertEvent], None] = lambda _: None,
        stands_by: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._watch = ServerWatch(server)
        self._every = every
        self._levels = {"problem"} if level == "problem" else {"problem", "warning"}
        self._said = said
        self._stands_by = stands_by
        self._is_idle = False  # True while another watcher writes and notifies
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._held: PartitionLease | None = None
        self._board = AlertBoard()
        self._is_loaded = False  # True if the board has the alerts on the server
        self._unwritten: list[AlertEvent] = []
        sent = partial(store.note_sent, self._watch.line)
        self.queues = [HookQueue(hook, server.name, quiet, sent=sent) for hook in hooks]

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until the event is set."""
        tasks = [asyncio.create_task(queue.run()) for queue in self.queues]
        try:
            while not stop.is_set():
                await self.turn()
                try:
                    async with asyncio.timeout(self._every):
                        await stop.wait()
                except TimeoutError:
                    continue
            await asyncio.gather(*(queue.flush(_FLUSH) for queue in self.queues))
            await self._give()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._watch.close()

    async def turn(self) -> None:
        """Take or keep the lease, read the problems, and write what opened and closed."""
        trouble = await self._lease()
        is_idle = self._held is None and trouble is None
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            self._stands_by(is_idle)
        if is_idle:  # another watcher writes
            self._board, self._is_loaded, self._unwritten = AlertBoard(), False, []
            return
        if not self._is_loaded:
            await self._load()
        now_ms = self._watch.line.wall_time()
        await self._write(self._board.update(await self._present(trouble), now_ms))

    async def _lease(self) -> str | None:
        """Keep or take the lease; return the reason if the server does not decide, because it is in trouble."""
        lasts = int(max(self._every * 3, 15.0) * 1000)
        try:
            if self._held is not None and await store.renew(self._watch.line, self._held):
                return None
            self._held = None
            self._held = await store.take(self._watch.line, self._name, lasts)
        except AccessDenied:
            raise
        except MillstreamError as error:
            return brief(without_secrets(str(error)), 200) or type(error).__name__
        return None

    async def _load(self) -> None:
        """Read the alerts on the server, and queue the events that a hook was not told of."""
        try:
            events = await read_every_event(self._watch.line)  # a large entry must not hide an open alert
            hooks = [queue.hook.name for queue in self.queues]
            sent = await store.sent(self._watch.line, hooks) if hooks else {}
        except MillstreamError as error:
            log.info("the alerts on the server are unknown: %s", error)
            return
        known = folded(events)
        self._board = AlertBoard([*known, *self._board.open], self._watch.line.wall_time())
        self._is_loaded = True
        opened = {(one.id, one.opened_ms) for one in known if one.closed_ms is None}
        for queue in self.queues:
            last = _order(sent[queue.hook.name])
            for event in events:
                is_open = (event.alert.id, event.alert.opened_ms) in opened
                if is_open if last is None else order_of(event.entry.encode()) > last:
                    self._tell(queue, event)

    async def _present(self, trouble: str | None) -> list[Alert]:
        """Return the present alerts."""
        try:
            found = await problems(self._watch)
        except MillstreamError as error:
            return self._silence(str(error))
        if found.seen.trouble:
            return self._silence(found.seen.trouble)
        server = self._watch.server
        alerts = []
        for cause in found.causes:
            words = cause.head.remedy
            alerts.append(alert_of(cause, shell_line(server.command_line(*words[1:])) if words else ""))
        refuses = any(one.code in {"writes-refused", "out-of-memory"} for one in alerts)
        if trouble is not None and not refuses:
            says = f"{server.name} refuses the watcher of alerts: {trouble}"
            alerts.append(Alert("refuses-watcher", "refuses-watcher", "warning", brief(says, 300)))
        return alerts

    def _silence(self, error: str) -> list[Alert]:
        kept = [one for one in self._board.open if one.id != SILENT]  # their causes are unknown, not gone
        says = brief(f"{self._watch.server.name} does not answer: {without_secrets(error)}", 300)
        return [*kept, Alert(SILENT, SILENT, "problem", says, remedy="millstream doctor")]

    async def _write(self, events: Sequence[AlertEvent]) -> None:
        """Write events, the earlier ones first; if the server refuses, tell the hooks now and write later."""
        new, self._unwritten = set(events), [*self._unwritten, *events][-_UNWRITTEN:]
        new_ones: list[AlertEvent] = []
        try:
            while self._unwritten and self._held is not None:
                event = self._unwritten[0]
                entry = await store.add(self._watch.line, self._held, words_of(event))
                if entry is None:  # another watcher took over meanwhile, and tells of what it finds in the stream
                    self._held, self._is_loaded = None, False
                    return
                del self._unwritten[0]
                if event in new:
                    new_ones.append(replace(event, entry=text_of(entry)))
                else:  # the hooks know it
                    for queue in self.queues:
                        await store.note_sent(self._watch.line, queue.hook.name, text_of(entry))
        except MillstreamError as error:
            log.warning("the server does not keep alerts: %s", error)
        new_ones += [event for event in self._unwritten if event in new]
        for event in new_ones:
            self._said(event)
            for queue in self.queues:
                self._tell(queue, event)

    def _tell(self, queue: HookQueue, event: AlertEvent) -> None:
        if event.alert.level in self._levels:
            queue.put(event)

    async def _give(self) -> None:
        if self._held is not None:
            try:
                await store.give(self._watch.line, self._held)
            except MillstreamError as error:
                log.debug("the lease was not given back: %s", error)


def _order(entry: bytes | None) -> tuple[int, int] | None:
    """Return the place of an entry in the stream; None if no watcher stored it."""
    return order_of(entry) if entry is not None and _ID.fullmatch(entry) else None
