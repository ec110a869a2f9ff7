"""A thread that notices when the event loop stands still, says where, and beats for it.

A handler that blocks (``time.sleep``, a synchronous client, a long computation in an ``async def``) stops everything in
its process: no lease is renewed, no order heard, no heartbeat sent. From outside, such a worker would look idle and
then be gone. So this thread asks the loop for a sign of life; where none comes, it logs the stack of the loop's thread,
and keeps the worker in the registry, as blocked, over a connection of its own.

Code that holds Python's global lock and never gives it up (some extensions in C) stops this thread too.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from millstream.client.connect import connect
from millstream.errors import MillstreamError
from millstream.worker.handlers.frames import running_part
from millstream.worker.registry import protocol

log = logging.getLogger("millstream.worker")

#: Seconds after which a loop that gave no sign of life counts as blocked, unless the app says otherwise.
DEFAULT_AFTER = 5.0
#: Lines of the stack that are shown: its end, where the program stands.
_FRAMES = 12
#: Seconds a beat of ours may take.
_PATIENCE = 5.0


class Watchdog:
    """Watches the event loop that runs now.

    Args:
        url: of the server.
        worker: our id in the registry.
        after: seconds without a sign of life after which the loop counts as blocked.
        facts: makes the record for the registry, called in the thread; None keeps out of the registry.
    """

    def __init__(self, url: str, worker: str, *, after: float, facts: Callable[[], Mapping[str, Any] | None]) -> None:
        self._url = url
        self._worker = worker
        self._after = after
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._answered = threading.Event()
        self._stop = threading.Event()
        self._client: Any = None
        self._thread = threading.Thread(target=self._run, name="millstream-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        pause = min(self._after / 4, 1.0)
        while not self._stop.wait(pause) and self._ask():
            asked = time.monotonic()
            while not self._stop.is_set():
                before = time.monotonic()
                if self._answered.wait(pause):
                    break
                now = time.monotonic()
                if now - before > pause + self._after / 2:
                    asked = now  # we did not run either: the process was frozen, or the machine asleep
                if now - asked >= self._after:
                    self._blocked(asked)
                    break

    def _ask(self) -> bool:
        """Ask the loop for a sign of life; False when it is gone."""
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            return False
        return True

    def _blocked(self, since: float) -> None:
        """Say that the loop is blocked, and beat for it until it goes on."""
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - Python's way to another thread's stack
        if frame is None or self._answered.is_set():
            return
        stack = running_part(frame)
        log.warning(
            "the event loop has been blocked for %.1f s at %s: nothing else runs in this process, no lease is renewed, "
            "and after min_idle_time its entries go to others. Let a handler that blocks be a plain `def` (it runs in "
            "a thread), or put the call into `await asyncio.to_thread(...)`. The stack of the loop's thread:\n%s",
            time.monotonic() - since,
            _text(stack[0]),
            "".join(traceback.format_list(stack[-_FRAMES:])).rstrip(),
        )
        while True:
            self._beat(since)
            if self._answered.wait(protocol.BEAT) or self._stop.is_set():
                break
        self._hang_up()
        if not self._stop.is_set():
            log.warning("the event loop goes on after %.1f s", time.monotonic() - since)

    def _beat(self, since: float) -> None:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - as above
        facts = self._facts()
        if facts is None or frame is None:
            return
        now = facts["beat_ms"]
        blocked = {"since_ms": now - round((time.monotonic() - since) * 1000), "where": _text(running_part(frame)[0])}
        record = {**facts, "state": "blocked", "blocked": blocked}
        try:
            if self._client is None:
                self._client = connect(self._url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE)
            for command in protocol.beat(self._worker, record, now, ())[:-1]:
                self._client.execute_command(*command)
        except (RedisError, MillstreamError, OSError) as error:
            log.debug("not written to the registry: %s", error)
            self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _text(place: traceback.FrameSummary) -> str:
    return f"{Path(place.filename).name}:{place.lineno} in {place.name}"
