"""A thread that detects a blocked event loop: it logs the place, sends heartbeats for the loop, and renews its entries.

A handler that blocks (``time.sleep``, a synchronous client, a long computation in an ``async def``) stops everything in
its process: lease renewal, orders, heartbeats. From outside, such a worker would look idle and then gone. So this
thread checks that the loop responds. If it does not, it logs the stack of the loop's thread. It also keeps the worker
in the registry, as blocked, over its own connection, and looks after its entries
(:mod:`millstream.worker.subscriber.standstill`). Below ``millstream run`` it ends the process after a while.

Code that holds Python's global lock stops this thread too. So it reports to the supervisor that it runs. Without
reports, the supervisor sends ``URGE``. The handler of that signal waits, so that this thread can run: in the middle of
a long regular expression, for example. If even that does not help, the supervisor kills the process.

Only time counts in which this thread could run. A process that was frozen, or a machine that slept, is not blocked.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from millstream.client.connect import connect
from millstream.errors import MillstreamError
from millstream.worker.handlers.frames import running_part
from millstream.worker.registry import protocol
from millstream.worker.settlement.consumer import Held
from millstream.worker.subscriber.standstill import Standstill

log = logging.getLogger("millstream.worker")

#: Default seconds after which a loop that does not react counts as blocked.
DEFAULT_AFTER = 5.0
#: Default seconds after which ``millstream run`` kills a process with a blocked loop.
DEFAULT_KILL_AFTER = 120.0

#: Reports: the thread runs; the process is being debugged; the thread stops watching; it kills the process.
RUNS, DEBUGGED, ENDING, KILLING = b"runs\n", b"debugged\n", b"ending\n", b"killing\n"
#: Signals from the supervisor: run the watchdog; write the stacks of all threads. By default both signals have no
#: effect.
URGE, STACKS = signal.SIGURG, signal.SIGWINCH

#: Number of the stack's last lines in the log.
_FRAMES = 12
#: Longest seconds for a beat of this thread, and for storing outcomes before a kill.
PATIENCE = 5.0
#: Folders of installed packages.
_LIBRARIES = tuple(f"{path}/" for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_DEBUGGERS = ("debugpy", "pydevd")


class Supervision(NamedTuple):
    """Settings from ``millstream run`` for one of its processes."""

    pid: int  # Id of this process; a process forked from it is not supervised
    kill_after: float  # Seconds after which the process is killed if its event loop is blocked
    reports: int  # Descriptor for the watchdog's reports


#: Supervision of this process; None without a supervisor, or if it does not kill.
supervision: Supervision | None = None


class StoppedLoop(NamedTuple):
    """A blocked event loop."""

    where: str  # File, line and function
    since: float  # Monotonic seconds of the last reaction
    kill_after: float | None  # Seconds after which the process is killed; None for never


class Watchdog:
    """Watches the running event loop."""

    def __init__(
        self,
        url: str,
        worker: str,
        *,
        after: float | None,
        facts: Callable[[], Mapping[str, Any] | None],
        standstill: Standstill,
    ) -> None:
        self._url = url
        self._worker = worker
        above = _supervision()
        self._kill_after = None if above is None else above.kill_after
        self._reports = None if above is None else above.reports
        # The warning must precede the kill, even if the app requests later warnings
        half = float("inf") if self._kill_after is None else self._kill_after / 2
        self._after = min(half if after is None else after, half)
        self._half = half
        self._facts = facts
        self._standstill = standstill
        # The loop renews at a third of the time; this thread's first renewal follows within half of that again
        self._renew = standstill.min_idle / 3
        self._pause = max(min(self._after / 4, self._renew / 4, 1.0), 0.02)
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        # Read here, in the loop's thread, since a trace function belongs to a thread
        self._traced = sys.gettrace() is not None
        self._answered = threading.Event()  # set by the loop
        self._stop = threading.Event()  # set by `stop`
        self._awake = threading.Event()  # ends the pause between two checks
        self._urged = threading.Event()  # set when the supervisor has sent URGE
        self._turned = threading.Event()  # this thread has had its turn, so the signal handler may return
        self._client: Any = None  # connection to the registry, opened when the loop is first blocked
        self._thread = threading.Thread(target=self._run, name="millstream-watchdog", daemon=True)
        self.blocked: StoppedLoop | None = None  # Place at which the loop is blocked; None while it is not

    @staticmethod
    def is_wanted(after: float | None) -> bool:
        """Report whether there is anything to watch for."""
        return after is not None or _supervision() is not None

    def start(self) -> None:
        """Start the thread."""
        if self._reports is not None:
            signal.signal(URGE, self._take_turn)
            with contextlib.suppress(OSError, ValueError):  # standard error may be missing, or may not be a file
                faulthandler.register(STACKS)
            self._report(RUNS)  # from here on silence counts, even if the thread never runs
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _take_turn(self, _number: int, _frame: object) -> None:
        """Wait until the thread has had its turn: meanwhile, the interrupted code holds no lock."""
        self._turned.clear()
        self._urged.set()
        self._awake.set()
        # Longer than a turn can take, but limited, since a dead thread must not block the process forever
        self._turned.wait(2 * PATIENCE)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._awake.wait(self._pause)
            self._awake.clear()
            if self._stop.is_set() or not self._ask():
                break
            self._report(RUNS)
            self._await_answer()
        self._report(ENDING)

    def _ask(self) -> bool:
        """Schedule a reply in the loop; return False if the loop is closed."""
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        # The loop is closed
        except RuntimeError:
            return False
        return True

    def _await_answer(self) -> None:
        """Wait until the loop responds; meanwhile warn, renew entries, beat, and in the end kill."""
        since = time.monotonic()
        missed = 0.0
        kept, beaten, warned = since + self._renew / 2, since - protocol.BEAT, False
        while not self._answered.is_set() and not self._stop.is_set():
            # Between these two readings the thread only waits; a much longer time means that it did not run
            before = time.monotonic()
            if self._wait():
                break
            now = time.monotonic()
            if self._urged.is_set():
                since -= missed  # the supervisor was running meanwhile, so this process blocked its own threads
                missed = 0.0
            elif now - before > self._pause + max(self._after / 2, self._pause):
                missed = now - before  # this thread did not run either: the process or the machine was suspended
                since += missed
            else:
                missed = 0.0
            # Determined in each turn: a handler may block and return, and the next one may block
            entries = self._standstill.blocking(self._frame())
            debugged = self._reports is not None and self._is_debugged()
            self._report(RUNS)
            # Also immediately before the first warning, since entries that have not begun are released at once
            if now - kept >= self._renew or (now - since >= self._after and self.blocked is None):
                kept = now
                self._keep(entries, now - since)
            if now - since >= self._after:
                if self.blocked is None:
                    self._warn(since, entries)
                # `_warn` leaves it None if the loop has reacted meanwhile
                if self.blocked is not None and now - beaten >= protocol.BEAT:
                    beaten = now
                    self._beat(since)
            if now - since >= self._half and not warned:
                warned = True
                self._warn_of_kill(since, entries, debugged=debugged)
            if self._kill_after is not None and now - since >= self._kill_after and not debugged:
                self._kill(since, entries)
            self._turn_over()
        self._turn_over()
        if self.blocked is not None:
            self.blocked = None
            self._hang_up()
            if not self._stop.is_set():
                log.warning("the event loop runs again after %.1f s", time.monotonic() - since)

    def _wait(self) -> bool:
        """Wait for a moment, or for the supervisor's signal; return True if the loop responded."""
        end = time.monotonic() + self._pause
        while time.monotonic() < end and not self._urged.is_set():
            # Short waits, because URGE cannot set `_answered`
            if self._answered.wait(min(self._pause, 0.25)) or self._stop.is_set():
                return True
        return self._answered.is_set()

    def _turn_over(self) -> None:
        self._urged.clear()
        self._turned.set()

    def _frame(self) -> FrameType | None:
        """Return the frame of the loop's thread, below Millstream's own signal handler."""
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - Python's way to another thread's stack
        # `_take_turn` runs on top of the blocked code in that thread
        while frame is not None and frame.f_code.co_filename in (__file__, threading.__file__):
            frame = frame.f_back
        return frame

    def _report(self, line: bytes) -> None:
        """Report to the supervisor; a report that cannot be written is dropped."""
        if self._reports is not None:
            if line == RUNS and self._is_debugged():
                line = DEBUGGED
            with contextlib.suppress(OSError):
                os.write(self._reports, line)

    def _is_debugged(self) -> bool:
        """Report whether a debugger is attached: a program stopped in it must not be killed."""
        if self._traced or any(name in sys.modules for name in _DEBUGGERS):
            return True
        # Newer debuggers use this instead of a trace function
        monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
        if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
            return True
        frame = self._frame()
        if frame is not None and frame.f_trace is not None:
            return True
        with contextlib.suppress(OSError):
            # A native debugger, which is not visible in Python
            return b"TracerPid:\t0\n" not in Path("/proc/self/status").read_bytes()
        return False

    # -- reactions --------------------------------------------------------------------------------------------------

    def _warn(self, since: float, entries: Sequence[Held]) -> None:
        """Log that the loop is blocked, with the place."""
        frame = self._frame()
        if frame is None or self._answered.is_set():
            return
        stack = running_part(frame)
        self.blocked = StoppedLoop(_place(frame), since, self._kill_after)
        log.warning(
            "the event loop has been blocked for %.1f s at %s (%s): nothing else runs in this process%s. Let a handler "
            "that blocks be a plain `def` (it runs in a thread), or put the call into `await asyncio.to_thread(...)`. "
            "The stack of the loop's thread:\n%s",
            time.monotonic() - since,
            self.blocked.where,
            self._standstill.names(entries),
            "" if self._kill_after is None else f", and after {self._kill_after:g} s it is killed",
            "".join(traceback.format_list(stack[-_FRAMES:])).rstrip(),
        )

    def _warn_of_kill(self, since: float, entries: Sequence[Held], *, debugged: bool) -> None:
        assert self._kill_after is not None
        frame = self._frame()
        log.warning(
            "the event loop is still blocked at %s (%s): %s",
            _place(frame),
            self._standstill.names(entries),
            "this process is not killed for it, since it is being debugged"
            if debugged
            else f"this process will be killed in {self._kill_after - (time.monotonic() - since):.1f} s, which counts "
            "as a crash of that entry (millstream run --kill-blocked-after)",
        )

    def _keep(self, entries: Sequence[Held], seconds: float) -> None:
        """Look after the entries; if the server cannot be reached, the next turn tries again."""
        with contextlib.suppress(MillstreamError, RedisError, OSError, TimeoutError, RuntimeError):
            asyncio.run(self._within(self._standstill.keep(entries, seconds)))

    @staticmethod
    async def _within(work: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await work

    def _kill(self, since: float, entries: Sequence[Held]) -> None:
        """End this process, since its loop does not respond."""
        frame = self._frame()
        # Last check: the loop may have reacted meanwhile
        if self._answered.is_set():
            return
        self._report(KILLING)
        log.critical(
            "the event loop has been blocked for %.1f s at %s (%s): killing this process. It counts as a crash of that "
            "entry; its other entries are released without being charged",
            time.monotonic() - since,
            _place(frame),
            self._standstill.names(entries),
        )
        # Only after the report: if this hangs, the supervisor kills the process
        self._leave(entries, alone=True)
        kill()

    def leave(self) -> None:
        """Settle the entries before this process ends for another reason; call it in any thread but the loop's."""
        self._leave(self._standstill.blocking(self._frame()), alone=False)

    def _leave(self, entries: Sequence[Held], *, alone: bool) -> None:
        try:
            asyncio.run(self._within(self._standstill.leave(entries, alone=alone)))
        except (MillstreamError, RedisError, OSError, TimeoutError, RuntimeError) as error:
            log.error("entries were not released; others claim them after min_idle_time: %s", error)  # noqa: TRY400 - the reason is enough

    def _beat(self, since: float) -> None:
        frame, facts = self._frame(), self._facts()
        if facts is None or frame is None:
            return
        now = facts["beat_ms"]
        blocked = {"since_ms": now - round((time.monotonic() - since) * 1000), "where": _place(frame)}
        record = {**facts, "state": "blocked", "blocked": blocked}
        try:
            if self._client is None:
                self._client = connect(self._url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
            for command in protocol.beat(self._worker, record, now, ())[:-1]:
                self._client.execute_command(*command)
        except (RedisError, MillstreamError, OSError) as error:
            log.debug("not written to the registry: %s", error)
            self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def kill() -> None:
    """Kill this process."""
    logging.shutdown()
    # Only as leader of the process group, or the signal would also reach the supervisor
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # includes processes that the handler started
    os.kill(os.getpid(), signal.SIGKILL)


def _supervision() -> Supervision | None:
    return supervision if supervision is not None and supervision.pid == os.getpid() else None


def _place(frame: FrameType | None) -> str:
    """Return the user's own line: not Millstream's, nor that of a library between both."""
    if frame is None:
        return "an unknown place"
    stack = running_part(frame)
    place = next((one for one in stack if not one.filename.startswith(_LIBRARIES)), stack[0])
    return f"{Path(place.filename).name}:{place.lineno} in {place.name}"
